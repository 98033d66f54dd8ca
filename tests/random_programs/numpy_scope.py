"""Where a statement of a random NumPy program stands, and how it gets at traced values."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.random_programs.choices import Choices
from tests.random_programs.source import Parts, Source

REACHED = {"parameters": 4, "local": 2, "list": 1, "dict": 1, "object": 1, "default": 1, "partial": 1, "tuple": 0.7}
CALLABLES = {"function": 4, "method": 1.5}


@dataclass
class Scope:
    """A function that is being written: its lines, and those before it in the function around it."""

    parts: Parts
    out: Source
    depth: int = 0
    index: str = ""
    loops: int = 0
    banned: frozenset[str] = frozenset()
    instance: str = ""  # for methods: the object that they belong to, as seen from outside
    before: list[str] = field(default_factory=list)
    partials: list[tuple[str, str]] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)

    def __call__(self, *lines: str) -> None:
        self.out(*lines)

    @property
    def owner(self) -> str:
        return "self" if self.instance else "u"

    def create(self, stem: str, value: str) -> str:
        """An object of the user's, made before the program runs."""
        name = self.parts.fresh(stem)
        self.parts.make(f"{self.instance or 'u'}.{name} = {value}")
        return f"{self.owner}.{name}"

    def parameter(self, shape: str = "4, 4") -> str:
        """A traced array, as the outermost function sees it."""
        name = self.parts.fresh("w")
        self.parts.make(f"p[{name!r}] = 0.5 * rng.normal(size=({shape}))")
        return f"p[{name!r}]"

    def weight(self, c: Choices, shape: str = "4, 4") -> str:
        """An expression for an array, traced or not."""
        if c.chance("constant array", 0.2):
            return self.create("c", f"0.5 * rng.normal(size=({shape}))")
        return self.captured(c, self.parameter(shape), "near")

    def captured(self, c: Choices, value: str, stem: str = "made") -> str:
        """An expression for a value that is computed in the function around this one."""
        name = self.parts.fresh(stem)
        if self.instance:
            self.outside(f"{self.instance}.{name} = {value}")
            return f"self.{name}"
        how = c.pick("captured", REACHED, frozenset(() if self.depth else ("default", "partial")))
        if how == "parameters" and value.startswith("p["):
            return value
        text = {"list": f"[{value}]", "dict": f"{{'{{a}}': [{value}]}}", "tuple": f"({value}, None)"}
        self.outside(f"{name} = {text.get(how, f'Box(value={value})' if how == 'object' else value)}")
        if how == "default":
            self.defaults.append(f"{name}={name}")
        if how == "partial":
            self.partials.append((f"given_{name}", name))
            return f"given_{name}"
        return name + {"list": "[0]", "dict": "['{a}'][0]", "object": ".value", "tuple": "[0]"}.get(how, "")

    def outside(self, line: str) -> None:
        """A line before this function, in the one around it; the outermost one has none."""
        if self.depth:
            self.before.append(line)
        else:
            self(line)

    def callable(self, c: Choices, stem: str, parameters: str, fill: "Fill", loop: bool = False) -> str:
        """A function or a method that `fill` writes; an expression for it. `loop`: it is the step of one."""
        # A method does not see the parameters of the functions around it, so that it has no functions in it.
        if not self.instance and self.depth == 0 and c.pick("callable", CALLABLES) == "method":
            return self._method(stem, parameters, fill, loop)
        name, body = self.parts.fresh(stem), Source()
        loops, index = self.loops + loop, "" if loop else self.index
        scope = Scope(self.parts, body, self.depth + 1, index, loops, self.banned)
        fill(scope)
        self(*scope.before)
        given = "".join(f"{parameter}, " for parameter, _ in scope.partials)
        star = ", " if "*" in parameters else ", *, "
        defaults = star + ", ".join(scope.defaults) if scope.defaults else ""
        with self.out.block(f"def {name}({given}{parameters}{defaults}):"):
            self(*body.lines)
        values = "".join(f", {value}" for _, value in scope.partials)
        return f"partial({name}{values})" if scope.partials else name

    def _method(self, stem: str, parameters: str, fill: "Fill", loop: bool) -> str:
        name, body = self.parts.fresh(stem.capitalize()), Source()
        holder = f"u.{name.lower()}"
        self.parts.make(f"{holder} = {name}()")
        scope = Scope(self.parts, body, self.depth + 1, "", self.loops + loop, self.banned | {"nests"}, holder)
        fill(scope)
        with self.parts.classes.block(f"class {name}:"), self.parts.classes.block(f"def run(self, {parameters}):"):
            self.parts.classes(*body.lines)
        self(*scope.before)
        return f"{holder}.run"


Fill = Callable[[Scope], None]
