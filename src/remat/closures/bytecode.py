"""Names that a function's bytecode reads and writes, which tell constants of a closure from variables of the step.

They are found by `dis` opnames, the only public view of them. Should a version of CPython rename one of the four below,
then a captured global is not found, which raises an error when the step runs on it, or a variable that the step assigns
counts as one that it only reads, and is reset in every sweep.
"""

import dis
from functools import lru_cache
from types import CodeType

__all__ = ["assigned_names", "global_names"]


@lru_cache(maxsize=1024)
def assigned_names(code: CodeType) -> frozenset[str]:
    """Variables of enclosing functions that the code, or a function defined in it, assigns to."""
    return _names(code, "STORE_DEREF", "DELETE_DEREF").union(*map(assigned_names, _nested_code(code)))


@lru_cache(maxsize=1024)
def global_names(code: CodeType) -> frozenset[str]:
    """Globals that the code, or a function defined in it, reads."""
    # Class bodies inside a function read globals with LOAD_NAME.
    return _names(code, "LOAD_GLOBAL", "LOAD_NAME").union(*map(global_names, _nested_code(code)))


def _names(code: CodeType, *opnames: str) -> frozenset[str]:
    return frozenset(instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in opnames)


def _nested_code(code: CodeType) -> list[CodeType]:
    # The code of an inner function, lambda, comprehension or class is a constant of the code around it.
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
