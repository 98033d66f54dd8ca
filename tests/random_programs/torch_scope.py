"""Where a statement of a random PyTorch program stands: in which function, whose objects it uses, how it gets there."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.random_programs.choices import Choices
from tests.random_programs.source import Parts, Source

REACHED = {"attribute": 5, "local": 2, "list": 1, "dict": 1, "global": 0.7, "frozenset": 0.5}
CAPTURED = {"local": 4, "list": 1, "dict": 1, "attribute": 1.5, "frozenset": 1, "default": 1, "partial": 1, "object": 1}
CALLABLES = {"function": 5, "module": 4, "method": 1.5}


@dataclass
class TorchParts(Parts):
    """The parts of a program's text, and what of the user's was made so far."""

    blocks: list[str] = field(default_factory=list)  # the user's modules
    tied: dict[str, list[str]] = field(default_factory=dict)  # leaves of the user's namespace, by shape


@dataclass
class Scope:
    """A function that is being written: its lines, and those before it in the function around it."""

    parts: TorchParts
    out: Source
    init: Source  # where its objects are made
    owner: str = "u"  # what holds its objects: the namespace of the user, or self
    base: str = ""  # for methods: "Module" or "object"
    depth: int = 0
    index: str = ""  # the number of the step, in a loop
    loops: int = 0
    banned: frozenset[str] = frozenset()
    before: list[str] = field(default_factory=list)  # lines that make what this function closes over
    instance: str = ""  # for methods: the object that they belong to, as seen from outside
    partials: list[tuple[str, str]] = field(default_factory=list)  # parameters that functools.partial gives
    defaults: list[str] = field(default_factory=list)

    def __call__(self, *lines: str) -> None:
        self.out(*lines)

    def create(self, stem: str, value: str) -> str:
        """An object of the user's, made before the program runs."""
        name = self.parts.fresh(stem)
        self.init(f"{self.owner}.{name} = {value}")
        return f"{self.owner}.{name}"

    def weight(self, c: Choices, shape: str = "4, 4") -> str:
        """An expression for a leaf."""
        known = self.parts.tied.get(shape, [])
        if self.owner == "u" and known and c.chance("tied", 0.15):
            return known[c.number("tie", 0, len(known) - 1)]
        leaf = f"torch.randn({shape}).mul(0.4)"
        if not c.chance("frozen", 0.12):
            leaf += ".requires_grad_()"
        how = c.pick("reached", REACHED, frozenset({"local"} if self.base or self.instance else ()))
        if how == "list":
            return self.create("some", f"[{leaf}, None]") + "[0]"
        if how == "dict":
            return self.create("table", f"{{'w': {leaf}}}") + "['w']"
        if how == "frozenset":
            return f"next(iter({self.create('frozen', f'frozenset([{leaf}])')}))"
        if self.base == "Module" and how == "attribute" and "requires_grad_" in leaf:
            leaf = f"nn.Parameter({leaf.removesuffix('.requires_grad_()')})"
        made = self.create("w", leaf)
        if self.owner == "u":
            self.parts.tied.setdefault(shape, []).append(made)
        if how == "global":
            name = self.parts.fresh("W")
            self.init(f"globals()[{name!r}] = {made}")
            return name
        if how == "local":
            name = self.parts.fresh("near")
            self._outside(f"{name} = {made}")
            return name
        return made

    def captured(self, c: Choices, value: str, stem: str = "made") -> str:
        """An expression for a value that is computed in the function around this one, before it is called."""
        name = self.parts.fresh(stem)
        if self.instance:
            self._outside(f"{self.instance}.{name} = {value}")
            return f"self.{name}"
        how = c.pick("captured", CAPTURED, frozenset(() if self.depth else ("default", "partial")))
        text = {"list": f"[{value}]", "dict": f"{{'{{a}}': [{value}]}}", "frozenset": f"frozenset([{value}])"}
        self._outside(f"{name} = {text.get(how, f'Box(value={value})' if how == 'object' else value)}")
        if how == "attribute" and self.owner == "u":
            self._outside(f"u.{name} = {name}")
            return f"u.{name}"
        if how == "default":
            self.defaults.append(f"{name}={name}")
        if how == "partial":
            self.partials.append((f"given_{name}", name))
            return f"given_{name}"
        ends = {"list": "[0]", "dict": "['{a}'][0]", "object": ".value"}
        return f"next(iter({name}))" if how == "frozenset" else name + ends.get(how, "")

    def _outside(self, line: str) -> None:
        """A line before this function, in the one around it; the outermost one has none."""
        if self.depth:
            self.before.append(line)
        else:
            self(line)

    def callable(
        self, c: Choices, stem: str, parameters: str, fill: Callable[["Scope"], None], loop: bool = False
    ) -> str:
        """A function, a module or a method that `fill` writes; an expression for it. `loop`: it is the step of one."""
        kind, loops = c.pick("callable", CALLABLES), self.loops + loop
        if kind == "function":
            return self._function(stem, parameters, fill, loops)
        name, base = self.parts.fresh(stem.capitalize()), "Module" if kind == "module" else "object"
        holder = self.create(stem, f"{name}()")
        body, init = Source(), Source()
        scope = Scope(self.parts, body, init, "self", base, self.depth + 1, "", loops, self.banned, instance=holder)
        fill(scope)
        classes = self.parts.classes
        with classes.block(f"class {name}({'nn.Module' if kind == 'module' else ''}):"):
            with classes.block("def __init__(self):"):
                classes(*(["super().__init__()"] if kind == "module" else []), *init.lines)
            with classes.block(f"def {'forward' if kind == 'module' else 'run'}(self, {parameters}):"):
                classes(*body.lines)
        self(*scope.before)
        if kind == "module" and self.owner == "u":
            self.parts.blocks.append(holder)
            if c.chance("module hook", 0.15):
                seen = self.create("seen", "[]")
                self.init(f"{holder}.register_forward_hook(lambda *args, seen={seen}: seen.append(len(seen)))")
        return holder if kind == "module" else f"{holder}.run"

    def _function(self, stem: str, parameters: str, fill: "Fill", loops: int) -> str:
        name, body = self.parts.fresh(stem), Source()
        depth, index = self.depth + 1, self.index if loops == self.loops else ""
        scope = Scope(self.parts, body, self.init, self.owner, self.base, depth, index, loops, self.banned)
        fill(scope)
        self(*scope.before)
        given = "".join(f"{parameter}, " for parameter, _ in scope.partials)
        star = ", " if "*" in parameters else ", *, "
        defaults = star + ", ".join(scope.defaults) if scope.defaults else ""
        with self.out.block(f"def {name}({given}{parameters}{defaults}):"):
            self(*body.lines)
        values = "".join(f", {value}" for _, value in scope.partials)
        return f"partial({name}{values})" if scope.partials else name


Fill = Callable[[Scope], None]
