"""Loops in random programs: scan and while_loop, with carries, inputs and outputs of all kinds."""

from dataclasses import dataclass

from tests.random_programs.choices import Choices
from tests.random_programs.containers import KINDS as CONTAINERS
from tests.random_programs.containers import packed, taken
from tests.random_programs.torch_scope import Scope
from tests.random_programs.torch_statements import kind, write_body

CARRIES = {"h": 4, "number": 2, "integer": 1, "flag": 1, "sum": 1.5, "float32": 1, "constant": 1, "none": 0.5}
INPUTS = {"none": 2, "leaf": 3, "data": 2, "records": 3, "made": 1.5, "expanded": 0.7}
OUTPUTS = {
    "none": 2,
    "scalar": 3,
    "alias": 1,
    "view": 1,
    "container": 2,
    "integer": 1,
    "number": 0.7,
    "late": 1,
    "constant": 0.7,
}
BUDGETS = {"slots": 5, "memory": 2.5, "large memory": 1.5, "plan": 1.5}


@dataclass(frozen=True)
class Extra:
    """A part of the carry beside h: its first value, and its value after a step."""

    first: str
    after: str


EXTRAS = {
    "number": Extra("0", "{} + 1"),
    "integer": Extra("torch.tensor(0)", "{} + 1"),
    "flag": Extra("torch.zeros(3, dtype=torch.bool)", "{} | (h[:, 0] > 0)"),
    "sum": Extra("torch.zeros(())", "({} + h.pow(2).mean()).to(FLOAT)"),
    "float32": Extra("torch.zeros(4, dtype=torch.float32)", "({} * 0.9 + h.mean(0).float()).float()"),
    "constant": Extra("torch.full((4,), 0.5)", "{}"),
    "none": Extra("None", "None"),
}


@kind(4, "nests")
def loop(s: Scope, c: Choices) -> None:
    """A scan."""
    length = c.number("length", 1, 5 if s.loops == 0 else 2)
    extra, inputs, outputs = c.pick("carry", CARRIES), c.pick("xs", INPUTS), c.pick("y", OUTPUTS)
    box = c.pick("container", {"bare": 3, **CONTAINERS} if extra == "h" else CONTAINERS)
    names = ["h"] if extra == "h" else ["h", "e"]

    def fill(inner: Scope) -> None:
        inner(*(f"{name} = {value}" for name, value in zip(names, taken(box, "carry", len(names)), strict=True)))
        inner.index = _take_input(inner, inputs, "e" if extra == "number" else "")
        write_body(inner, c.part("body"))
        inner(*(["h = h.to(FLOAT)"] if "autocast" in s.banned else []))
        inner(*([f"e = {EXTRAS[extra].after.format('e')}"] if extra != "h" else []))
        late = f"h.pow(2).sum() if {inner.index} >= 1 else late_zero(h)" if inner.index else "h.mean()"
        inner(f"return {packed(box, names)}, {_output(outputs, late)}")

    s(*(["h = h.to(FLOAT)"] if "autocast" in s.banned else []))
    step = s.callable(c, "step", "carry, x", fill, loop=True)
    xs = _inputs(s, inputs, length)
    init = packed(box, ["h"] if extra == "h" else ["h", EXTRAS[extra].first])
    if c.chance("run twice", 0.1):
        s(f"h = {taken(box, f'remat.scan({step}, {init}, {xs}, {_budget(c, length)})[0]', len(names))[0]}")
    s(f"carry, ys = remat.scan({step}, {init}, {xs}, {_budget(c, length)}{_check(c)})")
    last = taken(box, "carry", len(names))
    s(f"h = {last[0]}")
    if extra in ("sum", "number", "integer") and c.chance("the rest of the carry is used", 0.7):
        s(f"h = h * (1 + 0.1 * {last[1]})")
    if extra == "float32":
        s(f"h = h + {last[1]}.to(h.dtype)")
    _use(s, c, outputs)


def _take_input(s: Scope, how: str, number: str) -> str:
    """Lines that use the input; an expression for the number of the step, if it is known."""
    if how == "records":
        s("h = h + x['x']", "i = int(x['i'])" if "data" not in s.banned else "")
        return "i" if "data" not in s.banned else number
    if how != "none":
        s("h = h + x" if how != "leaf" else "h = h * torch.sigmoid(x)")
    return number


def _inputs(s: Scope, how: str, length: int) -> str:
    if how == "none":
        return f"length={length}"
    leaf = s.create("xs", f"torch.randn({length}, 3, 4)" + (".requires_grad_()" if how in ("leaf", "made") else ""))
    return {
        "leaf": leaf,
        "data": leaf,
        "made": f"torch.sin({leaf}) * h",
        "expanded": f"{leaf}[:1].expand({length}, 3, 4)",
        "records": f"{{'x': {leaf}, 'i': torch.arange({length})}}",
    }[how]


def _output(how: str, late: str) -> str:
    return {
        "none": "None",
        "scalar": "h.pow(2).sum()",
        "alias": "h",
        "view": "h[:, 0]",
        "container": "P3(h.mean(), {'k': h.argmax()}, h[0] > 0)",
        "integer": "h.argmax(0)",
        "number": "0.5",
        "late": late,
        "constant": "torch.ones(2)",
    }[how]


def _use(s: Scope, c: Choices, outputs: str) -> None:
    if outputs in ("none", "integer") or not c.chance("y is used", 0.8):
        return
    value = "ys.a" if outputs == "container" else "ys"
    s(f"h = h + 0.1 * torch.sin({value}).mean()")


def _budget(c: Choices, length: int) -> str:
    how = c.pick("budget", BUDGETS)
    if how == "slots":
        return f"slots={c.number('slots', 1, length)}"
    if how == "plan":
        planner = ("binomial", "chunks", "save-points", "mixed")[c.number("planner", 0, 3)]
        return f"plan=the_plan(remat, {length}, {c.number('slots', 1, length)}, {planner!r})"
    small = f"{4 * 2 ** c.number('size', 0, 3)} KiB"
    return f"memory='{'4 MiB' if how == 'large memory' else small}'"


def _check(c: Choices) -> str:
    check = c.pick("check", {"first": 4, "always": 1, "never": 1})
    return "" if check == "first" else f", check={check!r}"


@kind(1.5, "nests", "data")
def loop_while(s: Scope, c: Choices) -> None:
    """A while loop, ended by a number in the carry, by data or by the largest number of steps."""
    end = c.pick("end", {"number": 3, "data": 1, "most": 1})
    box = c.pick("container", CONTAINERS)
    steps = c.number("length", 1, 5 if s.loops == 0 else 2)
    h, n = taken(box, "carry", 2)

    def fill(inner: Scope) -> None:
        inner(f"h, n = {h}, {n}")
        inner.index = "int(n)"
        write_body(inner, c.part("body"))
        inner(*(["h = h.to(FLOAT)"] if "autocast" in s.banned else []))
        inner(f"return {packed(box, ['h', 'n + 1'])}")

    s(*(["h = h.to(FLOAT)"] if "autocast" in s.banned else []))
    body = s.callable(c, "body", "carry", fill, loop=True)
    number = "torch.tensor(0)" if c.chance("n is a tensor", 0.4) else "0"
    cond = f"lambda carry: {n} < {steps}"
    if end == "data":
        cond = f"lambda carry: bool({h}.abs().max() > 0.2) and {n} < {steps}"
    most = f", max_steps={max(1, steps - 1)}" if end == "most" else ""
    init = packed(box, ["h", number])
    budget = "memory='64 KiB'" if c.chance("memory", 0.25) else f"slots={c.number('slots', 1, steps)}"
    s(f"carry = remat.while_loop({cond}, {body}, {init}{most}, {budget}{_check(c)})")
    s(f"h = {h}")
