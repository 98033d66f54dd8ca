"""Names that a function's bytecode reads and writes, to tell the constants of a closure from variables of the step.

They are found by `dis` opnames, the only public view of them. If a version of CPython renames one of those below, then
a captured global is not found, which raises an error when the step uses it, or a variable that the step assigns is
taken for one that it only reads, and is reset in every sweep.
"""

import dis
import re
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

__all__ = [
    "CodeNames",
    "assigned_names",
    "code_names",
    "has_augmented_assignment",
    "has_effects",
    "names_in",
    "names_not_counting",
]

_LOADS = frozenset({"LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF"})
_STORES = frozenset({"STORE_DEREF", "DELETE_DEREF", "STORE_GLOBAL", "DELETE_GLOBAL"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"})
_SETTERS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__"})
# Parts of the names of functions that draw random numbers, and of those that write.
_EFFECTS = re.compile(
    "rand|normal|uniform|choice|shuffle|permut|bernoulli|binomial|poisson|multinomial|dropout|exponential|gamma|beta|"
    "laplace|cauchy|geometric|gumbel|logistic|dirichlet|triangular|weibull|pareto|rvs|sampl|draw|gauss|print|write|"
    "^(debug|info|warn|warning|error|critical|log|next)$"
)
# Methods that change the items of containers.
_METHODS = """
append appendleft extend extendleft insert pop popleft popitem remove clear update setdefault add discard sort reverse
rotate move_to_end subtract
"""
_CHANGES = frozenset(_METHODS.split())


class CodeNames(NamedTuple):
    """The names in some code, and in the functions defined in it."""

    every: frozenset[str]  # attributes, globals, and strings (for getattr)
    used: dict[str, frozenset[str] | None]  # by variable: the attributes that the code uses of it; None for all
    assigned: frozenset[str]  # variables of enclosing functions that it assigns to
    read_globals: frozenset[str]
    assigned_globals: frozenset[str]
    stored: frozenset[str]  # the attributes that it sets or deletes, of whatever object


@lru_cache(maxsize=4096)  # all in one: looking up a code object takes 0.5 us, as its hash is that of its contents
def code_names(code: CodeType) -> CodeNames:
    """The names in the code."""
    return CodeNames(
        names_in(code),
        _attributes_used(code),
        assigned_names(code),
        _global_names(code),
        _assigned_globals(code),
        _stored_attributes(code),
    )


@lru_cache(maxsize=1024)
def assigned_names(code: CodeType) -> frozenset[str]:
    """Variables of enclosing functions that the code, or a function defined in it, assigns to."""
    return _names(code, "STORE_DEREF", "DELETE_DEREF").union(*map(assigned_names, _nested_code(code)))


def _global_names(code: CodeType) -> frozenset[str]:
    """Globals that the code, or a function defined in it, reads."""
    # Class bodies inside a function read globals with LOAD_NAME.
    return _names(code, "LOAD_GLOBAL", "LOAD_NAME").union(*map(_global_names, _nested_code(code)))


def _assigned_globals(code: CodeType) -> frozenset[str]:
    """Globals that the code, or a function defined in it, assigns to."""
    return _names(code, "STORE_GLOBAL", "DELETE_GLOBAL").union(*map(_assigned_globals, _nested_code(code)))


@lru_cache(maxsize=1024)
def names_not_counting(code: CodeType) -> frozenset[str]:
    """Variables of enclosing functions, and globals, that the code uses other than for counting, as in `calls += 1`.

    A variable that code only adds constants to cannot affect what the code computes, so it may count every run.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    counting: set[int] = set()
    for k, (load, constant, operator, store) in enumerate(zip(*(instructions[j:] for j in range(4)), strict=False)):
        is_sum = operator.opname == "BINARY_OP" and constant.opname in _CONSTANTS
        if is_sum and load.opname in _LOADS and store.opname in _STORES and load.argval == store.argval:
            counting |= {k, k + 3}
    used = {each.argval for k, each in enumerate(instructions) if each.opname in _LOADS | _STORES and k not in counting}
    return frozenset(used).union(*map(names_not_counting, _nested_code(code)))


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """All names in the code and in functions defined in it: attributes, globals, and strings (for getattr)."""
    strings = (constant for constant in code.co_consts if isinstance(constant, str))
    return frozenset(code.co_names).union(strings, *map(names_in, _nested_code(code)))


def _attributes_used(code: CodeType) -> dict[str, frozenset[str] | None]:
    """The attributes that the code uses of each captured variable or global; None if it may use all.

    `self.block(x)` uses only the attribute `block` of `self`; `run(self)` and `self[0]` may use all of it.
    """
    used: dict[str, frozenset[str] | None] = {}
    for inner in _nested_code(code):
        for name, attributes in _attributes_used(inner).items():
            used[name] = _both(used.get(name, frozenset()), attributes)
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
        if instruction.opname in _LOADS:
            is_attribute = following is not None and following.opname in _ATTRIBUTES
            found = frozenset({following.argval}) if following is not None and is_attribute else None
            used[instruction.argval] = _both(used.get(instruction.argval, frozenset()), found)
    return used


def _stored_attributes(code: CodeType) -> frozenset[str]:
    """The attributes that the code, or a function defined in it, sets or deletes, of whatever object."""
    stored = _names(code, "STORE_ATTR", "DELETE_ATTR")
    if not _SETTERS.isdisjoint(code.co_names):  # the name may be any string
        stored |= {constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier()}
    return stored.union(*map(_stored_attributes, _nested_code(code)))


@lru_cache(maxsize=4096)
def has_augmented_assignment(code: CodeType) -> bool:
    """Whether the code, or a function defined in it, has a `+=` or similar that may write into an array of its own.

    That is an array in a local variable or in an item. Attributes, variables of other functions, and items to which a
    constant is added are usually counters and sums.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "SWAP")]
    for operand, operator, store in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if operator.opname != "BINARY_OP" or not operator.argrepr.endswith("="):
            continue
        # A local variable that an inner function closes over is in cellvars; its opcode is that of any captured one.
        is_local = store.opname.startswith("STORE_FAST") or store.argval in code.co_cellvars
        if is_local or (store.opname == "STORE_SUBSCR" and operand.opname != "LOAD_CONST"):
            return True
    return any(map(has_augmented_assignment, _nested_code(code)))


@lru_cache(maxsize=1024)
def has_effects(code: CodeType, on_items: bool) -> bool:
    """Whether the code, or a function in it, may draw random numbers or write, judging by names, or sets attributes.

    With `on_items`, also whether it may change the items of a container.
    """
    if any(map(_EFFECTS.search, code.co_names)) or _names(code, "STORE_ATTR", "DELETE_ATTR"):
        return True
    if on_items and (not _CHANGES.isdisjoint(code.co_names) or _names(code, "STORE_SUBSCR", "DELETE_SUBSCR")):
        return True
    return any(has_effects(inner, on_items) for inner in _nested_code(code))


def _both(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    return None if first is None or second is None else first | second


def _names(code: CodeType, *opnames: str) -> frozenset[str]:
    return frozenset(instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in opnames)


def _nested_code(code: CodeType) -> list[CodeType]:
    # The code of an inner function, lambda, comprehension or class is a constant of the code around it.
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
