"""The numbers of tensors that steps may read or write, as replayable states (rng_state.py).

Tensors that require no gradient are copied if they have at most COPIED bytes or are statistics. A loop restores them
when it recomputes steps, even if somebody else has written into them since. Of a larger tensor there is no copy, and
steps that use it after such a write are refused.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from remat.errors import StepError
from remat.frameworks.torch.internals.functorch import is_wrapped, outside_transforms
from remat.frameworks.torch.internals.graph import version
from remat.frameworks.torch.replay.small_buffers import exchange_data
from remat.frameworks.torch.replay.watch import PLAIN, Watch, unnoticed
from remat.units import bytes_text

__all__ = ["COPIED", "HELD", "LargeTensor", "TensorValue", "is_plain", "same_memory", "set_data"]

HELD = 1 << 16  # up to this many bytes are copied and held, without a comparison
COPIED = 1 << 20  # up to this many bytes are copied, and held if they were changed


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own: not a subclass, sparse, meta, or wrapped by torch.func."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_meta and not is_wrapped(tensor)


class TensorValue:
    """The numbers of a tensor and the memory that they are in."""

    is_read = True  # even by a step that does not write

    def __init__(self, tensor: Tensor, *, is_statistic: bool) -> None:
        self.tensor, self.is_statistic = tensor, is_statistic

    def version(self, snapshot: tuple[Tensor, Tensor] | None = None) -> Any:
        """The numbers, or for a large tensor its memory and how often it was modified in place.

        On devices other than the CPU, comparing numbers waits for the device. It is only done for statistics, which
        batch norm kernels modify without a new version.
        """
        tensor = self.tensor
        is_compared = tensor.nbytes <= HELD and (self.is_statistic or tensor.device.type == "cpu")
        with outside_transforms(), unnoticed():
            numbers = None if not is_compared else tensor.detach().clone() if snapshot is None else snapshot[1]
        return _Version(tensor.data_ptr(), tuple(tensor.shape), version(tensor), numbers)

    def get(self) -> tuple[Tensor, Tensor]:
        """The tensor's memory, and a copy of its numbers."""
        with outside_transforms(), unnoticed():
            return self.tensor.data, self.tensor.detach().clone()

    def set(self, snapshot: tuple[Tensor, Tensor]) -> None:
        """Restore the memory and the numbers."""
        with outside_transforms(), unnoticed():
            set_data(self.tensor, *snapshot)

    def watch_use(self) -> Callable[[], bool]:
        """A function that says whether the tensor has been used since."""
        watch = Watch([self.tensor], everywhere=True)

        def end() -> bool:
            watch.end()
            return bool(watch.used)

        return end


class LargeTensor:
    """A tensor without a copy, as a replayable state: steps that are recomputed must find it unchanged."""

    is_read = True

    def __init__(self, tensor: Tensor) -> None:
        self._value = TensorValue(tensor, is_statistic=False)

    def version(self, snapshot: None = None) -> int:
        """How often it was modified in place."""
        return version(self._value.tensor)

    def get(self) -> None:
        """Do nothing."""

    def set(self, snapshot: None) -> None:
        """Do nothing."""

    def watch_use(self) -> Callable[[], bool]:
        """A function that raises if the tensor has been used since, because it differs from the first sweep."""
        end = self._value.watch_use()

        def refuse() -> bool:
            if end():
                tensor = self._value.tensor
                raise StepError(
                    f"a tensor of shape {list(tensor.shape)} that steps use was written into between the loop and its "
                    f"backward; tensors this large ({bytes_text(tensor.nbytes)}) are not copied, so the steps "
                    "cannot be recomputed. Write into it after the backward, or make a new tensor"
                )
            return False

        return refuse


class _Version:
    """Compared by address, shape and version, and by the numbers where both have a copy."""

    __slots__ = ("_numbers", "_rest")

    def __init__(self, address: int, shape: tuple[int, ...], written: int, numbers: Tensor | None) -> None:
        self._rest, self._numbers = (address, shape, written), numbers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Version) or self._rest != other._rest:
            return False
        return self._numbers is None or other._numbers is None or torch.equal(self._numbers, other._numbers)

    __hash__ = None  # type: ignore[assignment]


def set_data(tensor: Tensor, data: Tensor, numbers: Tensor | None) -> None:
    """Move a tensor to this memory, with these numbers, by `.data`: graphs that have saved it see no new version."""
    if not same_memory(tensor, data):
        exchange_data([tensor], [data])
    if numbers is not None:
        # A buffer whose `.data` was set in inference mode is an inference tensor from then on.
        with torch.inference_mode() if data.is_inference() else nullcontext():
            if 0 in data.stride():  # an expanded tensor has one number in several places: torch writes it in one only
                once = tuple(slice(None if stride else 1) for stride in data.stride())
                data, numbers = data[once], numbers[once]
            data.copy_(numbers)


def same_memory(tensor: Tensor, data: Tensor) -> bool:
    """Whether two tensors of one dtype are the same numbers in memory."""
    return tensor.data_ptr() == data.data_ptr() and tensor.shape == data.shape
