"""From a function to its syntax tree, with locations in the user's file, and from a tree back to a function.

The source is not dedented, since that would change strings and shift columns; an indented function is parsed as the
body of `if 1:`. The new function shares the globals, the cells, the defaults and the `__future__` flags of the old one.
"""

import ast
import dis
import functools
import inspect
from collections.abc import Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

from remat.errors import SourceError
from remat.source.data_flow.scopes import bound_names
from remat.source.syntax import at

__all__ = ["function_tree", "has_loops", "new_function"]

_FUTURE_FLAGS = 0x1FE0000  # the only flags of code objects that `compile` takes


def function_tree(function: FunctionType) -> ast.FunctionDef:
    """The tree of a function from its file; a SourceError if there is no source that fits."""
    code = function.__code__
    where = f"{code.co_filename}, line {code.co_firstlineno}"
    if hasattr(function, "__wrapped__"):
        raise SourceError(
            f"{where}: {function.__qualname__} is wrapped by another decorator, which the rewritten function would "
            "lose\nPut @remat.checkpointed next to the def, below other decorators.",
            code.co_filename, code.co_firstlineno,
        )  # fmt: skip
    try:
        lines, first = inspect.getsourcelines(function)
        indented = lines[0][:1].isspace()
        module = ast.parse("".join(["if 1:\n" * indented, *lines]))
    except (OSError, TypeError, SyntaxError) as error:
        raise _no_text(function, where) from error
    ast.increment_lineno(module, first - 1 - indented)
    body = module.body[0].body if indented else module.body  # type: ignore[attr-defined]
    node = body[0]
    if isinstance(node, ast.AsyncFunctionDef):
        raise SourceError(
            f"{where}: an async function cannot be differentiated\nMake it a plain function.",
            code.co_filename, code.co_firstlineno,
        )  # fmt: skip
    if not isinstance(node, ast.FunctionDef) or node.name != function.__code__.co_name:
        raise _no_text(function, where)
    names = bound_names(node.args)
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    if names != set(code.co_varnames[:count]):
        raise SourceError(
            f"{where}: the file has changed since {function.__qualname__} was imported\nImport it again.",
            code.co_filename, code.co_firstlineno,
        )  # fmt: skip
    _check_decorators(node, function, where)
    _Private(function).visit(node)
    return node


def has_loops(code: CodeType) -> bool:
    """Whether a function, or one inside it, jumps back, as loops and comprehensions do."""
    jumps = ("JUMP_BACKWARD" in each.opname for each in dis.get_instructions(code))
    return any(jumps) or any(map(has_loops, _codes(code)))


def _no_text(function: FunctionType, where: str) -> SourceError:
    return SourceError(
        f"{where}: there is no source of {function.__qualname__} to rewrite (a lambda, or made by exec or in a shell)\n"
        "Write it as a def in a file, or its loop as remat.scan.",
        function.__code__.co_filename, function.__code__.co_firstlineno,
    )  # fmt: skip


def _check_decorators(node: ast.FunctionDef, function: FunctionType, where: str) -> None:
    """Refuse decorators below ours, which the rewritten function would lose."""
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    ours = [k for k, name in enumerate(names) if "checkpointed" in name.partition("(")[0]]
    below = names[ours[-1] + 1 :] if ours else []
    if below:
        raise SourceError(
            f"{where}: @{below[0]} is below @{names[ours[-1]]}, and would be lost\n"
            "Put @remat.checkpointed next to the def, below other decorators.",
            function.__code__.co_filename, node.lineno,
        )  # fmt: skip


def new_function(
    old: FunctionType, tree: ast.FunctionDef, makers: list[ast.stmt], hidden: Mapping[str, Any]
) -> FunctionType:
    """A function with a new body; `hidden` has values for names of generated code, `makers` are defined next to it."""
    code = old.__code__
    tree.decorator_list = []
    tree.returns = None
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    tree.args.defaults = [at(ast.Constant(None), default) for default in tree.args.defaults]
    tree.args.kw_defaults = [d and at(ast.Constant(None), d) for d in tree.args.kw_defaults]
    free = [*code.co_freevars, *(name for name in hidden if name not in code.co_freevars)]
    name, tree.name = tree.name, ".function"  # so that its own name in the body refers to the module's, as usual
    factory = ast.FunctionDef(
        ".factory",
        ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, []),
        [*makers, tree],
        [],
        None,
    )
    factory.type_params = []  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    compiled = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURE_FLAGS, dont_inherit=True)
    inside = {c.co_name: c for c in _codes(_codes(compiled)[0])}
    cells = dict(zip(code.co_freevars, old.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in hidden.items()}
    makers_by_name = {made: its_code for made, its_code in inside.items() if made.startswith(".make")}
    cells |= {made: CellType() for made in makers_by_name}
    for made, its_code in makers_by_name.items():
        cells[made].cell_contents = _function(its_code, old, cells)
    named = inside[tree.name].replace(co_name=name, co_qualname=code.co_qualname)
    new = _function(named, old, cells)
    new.__defaults__, new.__kwdefaults__ = old.__defaults__, old.__kwdefaults__
    functools.update_wrapper(new, old)
    return new


def _codes(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _function(code: CodeType, old: FunctionType, cells: Mapping[str, CellType]) -> FunctionType:
    return FunctionType(code, old.__globals__, code.co_name, None, tuple(cells[name] for name in code.co_freevars))


class _Private(ast.NodeTransformer):
    """Does what the compiler does only inside a class: mangles `self.__x` to `self._Class__x`, completes `super()`."""

    def __init__(self, function: FunctionType) -> None:
        parts = function.__qualname__.split(".")
        code = function.__code__
        self.first = code.co_varnames[0] if code.co_argcount else None
        self.owner = parts[-2].lstrip("_") if len(parts) > 1 and parts[-2] != "<locals>" else ""

    def _mangled(self, name: str) -> str:
        private = self.owner and name.startswith("__") and not name.endswith("__")
        return f"_{self.owner}{name}" if private else name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Private attributes."""
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Private names of the module."""
        node.id = self._mangled(node.id)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`super()` without arguments looks them up in its frame, which here would be that of a step."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and self.first:
            node.args = [at(ast.Name(name, ast.Load()), node) for name in ("__class__", self.first)]
        return node
