"""Segments and loops in random NumPy programs."""

from tests.random_programs.choices import Choices
from tests.random_programs.containers import KINDS as CONTAINERS
from tests.random_programs.containers import packed, taken
from tests.random_programs.numpy_scope import Scope
from tests.random_programs.numpy_statements import KINDS, kind

EXTRAS = {  # parts of the carry beside h: the first value, and the lines of a step
    "h": ("", ""),
    "number": ("0", "e = e + 1"),
    "sum": ("0.0", "e = e + np.sum(h**2)"),
    "integer": ("numpy.zeros(3, int)", "e = e + (h[:3] > 0)"),
    "written": ("numpy.zeros(3, int)", "e[1] += 1"),
    "buffer": ("numpy.zeros(3)", "e[0] += 0.5"),
    "constant": ("numpy.ones(4)", ""),
    "previous": ("numpy.zeros(4)", "e = h"),
    "generator": ("numpy.random.default_rng(7)", "h = h + 0.1 * e.normal(size=4)"),
    "none": ("None", ""),
}
INPUTS = {
    "none": "",
    "traced": "{0}",
    "data": "rng_xs({1}, 4)",
    "made": "np.sin({0})",
    "dict": "{{'x': {0}, 'i': numpy.arange({1})}}",
    "records": "records({1})",
    "dates": "numpy.arange('2020-01-01', '2021-01-01', dtype='M8[D]')[:{1}]",
    "labels": "numpy.array(['rain', 'dry'] * {1})[:{1}]",
}
OUTPUTS = {
    "none": "None",
    "scalar": "np.sum(h**2)",
    "alias": "h",
    "view": "h[1:]",
    "container": "P3(np.sum(h), {'k': np.sum(constant(h) > 0)}, h[0] * 2)",
    "integer": "int(np.sum(constant(h) > 0))",
    "late": "np.sum(h**2) if {index} >= 1 else 0.0",
}


@kind(4, "nests")
def segment(s: Scope, c: Choices) -> None:
    arguments = c.pick("arguments", {"bare": 5, "container": 2, "twice": 1, "keyword": 1, "cache": 1})
    results = c.pick("results", {"bare": 4, "container": 2, "alias": 1})
    box = c.pick("container", CONTAINERS) if "container" in (arguments, results) else ""
    store = s.create("store", "Box(keys=None, count=0)") if arguments == "cache" else ""
    parameters, call, lines = {
        "bare": ("h", "h", []),
        "container": ("given", packed(box, ["h", "np.arange(4)", "None", "0.5"]) if box else "", []),
        "twice": ("h, again, more", "h, h, [h]", ["h = h * again - 0.1 * more[0]"]),
        "keyword": ("h, *, scale=1.0, mask=None", "h, scale=0.9, mask=h > 0", ["h = np.where(mask, h, scale * h)"]),
        "cache": ("h, store", f"h, {store}", ["store.count += 1", "h = h * (1 + 0.1 * store.count)"]),
    }[arguments]

    def fill(inner: Scope) -> None:
        if arguments == "container":
            h, whole, _, half = taken(box, "given", 4)
            inner(f"h = {h} * {half} + {whole}")
        inner(*lines)
        write_body(inner, c.part("body"))
        container = packed(box, ["h", "np.sum(h**2)", "'text'", "2"]) if box else ""
        inner(f"return {container if results == 'container' else '(h, h)' if results == 'alias' else 'h'}")

    made = s.callable(c, "seg", parameters, fill)
    way = c.pick("way", {"checkpoint": 3, "drop": 2, "adaptive": 1})
    check = c.pick("segment check", {"first": 3, "always": 1, "never": 1})
    if way == "drop":
        s(f"out = remat.drop({made}{'' if check == 'first' else f', check={check!r}'})({call})")
    elif way == "adaptive":
        s(f"out = remat.adaptive_checkpoint({made}, {call}, threshold={(1, 10000)[c.number('threshold', 0, 1)]})")
    else:
        s(f"out = remat.checkpoint({made}, {call})")
    if results == "container":
        h, total, _, number = taken(box, "out", 4)
        s(f"h = {h} * (1 + 0.01 * {number}) + 0.1 * {total}")
    else:
        s("h = out" if results == "bare" else "h = out[0] * np.tanh(out[1])")


@kind(4, "nests")
def loop(s: Scope, c: Choices) -> None:
    length = c.number("length", 1, 6 if s.loops == 0 else 2)
    extra = c.pick("carry", dict.fromkeys(EXTRAS, 1.0) | {"h": 4})
    inputs = c.pick(
        "xs", {"none": 2, "traced": 3, "data": 2, "made": 1, "dict": 2, "records": 1, "dates": 0.5, "labels": 0.5}
    )
    outputs = c.pick("y", {"none": 2, "scalar": 3, "alias": 1, "view": 1, "container": 1.5, "integer": 0.7, "late": 1})
    box = c.pick("container", {"bare": 3, **CONTAINERS} if extra == "h" else CONTAINERS)
    names = ["h"] if extra == "h" else ["h", "e"]

    def fill(inner: Scope) -> None:
        inner(*(f"{name} = {value}" for name, value in zip(names, taken(box, "carry", len(names)), strict=True)))
        inner.index = _take_input(inner, inputs, "e" if extra == "number" else "")
        write_body(inner, c.part("body"))
        inner(*filter(None, [EXTRAS[extra][1]]))
        y = OUTPUTS["scalar" if outputs == "late" and not inner.index else outputs]
        inner(f"return {packed(box, names)}, {y.format(index=inner.index) if outputs == 'late' else y}")

    step = s.callable(c, "step", "carry, x", fill, loop=True)
    traced = s.captured(c.part("xs"), s.parameter(f"{length}, 4"), "xs") if inputs in ("traced", "made", "dict") else ""
    xs = INPUTS[inputs].format(traced, length) or f"length={length}"
    init = packed(box, names[:1] + [EXTRAS[extra][0]] * (extra != "h"))
    s(f"carry, ys = remat.scan({step}, {init}, {xs}, {_budget(c, length)})")
    last = taken(box, "carry", len(names))
    s(f"h = {last[0]}")
    if extra in ("number", "sum", "written", "buffer", "previous"):
        s(f"h = h * (1 + 0.1 * np.sum({last[1]}))")
    if outputs not in ("none", "integer") and c.chance("y is used", 0.8):
        s(f"h = h + 0.1 * np.mean(np.sin({'ys.a' if outputs == 'container' else 'ys'}))")


def _take_input(s: Scope, how: str, number: str) -> str:
    if how == "dict":
        s("h = h + x['x']", "i = int(x['i'])")
        return "i"
    if how == "records":
        s("h = h + x['v']", "i = int(x['at'])")
        return "i"
    if how == "dates":
        s("h = h * (1 + 0.01 * (x - numpy.datetime64('2020-01-01')).astype(float))")
    elif how == "labels":
        s("h = h * (1.1 if x == 'rain' else 0.9)")
    elif how != "none":
        s("h = h + x")
    return number


def _budget(c: Choices, length: int) -> str:
    how = c.pick("budget", {"slots": 5, "memory": 2.5, "plan": 1.5})
    check = c.pick("check", {"first": 4, "always": 1, "never": 1})
    end = "" if check == "first" else f", check={check!r}"
    if how == "memory":
        return f"memory={('4 MiB', '400 KB', '100 KB')[c.number('size', 0, 2)]!r}{end}"
    slots = c.number("slots", 1, length)
    if how == "plan":
        planner = ("binomial", "chunks", "mixed")[c.number("planner", 0, 2)]
        return f"plan=the_plan(remat, {length}, {slots}, {planner!r}){end}"
    return f"slots={slots}{end}"


@kind(1.5, "nests")
def loop_while(s: Scope, c: Choices) -> None:
    box, steps = c.pick("container", CONTAINERS), c.number("length", 1, 5 if s.loops == 0 else 2)
    h, n = taken(box, "carry", 2)

    def fill(inner: Scope) -> None:
        inner(f"h, n = {h}, {n}")
        inner.index = "n"
        write_body(inner, c.part("body"))
        inner(f"return {packed(box, ['h', 'n + 1'])}")

    body = s.callable(c, "body", "carry", fill, loop=True)
    most = f", max_steps={max(1, steps - 1)}" if c.chance("most steps", 0.3) else ""
    slots = c.number("slots", 1, steps)
    s(f"carry = remat.while_loop(lambda carry: {n} < {steps}, {body}, {packed(box, ['h', '0'])}{most}, slots={slots})")
    s(f"h = {h}")


def write_body(s: Scope, c: Choices, most: int = 3) -> None:
    """One to `most` statements."""
    KINDS.write_body(s, c, s.banned | ({"nests"} if s.depth >= 3 else set()), most)
