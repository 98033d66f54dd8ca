"""What random programs on PyTorch import: classes of the user's, and the way they are run."""

import random
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from tests.random_programs.observe import Seen, global_state, observed
from tests.random_programs.plain import Plain
from tests.random_programs.user_objects import D1, D2, D3, D4, P1, P2, P3, P4, Box
from tests.random_programs.verdict import Program

__all__ = [
    "D1",
    "D2",
    "D3",
    "D4",
    "P1",
    "P2",
    "P3",
    "P4",
    "Box",
    "Calls",
    "Cubed",
    "Odd",
    "late_zero",
    "leaves_of",
    "losses_of",
    "the_plan",
]


class Calls:
    """How often something was called with a gradient that is not zero. It has no `__dict__`: nobody puts it back."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, bar: torch.Tensor) -> None:
        self.count += bool(bar.count_nonzero())


class _Custom(torch.autograd.Function):
    generate_vmap_rule = True

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Under `no_grad` torch.func cuts other operations off from all transforms, and these from the innermost."""
        out = super().apply(*args)  # type: ignore[no-untyped-call]
        return out if torch.is_grad_enabled() else out.detach()


class Cubed(_Custom):
    @staticmethod
    def forward(x: Any) -> Any:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * bar


class Odd(_Custom):
    """Its backward is not its derivative, and reads a number and an output."""

    @staticmethod
    def forward(x: Any, scale: float) -> Any:
        return torch.tanh(x) * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, bar: Any) -> Any:
        (y,) = ctx.saved_tensors
        return bar * (1 + y) * ctx.scale, None


def late_zero(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=like.dtype)


def the_plan(remat: Any, length: int, slots: int, planner: str) -> Any:
    """A plan of one's own; plain loops need none."""
    if isinstance(remat, Plain):
        return None
    import remat as real

    try:
        return real.plan(real.Loop(length), slots=slots, planner=planner)
    except real.InfeasibleError:
        return real.plan(real.Loop(length), slots=slots, planner="binomial")


def losses_of(user: Any) -> Any:
    """A tenth of the losses that were put into lists."""
    lists = [value for owner in _objects(user) for name, value in vars(owner).items() if name.startswith("losses")]
    return 0.1 * sum(loss for losses in lists for loss in losses)


def _objects(owner: Any) -> list[Any]:
    inside = [*vars(owner).values(), *getattr(owner, "_modules", {}).values()]
    return [owner, *(o for v in inside if type(v).__module__ == "random_program" for o in _objects(v))]


def leaves_of(user: Any) -> list[torch.Tensor]:
    """The leaves that require a gradient, each once, in the order of their names."""
    return _leaves(user, set())


def _leaves(value: Any, known: set[int]) -> list[torch.Tensor]:
    if id(value) in known:
        return []
    known.add(id(value))
    if isinstance(value, torch.Tensor):
        return [value] if value.is_leaf and value.requires_grad else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | frozenset) else ()
    if isinstance(value, Box | SimpleNamespace | torch.nn.Module) or type(value).__module__ == "random_program":
        items = [vars(value)[name] for name in sorted(vars(value)) if not name.startswith("dropped")]
    return [leaf for item in items for leaf in _leaves(item, known)]


def _stacked(rows: Any) -> Any:
    return torch.stack(rows) if isinstance(rows[0], torch.Tensor) else torch.tensor(rows)


plain = Plain(_stacked)


def run(program: Program, remat: Any) -> list[Seen]:
    """All that can be seen after the program was run with `remat`, or with what takes its place."""
    default = torch.get_default_dtype()
    random.seed(program.seed), numpy.random.seed(program.seed), torch.manual_seed(program.seed)
    functions = program.loaded(remat)
    torch.set_default_dtype(functions["FLOAT"])
    try:
        user = functions["make"]()
        _shake(user, getattr(remat, "noise", 0.0))
        results = functions["drive"](user)
        # A result is its numbers; whether it is a leaf is nothing that a program relies on.
        given = [seen for seen in observed("result", results) if not seen.path.endswith("grad")]
        # Derivatives of derivatives run steps once more, with their hooks.
        hidden = ("made", "inner") if "driver=second" in program.features else ("made",)
        return [*given, *_seen(user, hidden), *global_state(torch)]
    finally:
        torch.set_default_dtype(default)


def _shake(user: Any, noise: float) -> None:
    """Change parameters by so much of each number, up or down, if it is a double; by as many last bits of others."""
    generator = torch.Generator().manual_seed(0)
    for leaf in [*leaves_of(user), user.start] if noise else []:
        signs = torch.randint(0, 2, leaf.shape, generator=generator) * 2 - 1
        leaf.data *= 1 + signs.to(leaf.dtype) * (noise * 2**52 * torch.finfo(leaf.dtype).eps)


def _seen(user: Any, hidden: tuple[str, ...]) -> list[Seen]:
    """The user's objects. Of a dropped module, beside the module itself, the names in its state.

    What is computed anew in each call, inside of torch.func too, is not compared where it is kept.
    """
    dropped = {name: value for name, value in vars(user).items() if name.startswith("dropped")}
    names = {name: " ".join(getattr(value, "state_dict", dict)()) for name, value in dropped.items()}
    shown = observed("user", {name: value for name, value in vars(user).items() if name not in dropped})
    places = [before + name for name in hidden for before in (".", "['")]
    return [*(seen for seen in shown if not any(place in seen.path for place in places)), *observed("names", names)]
