"""What stands for tensors that a graph saves: holders, how the tensors looked, what they weigh, and savers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from remat.execute.segment import refuse_change, refuse_writing
from remat.execute.summary import change
from remat.frameworks.torch.leaves import late_summary

if TYPE_CHECKING:
    from remat.frameworks.torch.segments import Segment

__all__ = ["Holder", "Looks", "Saver", "Weight"]

with torch.inference_mode(False):
    _ROOT = torch.empty(0, requires_grad=True, device="cpu")  # so that a saver is part of a graph


class Saver(torch.autograd.Function):
    """A node that saves tensors as any other one does: through the hooks that are on, with a look at their versions."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, *tensors: Tensor) -> Tensor:
        """An empty tensor, whose node holds the others."""
        ctx.save_for_backward(*tensors)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Nobody asks for it."""
        raise AssertionError("a saver has no gradient")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Nothing depends on it."""
        return torch.zeros(0, device="cpu")

    @staticmethod
    def keep(tensors: Sequence[Tensor]) -> Tensor | None:
        """Save tensors."""
        saved: Tensor | None = Saver.apply(_ROOT, *tensors) if tensors else None  # type: ignore[no-untyped-call]
        return saved

    @staticmethod
    def kept(saver: Tensor | None) -> tuple[Tensor, ...]:
        """The tensors that were saved."""
        return () if saver is None else saver.grad_fn.saved_tensors  # type: ignore[union-attr]


class Holder:
    """Stands for one tensor that a graph saves; `values` are those that were computed again, by backward."""

    __slots__ = ("__weakref__", "index", "saved", "segment", "values")

    def __init__(self, segment: "Segment", index: int) -> None:
        self.segment, self.index = segment, index
        self.values: dict[int, Tensor] = {}
        self.saved: Tensor | None = None  # the tensor while the segment is undecided, then its saver if it is kept

    def keep(self) -> None:
        """Save the tensor as plain autograd does."""
        assert self.saved is not None
        self.saved = Saver.keep([self.saved])

    def value(self) -> Tensor:
        """The tensor that is held or saved."""
        assert self.saved is not None
        return self.saved if self.saved.grad_fn is None else Saver.kept(self.saved)[0]


class Looks:
    """What a saved tensor looked like: shape, dtype, device; a parameter's version; with `checked` its values too."""

    __slots__ = ("device", "dtype", "noted", "shape", "version")

    def __init__(self, tensor: Tensor, *, checked: bool) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.version = _version(tensor)
        self.noted = late_summary(tensor) if checked and _comparable(tensor) else None

    def compare(self, tensor: Tensor, name: str, index: int, count: int) -> None:
        """Raise an error if a tensor that was saved again looks different."""
        if tensor.shape != self.shape or tensor.dtype != self.dtype or tensor.device != self.device:
            refuse_change(
                name,
                f"tensor {index} of the {count} that it saves for its backward was "
                f"{_shown(self)} and became {_shown(tensor)}",
            )
        version = _version(tensor)
        if version != self.version and version is not None and self.version is not None:
            what = f"a parameter that it uses ({_shown(self)}, version {self.version}, now {version})"
            raise refuse_writing(name, what, "since it was first run", "Call backward before the parameters change")

    @staticmethod
    def compare_values(looks: Sequence["Looks"], found: Sequence[tuple[int, Tensor, Tensor]], name: str) -> None:
        """Raise a DeterminismError if one of these tensors, with their summaries, has other values than it had."""
        for device in {number.device for _, _, number in found}:  # one wait for each
            here = [each for each in found if each[2].device == device]
            pairs = [(now, looks[index].noted) for index, _, now in here]
            rows = torch.stack([torch.stack([now, then]) for now, then in pairs if then is not None])
            for (index, tensor, _), (now, then) in zip(here, rows.tolist(), strict=True):
                if now == then:
                    continue
                eps = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 2.0**-52
                far = change(now, then, float(late_summary(tensor, of_sizes=True)), eps**0.75)
                if far:
                    refuse_change(
                        name,
                        f"tensor {index} of the {len(looks)} that it saves for its backward, {_shown(tensor)}, "
                        f"was another one by {far:.1g} of its size",
                    )


def _version(tensor: Tensor) -> int | None:
    """How often a parameter was written into, or one that this is a view of; None for what a segment computes."""
    origin = tensor if tensor._base is None else tensor._base
    return origin._version if origin.is_leaf and origin.requires_grad else None


def _comparable(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta


def _shown(tensor: Any) -> str:
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{where}"


class Weight:
    """Bytes that plain autograd would keep for a segment: each storage once, without inputs and parameters."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.bytes = 0
        self._seen: dict[
            int, StorageWeakRef
        ] = {}  # weak references keep the address of a storage from being used again
        for tensor in inputs:
            self._is_new(tensor)

    def add(self, tensor: Tensor) -> None:
        """Count a tensor that is saved."""
        if _version(tensor) is None and self._is_new(tensor):
            self.bytes += tensor.untyped_storage().nbytes()

    def _is_new(self, tensor: Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        held = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return self._seen.setdefault(held.cdata, held) is held
