"""Statements that compute: each makes a new `h`, of shape (3, 4), from the one that is there."""

from tests.random_programs.choices import Choices
from tests.random_programs.kinds import Kinds
from tests.random_programs.torch_scope import Scope

KINDS: Kinds[Scope] = Kinds()
kind = KINDS.kind


def write_body(s: Scope, c: Choices, most: int = 3) -> None:
    """One to `most` statements."""
    KINDS.write_body(s, c, s.banned | ({"nests"} if s.depth >= 3 else set()), most)


@kind(3)
def linear(s: Scope, c: Choices) -> None:
    s(f"h = torch.tanh(h @ {s.weight(c)} + {s.weight(c.part('bias'), '4')})")


@kind(2)
def smooth(s: Scope, c: Choices) -> None:
    how = c.number("smooth", 0, 4)
    s(
        "h = torch.sin(h) + 0.1 * h.exp().clamp(max=2.0)" if how == 0
        else "h = F.softmax(h, -1) * h" if how == 1
        else f"h = F.layer_norm(h, (4,), {s.weight(c, '4')})" if how == 2
        else "h = h / (1 + h.pow(2).sum(-1, keepdim=True)).sqrt()" if how == 3
        else f"h = torch.where(h > 0, h, 0.3 * h * {s.weight(c, '4')})"
    )  # fmt: skip


@kind(2)
def made(s: Scope, c: Choices) -> None:
    """A tensor that was computed outside, from a leaf or from the value there; used in all steps or in some."""
    leaf = s.create("m", "torch.randn(3, 4).requires_grad_()")
    outside = leaf.replace("self.", f"{s.instance}.") if s.instance else leaf
    value = c.pick("made of", {"leaf": 3, "value": 2, "both": 1})
    text = {"leaf": f"torch.tanh({outside})", "value": "torch.sigmoid(h)", "both": f"torch.sin({outside} * h)"}[value]
    name = s.captured(c, text)
    use = f"h = h + 0.5 * {name}" if c.chance("made once more", 0.5) else f"h = torch.tanh(h * {name})"
    if value != "value" and c.chance("leaf behind made", 0.3):
        use += f" * {leaf}"
    if s.index and c.chance("made in some steps", 0.5):
        with s.out.block(f"if {s.index} {('>= 1', '== 0', '% 2 == 1', '>= 9')[c.number('when', 0, 3)]}:"):
            s(use)
    else:
        s(use)


@kind(2)
def view(s: Scope, c: Choices) -> None:
    how = c.number("view", 0, 4)
    if how == 0:
        s("a, b = h[:, :2], h[:, 2:]", "h = torch.cat([b * 1.1, torch.sin(a)], 1)")
    elif how == 1:
        s("h = h.t().reshape(2, 6).t().reshape(3, 4) * 0.9")
    elif how == 2:
        s("a, b = h.unbind(0)[:2]", "h = h + torch.outer(torch.ones(3), a * b)")
    elif how == 3:
        s("h = torch.sin(h)[[2, 0, 1]].expand(2, 3, 4).mean(0)")
    else:
        s(f"h = {s.weight(c, '1, 4')}.expand(3, 4) * h", "h = h.flip(0)")


@kind(2)
def in_place(s: Scope, c: Choices) -> None:
    how = c.number("in place", 0, 3)
    if how == 0:
        s("t = h * 1.5", "t += 0.1", f"t.mul_({s.weight(c, '4')})", "h = torch.sin(t)")
    elif how == 1:
        s("t = h.new_zeros(h.shape)", "t[:, 0] = h[:, 1]", f"t[1:] += {s.weight(c, '4')}", "h = h + t * h")
    elif how == 2:
        s("t = torch.sin(h)", "row = t[0]", "row.mul_(2.0)", "h = F.relu_(t + 0.5)")
    else:
        s("t = h.new_empty(h.shape)", "t.copy_(h)", "t[:, :2].tanh_()", "h = t")


@kind(1.5)
def no_gradient(s: Scope, c: Choices) -> None:
    how = c.number("no gradient", 0, 3)
    if how == 0:
        with s.out.block("with torch.no_grad():"):
            s(f"a = torch.sin(h @ {s.weight(c)})")
        s("h = h * a")
    elif how == 1:
        s("h = h + torch.sin(h.detach())")
    elif how == 2:
        with s.out.block("with torch.set_grad_enabled(torch.is_grad_enabled() and float(h.detach().sum()) > -1.0):"
                         if "data" not in s.banned else "with torch.no_grad():"):  # fmt: skip
            s(f"h = torch.tanh(h @ {s.weight(c)})")
        s(f"h = h + {s.weight(c.part('more'), '4')}")
    else:
        s("h = torch.tanh(h.detach())" if c.chance("cuts the graph", 0.3) else "h = h * h.detach().pow(2)")


@kind(1)
def custom_function(s: Scope, c: Choices) -> None:
    s("h = 0.5 * Cubed.apply(h)" if c.number("custom", 0, 1) == 0 else "h = Odd.apply(h, 0.7)")


@kind(1, "inner")
def inner_gradient(s: Scope, c: Choices) -> None:
    """A force: the gradient of an energy, by autograd itself, as part of the graph or without it, or by torch.func."""
    how = c.pick("inner", {"graph": 1, "detached": 1, "func": 1})
    weight = s.weight(c)
    if how == "func":
        s(f"h = h - 0.1 * torch.func.grad(lambda q: torch.tanh(q @ {weight}).pow(2).sum())(h)")
        return
    with s.out.block("with torch.enable_grad():"):
        if how == "graph":
            s("q = h if h.requires_grad else h.detach().requires_grad_()")
            s(f"(slope,) = torch.autograd.grad(torch.tanh(q @ {weight}).pow(2).sum(), q, create_graph=True)")
        else:
            s("q = h.detach().requires_grad_()")
            s(f"(slope,) = torch.autograd.grad(torch.tanh(q @ {weight}).pow(2).sum(), q)")
    s("h = torch.sin(h) - 0.1 * slope" if how == "graph" else "h = torch.tanh(h) - 0.1 * slope")


@kind(1.2, "random")
def dropout(s: Scope, c: Choices) -> None:
    how = c.number("dropout", 0, 2)
    training = f"{s.owner}.training" if s.base == "Module" and s.instance else "True"
    if how == 0:
        s(f"h = F.dropout(h, 0.4, training={training})")
    elif how == 1:
        s(f"h = {s.create('dropout', 'nn.Dropout(0.3)')}(h)")
    else:
        s("h = h * F.dropout(torch.ones(4), 0.25)")


@kind(1.2, "random")
def noise(s: Scope, c: Choices) -> None:
    how = c.number("noise", 0, 5)
    if how == 0:
        s("h = h + 0.1 * torch.randn(3, 4)")
    elif how == 1:
        generator = s.create("generator", "torch.Generator().manual_seed(5)")
        s(f"h = h * (1 + 0.1 * torch.rand(3, 4, generator={generator}))")
    elif how == 2:
        s("h = h * (1 + 0.1 * numpy.random.rand())")
    elif how == 3:
        s("h = h * random.uniform(0.8, 1.2)")
    elif how == 4:
        s(f"h = h * {s.create('rng', 'numpy.random.default_rng(4)')}.normal()")
    else:
        s("h = F.relu(h) if random.random() < 0.5 else torch.sin(h)")


@kind(1, "stats")
def batch_norm(s: Scope, c: Choices) -> None:
    momentum = ", momentum=None" if c.chance("cumulative", 0.2) else ""
    norm = s.create("norm", f"nn.BatchNorm1d(4{momentum})")
    if c.chance("norm in eval mode", 0.25):
        s.init(f"{norm}.eval()")
    s(f"h = {norm}(h)")


@kind(1.2)
def layer(s: Scope, c: Choices) -> None:
    """Layers of torch.nn, also one whose weight is computed from others."""
    how = c.pick("layer", {"Linear": 3, "GRUCell": 1, "Sequential": 1, "weight_norm": 1, "attention": 1})
    if how == "attention":
        s(f"h = {s.create('attention', 'nn.MultiheadAttention(4, 2)')}(h, h, h)[0]")
    elif how == "GRUCell":
        s(f"h = {s.create('cell', 'nn.GRUCell(4, 4)')}(torch.sin(h), h)")
    else:
        text = {
            "Linear": "nn.Linear(4, 4)",
            "Sequential": "nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 4))",
            "weight_norm": "nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))",
        }[how]
        s(f"h = torch.tanh({s.create('layer', text)}(h))")


@kind(2, "float64")
def inner_autocast(s: Scope, c: Choices) -> None:
    with s.out.block(f"with torch.autocast('cpu', torch.bfloat16, enabled={c.number('off', 0, 3) > 0}):"):
        s(f"h = h.to(FLOAT) @ {s.weight(c)}")
    s("h = torch.tanh(h.to(FLOAT))")
