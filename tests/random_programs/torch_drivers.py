"""The ways in which a random program is differentiated, and what the user does before the backward."""

from tests.random_programs.choices import Choices
from tests.random_programs.source import Source
from tests.random_programs.torch_scope import TorchParts

CHANGES = {
    "nothing": 6, "eval": 1, "freeze": 1, "forward again": 1, "attributes": 1, "random numbers": 1, "hook added": 1,
    "parameters replaced": 1, "dropout changed": 0.5,
}  # fmt: skip


def write_driver(text: Source, c: Choices, driver: str, parts: TorchParts, autocast: bool) -> None:
    call = "loss, out = forward(u)"
    if autocast:
        text("autocast = torch.autocast('cpu', torch.bfloat16)")
        with text.block("with autocast:"):
            text(call)
    elif driver not in ("func", "vmap", "train", "inference"):
        with text.block("with remat.profile():" if c.chance("profile", 0.05) else "if True:"):
            text(call)
    if driver in ("backward", "grad", "twice"):
        _change(text, c, parts)
    WRITERS[driver](text, c)


def _change(text: Source, c: Choices, parts: TorchParts) -> None:
    """What the user does between the call and its backward."""
    change = c.pick("change", CHANGES)
    if change == "eval":
        text(*(f"{block}.eval()" for block in parts.blocks))
    elif change == "freeze":
        text("for leaf in leaves_of(u)[::2]:", "    leaf.requires_grad_(False)")
    elif change == "forward again":
        with text.block("with torch.no_grad():" if c.chance("without gradient", 0.5) else "if True:"):
            text("forward(u)")
    elif change == "random numbers":
        text("torch.rand(3), random.random(), numpy.random.rand()")
    elif change == "hook added":
        text("u.added = Calls()", "for leaf in leaves_of(u):", "    leaf.register_hook(u.added)")
    elif change == "attributes":
        with text.block(f"for owner in [u, {', '.join(parts.blocks)}]:"), text.block("for name in list(vars(owner)):"):
            text("if type(vars(owner)[name]) in (int, float):", "    setattr(owner, name, vars(owner)[name] + 3)")
    elif change == "parameters replaced":
        text("u.old = []")
        with (
            text.block(f"for block in [{', '.join(parts.blocks)}]:"),
            text.block("for name in list(block._parameters):"),
        ):
            text("u.old.append(getattr(block, name))")
            text("setattr(block, name, nn.Parameter(torch.ones_like(u.old[-1])))")
    elif change == "dropout changed":
        text("for value in vars(u).values():", "    if isinstance(value, nn.Dropout):", "        value.p = 0.9")


def _backward(text: Source, c: Choices) -> None:
    text("(loss + losses_of(u)).backward()", "return loss, out")


def _grad(text: Source, c: Choices) -> None:
    some = "[::2]" if c.chance("some leaves", 0.4) else ""
    text(
        f"grads = torch.autograd.grad(loss + losses_of(u), leaves_of(u){some}, allow_unused=True)",
        "return loss, out, grads",
    )


def _twice(text: Source, c: Choices) -> None:
    text("loss.backward(retain_graph=True)", "loss.backward()", "return loss, out")


def _two_losses(text: Source, c: Choices) -> None:
    text("out[0].sum().backward(retain_graph=True)", "loss.backward()", "return loss, out")


def _second(text: Source, c: Choices) -> None:
    text("grads = torch.autograd.grad(loss, leaves_of(u), create_graph=True, allow_unused=True)")
    text("again = sum(g.pow(2).sum() for g in grads if g is not None and g.requires_grad)")
    text("(loss + again).backward()", "return loss, out, grads")


def _train(text: Source, c: Choices) -> None:
    text("losses = []")
    with text.block("for _ in range(3):"):
        text("loss, out = forward(u)", "loss.backward()", "losses.append(loss.detach())")
        with text.block("with torch.no_grad():"):
            text("for leaf in leaves_of(u):", "    if leaf.grad is not None:", "        leaf -= 0.01 * leaf.grad")
            text("        leaf.grad = None")
    text("return losses, out")


def _inference(text: Source, c: Choices) -> None:
    with text.block(f"with torch.{('no_grad', 'inference_mode')[c.number('inference', 0, 1)]}():"):
        text("first = forward(u)")
    text("loss, out = forward(u)", "loss.backward()", "return first, loss, out")


def _functional(text: Source, c: Choices, batched: bool = False) -> None:
    text("given = {name: value.detach() for name, value in vars(u).items() if isinstance(value, torch.Tensor)"
         " and value.requires_grad and value.is_leaf}")  # fmt: skip
    with text.block("def pure(given):"):
        text("v = SimpleNamespace(**{**vars(u), **given})", "loss, out = forward(v)", "return loss")
    transform = c.pick("transform", {"grad": 3, "jacrev": 1, "vjp": 1, "grad of grad": 1})
    if batched:
        text("given = {name: torch.stack([value, value * 0.5]) for name, value in given.items()}")
        text("return torch.func.vmap(torch.func.grad(pure))(given)")
    elif transform == "vjp":
        text("loss, pull = torch.func.vjp(pure, given)", "return loss, pull(torch.ones_like(loss))")
    elif transform == "grad of grad":
        with text.block("def again(given):"):
            text("return sum(g.pow(2).sum() for g in torch.func.grad(pure)(given).values())")
        text("return torch.func.grad(again)(given)")
    else:
        text(f"return torch.func.{transform}(pure)(given)")


def _func(text: Source, c: Choices) -> None:
    _functional(text, c)


def _vmap(text: Source, c: Choices) -> None:
    _functional(text, c, batched=True)


WRITERS = {
    "backward": _backward, "grad": _grad, "twice": _twice, "two losses": _two_losses, "second": _second,
    "train": _train, "inference": _inference, "func": _func, "vmap": _vmap,
}  # fmt: skip
