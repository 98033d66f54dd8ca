"""The rewriting: the loop stays as it is written, its new iterator runs most turns, by a copy of the body as a step.

    def .make1(W):                                      # outside the function, once for each loop
        def .step(.carry, i):
            (h,) = .carry
            h = f(h, W, i)
            return (h,), None
        return .step

    def .put1(.values):                                 # in place of `for i in range(n): h = f(h, W, i)`
        nonlocal h
        (h,) = .values
    for i in .remat.turns(1, range(n), lambda: .make1(W), lambda: (h,), .put1):
        h = f(h, W, i)

A step's captured variables are arguments of the function that makes it. So they are bound when the loop starts, and the
code of a loop at depth d appears d + 1 times, not 2^d times.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from remat.source.data_flow.analysis import Analysis, FoundLoop
from remat.source.data_flow.outputs import Output
from remat.source.data_flow.scopes import bound_names
from remat.source.loop_info import LoopInfo
from remat.source.rewrite.identities import Identities
from remat.source.rewrite.step_body import bound_values, step_body
from remat.source.syntax import OwnScope, at, clone, expression, flattened, statements

__all__ = ["rewritten"]


def rewritten(analysis: Analysis) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The functions that make steps, and the new body of the function."""
    for output in (output for outputs in analysis.outputs.values() for output in outputs):
        if isinstance(output.node, ast.Assign) and isinstance(output.node.value, ast.Call):
            # The loop does not carry the array, so a turn in place writes into it, as in plain Python.
            output.node.value.args[0] = at(ast.Constant("here"), output.node)
    for node in _puts(analysis.function.body):
        if hasattr(node, "holds"):
            _add_keyword(node, "holds", ast.Constant(node.holds))
        if live := getattr(node, "live", ()):
            _add_keyword(node, "live", ast.Constant((node.puts_into, live)))  # type: ignore[arg-type, attr-defined]
    sites = _CallSites({info.number: info for info in analysis.infos if not info.kept}, analysis.outputs)
    identities = Identities(analysis.function.body, analysis.infos)
    makers: list[ast.stmt] = []
    for info in analysis.infos:
        if not info.kept:
            makers += _maker(info, analysis.loops[info.number], analysis.outputs[info.number], sites, identities)
    return makers, _settled(_body(analysis, sites), analysis.infos)


def _settled(body: list[ast.stmt], infos: Iterable[LoopInfo]) -> list[ast.stmt]:
    """The body of the function; errors that it swallows are raised at its end."""
    if not any("an exception" in info.ends for info in infos):
        return body
    [settled] = statements("try:\n  pass\nfinally:\n  .remat.settle()", body[-1])
    assert isinstance(settled, ast.Try)
    settled.body = body
    return [settled]


def _body(analysis: Analysis, sites: "_CallSites") -> list[ast.stmt]:
    body = analysis.function.body
    if not _changes_arrays(body):
        return flattened([sites.visit(node) for node in body])
    sites = _CallSites(sites.infos, sites.outputs, ", .given")
    for node in _puts(body):
        _add_keyword(node, "given", ast.Name(".given", ast.Load()))
    names = ", ".join(sorted(bound_names(analysis.function.args)))
    start = statements(f".given = .remat.given({names})", body[0])
    return [*start, *flattened([sites.visit(node) for node in body])]


def _maker(
    info: LoopInfo, found: FoundLoop, outputs: list[Output], sites: "_CallSites", identities: Identities
) -> list[ast.stmt]:
    node = found.node
    argument = ".x"
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id not in info.carry:
        argument = node.target.id
    single = f"{info.carry[0]} = .carry\n" if len(info.carry) == 1 else ""  # its value is the carry itself
    unpack = single or (f"{_targets(info.carry)} = .carry\n" if info.carry else "")
    unpack += _unbind(name for name in info.carry if name in info.unbound)
    text = f"def .make{info.number}({', '.join(info.captured)}):\n"
    text += _indented(_unbind(name for name in info.captured if name in info.unbound))
    text += "  def .step(.carry, .argument):\n" + _indented(_indented(unpack) + "  pass\n")
    test_too = isinstance(node, ast.While) and not any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test))
    if test_too:
        text += "  def .test(.carry):\n" + _indented(_indented(unpack) + "  return None\n")
    text += f"  return .step, {'.test' if test_too else None}\n"
    [maker] = statements(text, node)
    assert isinstance(maker, ast.FunctionDef)
    step = next(part for part in maker.body if isinstance(part, ast.FunctionDef) and part.name == ".step")
    step.args.args[1].arg = argument
    step.body.pop()  # pass
    step.body += _head(node, argument, identities)
    copies = step_body(node.body, info, outputs, identities)
    step.body += flattened([sites.visit(part) for part in copies])
    if test_too:
        assert isinstance(node, ast.While)
        test = next(part for part in maker.body if isinstance(part, ast.FunctionDef) and part.name == ".test")
        last = test.body[-1]
        assert isinstance(last, ast.Return)
        last.value = identities.in_step(node.test)
    return [maker]


def _head(node: ast.For | ast.While, argument: str, identities: Identities) -> list[ast.stmt]:
    """The first statements of a step: assign the target of the loop, or evaluate the test of a `while`."""
    if isinstance(node, ast.While):
        [new] = statements("if .x is None and not None:\n  return .remat.ended", node)
        assert isinstance(new, ast.If)
        assert isinstance(new.test, ast.BoolOp)
        assert isinstance(new.test.values[1], ast.UnaryOp)
        new.test.values[1].operand = identities.in_step(node.test)
        return [new]
    if argument != ".x":
        return []
    [assign] = statements(".t = .x", node.target)
    assert isinstance(assign, ast.Assign)
    assign.targets = [clone(node.target)]
    return [assign]


def _targets(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)},)"


def _unbind(names: Iterable[str]) -> str:
    return "".join(f"if {name} is .remat.UNBOUND:\n  del {name}\n" for name in names)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


@dataclass
class _CallSites(OwnScope):
    """Rewrites loops where they are, in the function or in the step of another loop."""

    infos: dict[int, LoopInfo]
    outputs: dict[int, list[Output]]
    given: str = ""  # the last argument of the run time's loop; none inside a step, where nothing is the caller's

    def _loop(self, node: ast.For | ast.While) -> ast.stmt | list[ast.stmt]:
        info = self.infos.get(getattr(node, "remat_loop", 0))
        node.body = flattened([self.visit(part) for part in node.body])
        node.orelse = flattened([self.visit(part) for part in node.orelse])
        if info is None:
            return node
        k = info.number
        before: list[ast.stmt] = []
        put = arrays = "None"
        if info.carry:
            put = f".put{k}"
            before += statements(_setter(put, info.carry, info.unbound), node)
        if info.arrays:
            arrays = f"(lambda: {_targets(info.arrays)}, .fill{k}, .keys{k})"
            before += statements(_setter(f".fill{k}", info.arrays, frozenset()), node)
            assert isinstance(node, ast.For)
            before.append(_keys(f".keys{k}", node.target, [o.key for o in self.outputs[k] if o.filled]))
        make = f"lambda: .make{k}{_arguments(info)}"
        get = f"lambda: {bound_values(info.carry, info.unbound)}"
        lists = f"({', '.join(info.lists)},)" if info.lists else "()"
        rest = f"{make}, {get}, {put}, {lists}, {arrays}{self.given}"
        if isinstance(node, ast.For):
            call = expression(f".remat.turns({k}, None, {rest})", node)
            assert isinstance(call, ast.Call)
            call.args[1] = _items(node.iter)
            node.iter = call
        else:
            before += statements(f".loop{k} = .remat.while_turns({k}, {rest})", node)
            test = expression(f".loop{k}() and None", node)
            assert isinstance(test, ast.BoolOp)
            test.values[1] = node.test
            node.test = test
        return [*before, node]

    visit_For = visit_While = _loop


def _changes_arrays(body: list[ast.stmt]) -> bool:
    """Whether statements change the object of a local name in place."""
    nodes = [n for part in body for n in ast.walk(part)]
    return any(isinstance(n, ast.AugAssign) or hasattr(n, "puts_into") for n in nodes)


def _puts(body: list[ast.stmt]) -> list[ast.Assign]:
    """The statements that assign items."""
    return [n for part in body for n in ast.walk(part) if isinstance(n, ast.Assign) and hasattr(n, "puts_into")]


def _add_keyword(node: ast.Assign, name: str, value: ast.expr) -> None:
    assert isinstance(node.value, ast.Call)
    node.value.keywords.append(at(ast.keyword(name, value), node))


def _arguments(info: LoopInfo) -> str:
    values = bound_values(info.captured, info.unbound)
    return values if len(info.captured) != 1 else f"({values[1:-2]})"


def _setter(name: str, names: tuple[str, ...], unbound: frozenset[str]) -> str:
    unbind = _unbind(name for name in names if name in unbound)
    return f"def {name}(.values):\n  nonlocal {', '.join(names)}\n  {_targets(names)} = .values\n{_indented(unbind)}"


def _keys(name: str, target: ast.expr, keys: list[ast.expr]) -> ast.stmt:
    """A function from an item of the loop to the places that its turn fills."""
    [function] = statements(f"def {name}(.item):\n  .t = .item\n  return None", target)
    assert isinstance(function, ast.FunctionDef)
    assign, result = function.body
    assert isinstance(assign, ast.Assign)
    assert isinstance(result, ast.Return)
    assign.targets, result.value = [clone(target)], at(ast.Tuple([*map(clone, keys)], ast.Load()), target)
    return function


def _items(node: ast.expr) -> ast.expr:
    """The iterable of a loop; `zip` and `enumerate` as objects that know their parts."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("zip", "enumerate"):
        return at_call(node)
    return node


def at_call(node: ast.Call) -> ast.expr:
    """A call of `zip` or `enumerate` through the run time, which gets the object that the name refers to."""
    assert isinstance(node.func, ast.Name)
    func = expression(".remat.combined", node.func)
    name = at(ast.Name(node.func.id, ast.Load()), node.func)
    return ast.copy_location(ast.Call(func, [name, *node.args], node.keywords), node)
