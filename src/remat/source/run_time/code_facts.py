"""What the instructions of a function do that tracing it once would not repeat, and which names they use.

In: the code of a function. Out: `CodeFacts`, with the functions inside it. Names are found by `dis` opnames, the only
public view of them: variables that are not its own, each with the attributes that are read of it directly, as in
`jnp.linalg.norm`. What it can miss: nothing that is a rule here, since what is not known is an effect. The cost: 50 us
for a function of ten lines, once, since facts about code are cached.
"""

import dis
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType

__all__ = ["CONSTRUCTORS", "Chain", "CodeFacts", "facts_of"]

Chain = tuple[str, ...]  # a variable and the attributes that are read of it: ("jnp", "linalg", "norm")

CONSTRUCTORS = frozenset({"__init__", "__post_init__"})  # they run on new objects, which they fill
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELLS = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_SILENT = frozenset({"CACHE", "PRECALL", "PUSH_NULL", "KW_NAMES", "EXTENDED_ARG", "NOP", "NOT_TAKEN"})
_TEXTS = ("FORMAT_", "BUILD_STRING", "CONVERT_VALUE", "BUILD_TEMPLATE", "BUILD_INTERPOLATION")
_ENDS = ("STORE_", "POP_", "RETURN_", "JUMP_", "FOR_ITER", "YIELD_")  # after these, a value is used for something
_TEXT_METHODS = frozenset({"format", "format_map"})
_METHODS_OF_BASES = frozenset({"__init__", "__post_init__", "__call__", "__new__", "__getitem__"})


@dataclass
class CodeFacts:
    """The facts about one function: what it does, and the names that it uses."""

    globals: set[Chain] = field(default_factory=set)
    cells: set[Chain] = field(default_factory=set)  # variables of functions around it
    attributes: set[str] = field(default_factory=set)  # all that are read, of whatever object
    imports: set[str] = field(default_factory=set)
    effects: set[str] = field(default_factory=set)  # what one trace would not repeat
    stores: set[str] = field(default_factory=set)  # the attributes that it sets or deletes
    asks: bool = False  # whether it asks for the type of something
    has_modulo: bool = False  # which is a text if one of its operands is
    texts: bool = False  # whether a constant is a text with a `%`
    compared: set[tuple[str, Chain]] = field(default_factory=set)  # "globals" or "cells": what `is` compares with


@lru_cache(maxsize=4096)
def facts_of(code: CodeType) -> CodeFacts:
    """The facts about a function and all functions inside it."""
    facts = CodeFacts()
    _Reader(code, facts, frozenset()).read()
    return facts


class _Reader:
    """Reads the instructions of one code object; `own` are variables of functions around it that are in the facts."""

    def __init__(self, code: CodeType, facts: CodeFacts, own: frozenset[str]) -> None:
        self.code, self.facts, self.own = code, facts, own | set(code.co_cellvars)
        self.first = code.co_varnames[0] if code.co_argcount else ""
        self.chain: list[str] = []
        self.kind = ""
        self.instructions = [each for each in dis.get_instructions(code) if each.opname not in _SILENT]

    def read(self) -> None:
        """Add what this code does, and the functions inside it."""
        for k, each in enumerate(self.instructions):
            self._effects(k, each)
            self._names(each)
        self._end_chain()
        self.facts.texts |= any(isinstance(each, str) and "%" in each for each in self.code.co_consts)
        for inner in self.code.co_consts:
            if isinstance(inner, CodeType):
                _Reader(inner, self.facts, self.own).read()

    def _names(self, each: dis.Instruction) -> None:
        facts, name = self.facts, each.opname
        if name in _ATTRIBUTES:
            facts.attributes.add(each.argval)
            if self.chain:
                self.chain.append(each.argval)
            return
        self._end_chain()
        if name in _GLOBALS:
            # `str(x)` and `map(str, [x])` differ: the former is a call of the text of x.
            called = name == "LOAD_GLOBAL" and bool((each.arg or 0) & 1)
            self.chain, self.kind = [each.argval], "globals"
            if called and each.argval in ("str", "repr", "format", "ascii"):
                facts.effects.add("text")
        elif name in _CELLS and each.argval not in self.own and each.argval != "__class__":
            self.chain, self.kind = [each.argval], "cells"
        elif name == "IMPORT_NAME":
            facts.imports.add(each.argval)

    def _end_chain(self) -> None:
        if self.chain:
            getattr(self.facts, self.kind).add(tuple(self.chain))
            if self.chain == [".remat", "same"]:  # `is`, in a step
                self.facts.effects.add("identity")
        self.chain = []

    def _effects(self, k: int, each: dis.Instruction) -> None:
        facts, name = self.facts, each.opname
        if name in ("STORE_ATTR", "DELETE_ATTR"):
            if self.code.co_name not in CONSTRUCTORS or self._stored_on(k) != self.first:
                facts.stores.add(each.argval)
        elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            facts.effects.add("global")
        elif name in ("STORE_DEREF", "DELETE_DEREF") and each.argval not in self.own:
            facts.effects.add("nonlocal")
        elif name == "PUSH_EXC_INFO":  # it could swallow the exceptions of a tracer, and take another path
            facts.effects.add("handler")
        elif name == "LOAD_BUILD_CLASS":
            facts.effects.add("class")
        elif name == "IS_OP":
            self._identity(k)
        elif name == "MATCH_CLASS":
            facts.asks = True
        elif name.startswith(_TEXTS) and not self._is_raised(k):
            facts.effects.add("text")
        elif name == "BINARY_OP" and each.argrepr in ("%", "%="):
            facts.has_modulo = True
        elif name in _ATTRIBUTES and (each.argval in _TEXT_METHODS or self._is_special(each.argval)):
            facts.effects.add("attribute")

    def _is_special(self, name: str) -> bool:
        if name == "__setattr__" and self.code.co_name in CONSTRUCTORS:  # of a frozen dataclass
            return False
        return name.startswith("__") and name.endswith("__") and name not in _METHODS_OF_BASES

    def _identity(self, k: int) -> None:
        """Note what `is` compares with; None, True and False are what they are in a trace, too."""
        before = self.instructions[k - 1]
        if before.opname == "LOAD_CONST" and not isinstance(before.argval, int | float | str | tuple):
            return
        if before.opname == "LOAD_CONST" and isinstance(before.argval, bool):
            return
        if self.chain:  # it is noted before the chain ends
            self.facts.compared.add((self.kind, tuple(self.chain)))
        else:
            self.facts.effects.add("identity")

    def _stored_on(self, k: int) -> str | None:
        """The local variable whose attribute is stored, in `v.k = …` and `v.k += …`."""
        before = self.instructions[:k]
        if before[-1].opname == "SWAP":  # of `+=`: the variable was copied before its attribute was read
            while before and before[-1].opname != "COPY":
                before.pop()
            before = before[:-1]
        last = before[-1] if before else None
        if last is None or not last.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            return None
        return str(last.argval[-1] if isinstance(last.argval, tuple) else last.argval)

    def _is_raised(self, k: int) -> bool:
        """Whether a text becomes the message of an exception, which ends the turn anyway."""
        return next(_uses(self.instructions[k:]), "") == "RAISE_VARARGS"


def _uses(instructions: Sequence[dis.Instruction]) -> Iterator[str]:
    return (each.opname for each in instructions if each.opname == "RAISE_VARARGS" or each.opname.startswith(_ENDS))
