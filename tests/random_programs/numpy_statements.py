"""Statements of random NumPy programs: each makes a new `h` of 4 numbers from the one that is there."""

from tests.random_programs.choices import Choices
from tests.random_programs.kinds import Kinds
from tests.random_programs.numpy_scope import Scope

KINDS: Kinds[Scope] = Kinds()
kind = KINDS.kind


@kind(3)
def linear(s: Scope, c: Choices) -> None:
    s(f"h = np.tanh(np.dot(h, {s.weight(c)}) + {s.weight(c.part('bias'), '4')})")


@kind(2)
def smooth(s: Scope, c: Choices) -> None:
    s(
        (
            "h = np.sin(h) + 0.1 * np.exp(-(h**2))",
            "h = h / np.sqrt(1 + np.sum(h**2))",
            f"h = np.where(h > 0, h, 0.3 * h * {s.weight(c, '4')})",
            "h = 0.5 * cubed(np.sin(h))",
        )[c.number("smooth", 0, 3)]
    )


@kind(2)
def made(s: Scope, c: Choices) -> None:
    """A value that was computed outside; used in all steps or in some."""
    leaf = s.parameter("4")
    value = ("np.tanh({})", "np.sin({} * h)", "np.cos(h) + 0 * {}")[c.number("made of", 0, 2)].format(leaf)
    use = f"h = h + 0.5 * {s.captured(c, value)}"
    if s.index and c.chance("made in some steps", 0.5):
        with s.out.block(f"if {s.index} {('>= 1', '== 0', '% 2 == 1')[c.number('when', 0, 2)]}:"):
            s(use)
    else:
        s(use)


@kind(1.5)
def view(s: Scope, c: Choices) -> None:
    s(
        (
            "h = np.concatenate([h[2:], np.sin(h[:2])])",
            "h = np.reshape(np.reshape(h, (2, 2)).T, (4,)) * 0.9",
            "h = h[np.array([3, 1, 0, 2])]",
            "h = h[::-1] + h[0] * h",
        )[c.number("view", 0, 3)]
    )


@kind(1.5)
def in_place(s: Scope, c: Choices) -> None:
    """Writing into new arrays, also into one that has another name."""
    s(
        *(
            ("t = np.sin(h)", "t += 0.1", "t *= 1.1", "h = t"),
            ("t = numpy.zeros(4)", "t[1:3] = 0.5", "h = h + t"),
            ("t = kept = np.sin(h)", "t += 0.1", "h = t * kept"),
        )[c.number("in place", 0, 2)]
    )


@kind(1, "writes")
def writes_traced(s: Scope, c: Choices) -> None:
    """Operators that write in place, and that make new arrays where autograd traces them."""
    if c.chance("writes into what it captured", 0.5):
        s(f"r = {s.captured(c, s.parameter('4'), 'near')}", "r -= 0.5 * h", "h = h + 0.1 * r")
    else:
        s("h += 0.1", f"h *= {s.weight(c, '4')}")


@kind(1, "inner")
def constants(s: Scope, c: Choices) -> None:
    s("h = h * (1 + 0.1 * np.sum(constant(h)))" if c.chance("of the value", 0.5) else "h = h + numpy.ones(4)")


@kind(1, "inner")
def inner_gradient(s: Scope, c: Choices) -> None:
    """A force: the gradient of an energy."""
    s(f"w = {s.weight(c)}", "h = h - 0.1 * grad(lambda q: np.sum(np.tanh(np.dot(q, w)) ** 2))(h)")


@kind(1.5, "random")
def noise(s: Scope, c: Choices) -> None:
    how = c.number("noise", 0, 4)
    if how == 0:
        s("h = h + 0.1 * numpy.random.normal(size=4)")
    elif how == 1:
        s("h = h * random.uniform(0.8, 1.2)")
    elif how == 2:
        s(f"h = h + 0.1 * {s.create('rng', 'numpy.random.default_rng(3)')}.normal(size=4)")
    elif how == 3:
        s(f"h = h * (1 + 0.1 * {s.create('state', 'numpy.random.RandomState(3)')}.rand(4))")
    else:
        s(f"h = np.sin(h) if {s.create('dice', 'random.Random(3)')}.random() < 0.5 else h")


@kind(1.2, "state")
def counter(s: Scope, c: Choices) -> None:
    count = s.create("count", "0") if c.chance("in an attribute", 0.5) else s.create("state", "Box(count=0)") + ".count"
    s(f"{count} += 1", f"h = h * (1 + 0.01 * {count})")


@kind(1, "state")
def log(s: Scope, c: Choices) -> None:
    name = s.create("log", "[]")
    s(f"{name}.append({('float(np.sum(constant(h)))', 'constant(h)')[c.number('logged', 0, 1)]})")
    if c.chance("log counts", 0.5):
        s(f"h = h * (1 - 0.01 * len({name}))")


@kind(0.8, "state")
def flag(s: Scope, c: Choices) -> None:
    on = s.create("on", "False")
    s(
        f"scale = 2.0 if {on} else 1.0",
        f"{on} = True",
        f"h = np.tanh(np.dot(h, {s.weight(c)})) * scale",
        f"{on} = False",
    )


@kind(0.8, "state")
def first_use(s: Scope, c: Choices) -> None:
    table = s.create("table", "None")
    with s.out.block(f"if {table} is None:"):
        s(f"{table} = {('numpy.linspace(0, 1, 4)', 'constant(h)')[c.number('first', 0, 1)]}")
    s(f"h = h + 0.5 * {table}")


@kind(0.8, "state")
def average(s: Scope, c: Choices) -> None:
    """A running average, replaced by a new array."""
    name = s.create("average", "numpy.zeros(4)")
    s(f"{name} = 0.9 * {name} + 0.1 * constant(h)", f"h = h - 0.3 * {name}")
