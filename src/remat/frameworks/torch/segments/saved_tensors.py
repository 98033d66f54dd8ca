"""Saved tensors of a segment: the node that saves its inputs, holders, and metadata to compare with."""

from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.fingerprint import other_values, relative_difference, tolerance_of
from remat.frameworks.torch.internals.functorch import outside_transforms
from remat.frameworks.torch.internals.graph import base_of, quick_version, version, view_base
from remat.frameworks.torch.internals.storage import local_part, storage_id
from remat.frameworks.torch.leaves import device_fingerprint, eps_of
from remat.frameworks.torch.replay.watch import PLAIN
from remat.segments import mutation_error, raise_nondeterministic

__all__ = [
    "Holder",
    "SaveInputs",
    "SavedParameter",
    "SavedTensors",
    "comparable_storage",
    "describe",
    "fingerprint_differences",
    "made_again",
    "raise_difference",
    "tolerated_difference",
]

with torch.inference_mode(False), outside_transforms():  # the module may be imported inside either
    # An input that requires a gradient, without which `SaveInputs` would create no node.
    _ROOT = torch.empty(0, requires_grad=True, device="cpu")


class SaveInputs(torch.autograd.Function):
    """A node that saves tensors like any other: through the active hooks, and with a check of their versions."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, *tensors: Tensor) -> Tensor:
        """An empty tensor whose node saves the others."""
        # Autograd refuses to save inference tensors, but these cannot change under a graph anyway.
        ctx.inference_tensors = {index: tensor for index, tensor in enumerate(tensors) if tensor.is_inference()}
        ctx.save_for_backward(*(None if tensor.is_inference() else tensor for tensor in tensors))
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Never called: the node only saves tensors (cf. torch.utils.checkpoint._NoopSaveInputs)."""
        raise AssertionError("a saver has no gradient")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The tangent of an empty tensor."""
        return torch.zeros(0, device="cpu")

    @staticmethod
    def save(tensors: Sequence[Tensor]) -> Tensor | None:
        """The empty tensor that keeps these tensors saved; None if there are none."""
        saved: Tensor | None = SaveInputs.apply(_ROOT, *tensors) if tensors else None  # type: ignore[no-untyped-call]
        return saved

    @staticmethod
    def load(saver: Tensor | None) -> tuple[Tensor, ...]:
        """The saved tensors."""
        if saver is None:
            return ()
        node: Any = saver.grad_fn
        return tuple(node.inference_tensors.get(index, tensor) for index, tensor in enumerate(node.saved_tensors))


class _Made(torch.autograd.Function):
    """A node without inputs of the user's: its result has a graph, like the tensor that it stands for."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, boxed: tuple[Tensor]) -> Tensor:
        """The tensor in the box, sharing its memory."""
        return boxed[0].detach()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """No gradients: the graph ends here."""
        return None, None


def made_again(tensor: Tensor) -> Tensor:
    """A new tensor with the numbers of a tensor that has a graph; it is not a leaf either, and has no hooks."""
    with torch.enable_grad():  # off in a backward; an inner segment would not treat a leaf as a tensor with a graph
        result: Tensor = _Made.apply(_ROOT, (tensor,))  # type: ignore[no-untyped-call]
    return result


class HolderOwner(Protocol):
    """The segment that a holder belongs to."""

    def unpack(self, holder: "Holder | SavedParameter") -> Tensor:
        """The tensor of a holder."""
        ...


class Holder:
    """Stands for one tensor that a graph saves; `values` has the recomputed tensors by backward id."""

    __slots__ = ("__weakref__", "index", "owner", "saved", "values")

    def __init__(self, owner: HolderOwner, index: int, saved: Tensor | None = None) -> None:
        self.owner, self.index = owner, index
        self.values: dict[int, Any] = {}  # tensors, or what lineage.py rebuilds them from
        # With a threshold: the tensor while its segment runs, then the result of `SaveInputs.save` if it is kept.
        self.saved = saved

    def drop(self) -> None:
        """Release the tensor, which will be recomputed."""
        self.saved = None

    def save(self) -> None:
        """Save the tensor as plain autograd does."""
        assert self.saved is not None
        self.saved = SaveInputs.save([self.saved])

    def value(self) -> Tensor:
        """The kept tensor."""
        assert self.saved is not None
        return self.saved if self.saved.grad_fn is None else SaveInputs.load(self.saved)[0]


class SavedParameter:
    """Stands for a parameter that a graph saves: it is kept itself, as in plain autograd, and never recomputed."""

    __slots__ = ("index", "owner", "tensor", "version")

    def __init__(self, owner: HolderOwner, index: int, tensor: Tensor) -> None:
        self.owner, self.index = owner, index  # negative
        self.tensor, self.version = tensor, quick_version(tensor)

    def take(self, name: str, is_written: Callable[[Tensor], bool]) -> Tensor:
        """The parameter; raises an error if it was modified, unless the segment itself modifies it each time."""
        now = quick_version(self.tensor)
        if now != self.version and not is_written(self.tensor):
            raise _written_parameter(name, self.tensor, self.version, now)
        return self.tensor


Kind = tuple[torch.Size, torch.dtype, torch.device]  # all that is noted of most saved tensors


class SavedTensorMeta:
    """A saved tensor that is watched until the first run ends, or that is not of one of PyTorch's own classes.

    `version` is that of a parameter or of data, and None for what the segment computes. If `checked`, there is a
    fingerprint of its values. `written` says whether the tensor was modified during the first run, after it was saved.
    """

    __slots__ = ("_counter", "_saved", "fingerprint", "version", "written")

    def __init__(self, tensor: Tensor, *, checked: bool) -> None:
        self.version = _version(tensor)
        local = local_part(tensor) if checked else tensor  # each process compares its part of a DTensor
        self.fingerprint = device_fingerprint(local) if checked and _is_plain(local) else None
        self.written = False
        self._counter, self._saved = _counter(tensor), version(tensor)

    def was_written(self) -> bool:
        """Whether the tensor was modified since it was saved."""
        if self._counter is not None:
            self.written = self.written or version(self._counter) != self._saved
        return self.written

    def finish_forward(self) -> None:
        """Stop watching after the first run: later writes do not matter, since the tensor is recomputed."""
        self.was_written()
        self._counter = None


class SavedTensors:
    """What is noted of the tensors that a segment saves in its first run, in order.

    Modifying a tensor after it was saved is an error, as in plain autograd. If tensors are not `watched`, this is found
    in the recomputation, if that gets so far; if it does not, the tensor is as it was saved.
    """

    __slots__ = ("_fillable", "_watched", "checked", "kinds", "versions", "watches")

    def __init__(self, *, checked: bool, watched: bool) -> None:
        self.kinds: list[Kind] = []
        self.versions: dict[int, int] = {}  # of data, and of parameters that are not kept themselves
        self.watches: dict[int, SavedTensorMeta] = {}  # the watched ones, by index
        self._fillable: set[int] = set()
        self.checked, self._watched = checked, watched or checked

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, tensor: Tensor) -> None:
        """Note a tensor that is being saved."""
        kinds = self.kinds
        if self._watched or type(tensor) is not Tensor or base_of(tensor) is not None:
            self._watch(tensor)
        elif tensor.is_leaf:
            if tensor.requires_grad or tensor.is_inference():
                self._watch(tensor)
            else:
                self._add_data(tensor, quick_version(tensor))
        kinds.append((tensor.shape, tensor.dtype, tensor.device))

    def _watch(self, tensor: Tensor) -> None:
        meta = self.watches[len(self.kinds)] = SavedTensorMeta(tensor, checked=self.checked)
        if meta.version is not None:
            self._add_data(tensor, meta.version)

    def _add_data(self, tensor: Tensor, version: int) -> None:
        self.versions[len(self.kinds)] = version
        if version == 0 and tensor.is_floating_point() and not tensor.requires_grad:
            self._fillable.add(len(self.kinds))

    def fingerprint(self, index: int) -> Tensor | None:
        """The fingerprint of a tensor's values, if they are to be compared."""
        meta = self.watches.get(index)
        return None if meta is None else meta.fingerprint

    def may_be_filled(self, index: int) -> bool:
        """Whether an operator may fill a tensor after saving it, without a new version: new floats without a graph.

        The noise of nn.RReLU is filled in this way, and in eval mode never.
        """
        return index in self._fillable

    def is_suspicious(self, index: int) -> bool:
        """Whether a tensor is compared but may be workspace without a meaning, as integers and noise may be."""
        if self.fingerprint(index) is None:
            return False
        dtype = self.kinds[index][1]
        return self.may_be_filled(index) or not (dtype.is_floating_point or dtype.is_complex)

    def was_written(self, index: int) -> bool:
        """Whether a tensor was modified since it was saved."""
        meta = self.watches.get(index)
        return meta is not None and meta.was_written()

    def finish_forward(self) -> bool:
        """Stop watching; returns whether a tensor is suspicious."""
        for meta in self.watches.values():
            meta.finish_forward()
        return self.checked and any(self.is_suspicious(index) for index in self.watches)

    def raise_difference(self, tensor: Tensor, name: str, index: int, changing: Container[int]) -> None:
        """Raise an error if a recomputed tensor has another shape, dtype, device or version.

        `changing` are the storages that the segment may write into, whose versions say nothing.
        """
        kind = tensor.shape, tensor.dtype, tensor.device
        if kind != self.kinds[index]:
            raise_nondeterministic(
                name,
                f"tensor {index} of the {len(self)} that it saves for its backward was "
                f"{describe(self.kinds[index])} and became {describe(kind)}",
            )
        before, now = self.versions.get(index), _version(tensor)
        # Versions only grow: a lower one belongs to another tensor, such as a copy of what was a row of many in the
        # first run.
        if before is not None and now is not None and now > before and comparable_storage(tensor) not in changing:
            raise _written_parameter(name, tensor, before, now)


def _written_parameter(name: str, tensor: Tensor, before: int, now: int) -> StepError:
    """The error for a parameter that a segment uses and whose version has changed."""
    kind = describe((tensor.shape, tensor.dtype, tensor.device))
    what = f"a parameter or captured tensor that it uses ({kind}, version {before}, now {now})"
    return mutation_error(name, what, "since it was first run", "Call backward before it changes")


def fingerprint_differences(
    saved: SavedTensors, recomputed: Sequence[tuple[int, Tensor, Tensor]]
) -> list[tuple[int, Tensor, float]]:
    """The recomputed (index, tensor, fingerprint) entries that differ beyond rounding, with the difference."""
    found: list[tuple[int, Tensor, float]] = []
    for device in {fingerprint.device for _, _, fingerprint in recomputed}:  # one synchronization for each device
        here = [entry for entry in recomputed if entry[2].device == device]
        pairs = [(now, saved.fingerprint(index)) for index, _, now in here]
        rows = torch.stack([torch.stack([now, then]) for now, then in pairs if then is not None])
        for (index, tensor, _), (now, then) in zip(here, rows.tolist(), strict=True):
            if difference := tolerated_difference(tensor, now, then):
                found.append((index, tensor, difference))
    return found


def tolerated_difference(tensor: Tensor, now: Tensor | float, then: Tensor | float) -> float:
    """The difference of two fingerprints of a tensor, relative to its size; 0 if it is within rounding."""
    now, then = float(now), float(then)
    if now == then:
        return 0.0
    sizes = float(device_fingerprint(tensor, of_sizes=True))
    return relative_difference(now, then, sizes, tolerance_of(eps_of(tensor.dtype)))


def raise_difference(name: str, index: int, count: int, tensor: Tensor, difference: float) -> NoReturn:
    """Raise a DeterminismError for the tensor at `index` of the `count` that a segment saves, whose values differ."""
    kind = describe((tensor.shape, tensor.dtype, tensor.device))
    what = f"tensor {index} of the {count} that it saves for its backward, {kind}"
    raise_nondeterministic(name, f"{what}, {other_values(difference)}")


def _version(tensor: Tensor) -> int | None:
    """The version of a parameter or of data, or of the base of a view; None for what a segment computes."""
    origin = view_base(tensor)
    if not origin.is_leaf or origin.is_inference():
        return None
    return version(origin) if origin.requires_grad or _is_plain(tensor) else None


def comparable_storage(tensor: Tensor) -> int:
    """The identity of a tensor's storage, or 0 for a subclass, which may have another one inside."""
    return storage_id(tensor) if _is_plain(tensor) else 0


def _counter(tensor: Tensor) -> Tensor | None:
    """A tensor that shares another's version counter, but keeps none of its memory alive."""
    if not _is_plain(tensor) or tensor.is_inference():
        return None
    origin = view_base(tensor)
    if origin.is_leaf and origin.requires_grad:  # a parameter, which lives anyway
        return origin
    counter = tensor.detach()  # shares the counter, and keeps it when its data is replaced
    counter.data = _empty(tensor.dtype, tensor.device)
    return counter


@lru_cache(maxsize=256)
def _empty(dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False), outside_transforms():
        return torch.empty(0, dtype=dtype, device=device)


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_meta


def describe(kind: Kind) -> str:
    """Dtype, shape and device of a tensor."""
    shape, dtype, device = kind
    where = "" if device.type == "cpu" else f" on {device}"
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}{where}"
