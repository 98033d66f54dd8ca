"""Statements with effects: Python state, buffers, caches, hooks."""

from tests.random_programs.choices import Choices
from tests.random_programs.torch_scope import Scope
from tests.random_programs.torch_statements import kind


def _holder(s: Scope, c: Choices, **attributes: str) -> str:
    """An object of the user's with these attributes: the owner itself, or a plain object."""
    if c.chance("state in an object", 0.5):
        return s.create("state", f"Box({', '.join(f'{name}={value}' for name, value in attributes.items())})")
    names = {name: s.parts.fresh(name) for name in attributes}
    for name, value in attributes.items():
        s.init(f"{s.owner}.{names[name]} = {value}")
    return f"{s.owner}|{'|'.join(names.values())}"


def _attributes(s: Scope, c: Choices, **attributes: str) -> list[str]:
    holder, *names = _holder(s, c, **attributes).split("|")
    return [f"{holder}.{name}" for name in (names or attributes)]


@kind(1.2, "state")
def counter(s: Scope, c: Choices) -> None:
    (count,) = _attributes(s, c, count="0")
    s(f"{count} += 1", f"h = h * (1 + 0.01 * {count})")


@kind(1, "state")
def detach_by_counter(s: Scope, c: Choices) -> None:
    """Truncated backpropagation: values repeat, gradients would not."""
    (count,) = _attributes(s, c, count="0")
    s(f"{count} += 1")
    with s.out.block(f"if {count} % 3 == 0:"):
        s("h = h.detach()")
    s(f"h = torch.tanh(h @ {s.weight(c)})")


@kind(1, "state", "data")
def log(s: Scope, c: Choices) -> None:
    """A list, a set or a dict that grows, with or without influence on what is computed."""
    how = c.pick("log", {"numbers": 3, "dict": 1, "tensors": 1, "kept": 1})
    if how == "dict":
        (name,) = _attributes(s, c, seen="{}")
        s(f"{name}[len({name})] = float(h.detach().sum())")
    else:
        (name,) = _attributes(s, c, log="[]")
        value = {"numbers": "float(h.detach().mean())", "tensors": "h.detach()", "kept": "h.mean()"}[how]
        s(f"{name}.append({value})")
    if c.chance("log counts", 0.5):
        s(f"h = h * (1 - 0.01 * len({name}))")


@kind(1, "state")
def flag(s: Scope, c: Choices) -> None:
    """A flag that is set and reset: a recomputation that stops early does not get to the reset."""
    (on,) = _attributes(s, c, on="False")
    s(f"scale = 2.0 if {on} else 1.0", f"{on} = True", f"h = torch.tanh(h @ {s.weight(c)}) * scale")
    s(*(["h = h * 1.5"] if c.chance("works before reset", 0.5) else []), f"{on} = False")


@kind(1, "state")
def first_use(s: Scope, c: Choices) -> None:
    """An attribute that is None or absent until the first call fills it."""
    (table,) = _attributes(s, c, table="None")
    value = ("torch.linspace(0, 1, 4)", "h.detach().mean(0)")[c.number("first", 0, 1)]
    with s.out.block(f"if {table} is None:"):
        s(f"{table} = {value}")
    s(f"h = h + {table}")


@kind(1, "state", "stats")
def buffer(s: Scope, c: Choices) -> None:
    """An average of the past in a buffer, a frozen parameter or a plain tensor, written in place or replaced."""
    how = c.pick("buffer", {"in place": 2, "replaced": 1, "data": 1, "frozen parameter": 1, "counts": 1})
    name = s.parts.fresh("average")
    if how == "frozen parameter":
        s.init(f"{s.owner}.{name} = nn.Parameter(torch.zeros(4), requires_grad=False)")
    elif s.base == "Module":
        s.init(f"self.register_buffer({name!r}, torch.zeros(4))")
    else:
        s.init(f"{s.owner}.{name} = torch.zeros(4)")
    target = f"{s.owner}.{name}"
    if how == "replaced":
        s(f"{target} = 0.9 * {target} + 0.1 * h.detach().mean(0)")
    elif how == "data":
        s(f"{target}.data = 0.9 * {target}.data + 0.1 * h.detach().mean(0)")
    elif how == "counts":
        s(f"{target} += 1")
    else:
        with s.out.block("with torch.no_grad():"):
            s(f"{target}.mul_(0.9).add_(0.1 * h.mean(0))")
    s(f"h = h - 0.3 * {target}.clone()" if c.chance("average is used", 0.7) else "h = torch.sin(h)")


@kind(0.7, "state")
def swapped_data(s: Scope, c: Choices) -> None:
    """A weight that is rounded for the time of a call, as in quantisation-aware training."""
    weight = s.create("weight", "nn.Parameter(torch.randn(4, 4))")
    s(f"kept = {weight}.data", f"{weight}.data = (kept * 8).round() / 8")
    s(f"h = torch.tanh(h @ {weight})", f"{weight}.data = kept")


@kind(1.2, "hook")
def hook(s: Scope, c: Choices) -> None:
    """A hook on a value that changes its gradient, sees it, or counts."""
    how = c.pick("hook", {"counts": 1, "scales": 1, "clamps": 1, "logs": 0.7})
    if s.loops and c.chance("hook on what is given", 0.3):
        # A carry that needs no gradient in the first steps may be given as one that does: then nothing is counted.
        action = f"lambda bar: {'bar * 0.7' if how == 'scales' else 'bar.clamp(-0.05, 0.05)'}"
    elif how == "logs":
        action = f"lambda bar, to={s.create('inner', '[]')}: to.append(float(bar.sum()))"
    else:
        result = {"counts": "None", "scales": "bar * 0.7", "clamps": "bar.clamp(-0.05, 0.05)"}[how]
        action = f"lambda bar, calls={s.create('inner', 'Calls()')}: (calls(bar), {result})[1]"
    if "inner" in action:
        s(f"h = h * {s.create('w', 'torch.randn(4).requires_grad_()')}")
    with s.out.block("if h.requires_grad:"):
        s(f"h.register_hook({action})")
    s("h = torch.sin(h) * 1.1")


@kind(1, "hook")
def parameter_hook(s: Scope, c: Choices) -> None:
    """A hook on a leaf: once in a backward, for the whole gradient."""
    calls, weight = s.create("calls", "Calls()"), s.create("w", "torch.randn(4, 4).requires_grad_()")
    if c.chance("post accumulate hook", 0.3):
        s.init(f"{weight}.register_post_accumulate_grad_hook({calls})")
    else:
        result = "bar * 0.5" if c.chance("leaf hook scales", 0.5) else "None"
        s.init(f"{weight}.register_hook(lambda bar, calls={calls}: (calls(bar), {result})[1])")
    s(f"h = torch.tanh(h @ {weight})")


@kind(0.6, "state", "leak", "cache")
def cache(s: Scope, c: Choices) -> None:
    """Keys that are appended to a cache, which the same call attends to. In loops its entries have no graph."""
    (keys,) = _attributes(s, c, keys="None")
    graph = not s.loops and "cached graph" not in s.banned and c.chance("cache with graph", 0.6)
    entry = "h" if graph else "h.detach()"
    s(f"{keys} = {entry} if {keys} is None else torch.cat([{keys}, {entry}])")
    s(f"h = F.softmax(h @ {keys}.t(), -1) @ {keys}")


@kind(0.25, "losses")
def loss_in_list(s: Scope, c: Choices) -> None:
    """A loss that leaves a function by a list of the user's, who adds it to the loss."""
    c.chance(REFUSED_IN_LOOPS if s.loops else "loss in a list", 1.0)
    s(f"{s.create('losses', '[]')}.append(h.pow(2).sum())", "h = torch.sin(h)")


@kind(0.12, "writes")
def written_argument(s: Scope, c: Choices) -> None:
    """Writing into the value there, which may be an argument of this function."""
    c.chance(WRITES, 1.0)
    s("h.mul_(1.1)" if c.number("written", 0, 1) == 0 else "h[0] = 0.5")


# Features that let a program be refused: what a step appends has no graph, and what it is given must stay.
REFUSED_IN_LOOPS, WRITES = "loss of a step in a list", "writes into what it is given"
