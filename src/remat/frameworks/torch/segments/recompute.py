"""One recomputation of a segment: compares its saved tensors with those of the first run, and fills the holders."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.compiler import is_compiling

from remat.errors import RematError
from remat.execute.recomputation import StopRecomputation
from remat.frameworks.compilers import run_uncompiled
from remat.frameworks.torch.internals.graph import quick_version, reachable_leaves, version
from remat.frameworks.torch.internals.storage import local_part
from remat.frameworks.torch.leaves import device_fingerprint
from remat.frameworks.torch.lineage.lineage import Lineage, unpack
from remat.frameworks.torch.lineage.lineage_results import View
from remat.frameworks.torch.segments.saved_tensors import (
    Holder,
    SavedTensors,
    comparable_storage,
    describe,
    fingerprint_differences,
    raise_difference,
)
from remat.segments import mutation_error, raise_nondeterministic

__all__ = ["Recomputation", "raise_if_used"]


class Recomputation:
    """Fills the holders of a segment for one backward, in the order in which the first run saved its tensors.

    `saved` describes all tensors of the first run; `holders` are those that are still alive, by index. `parameters` are
    the ids of tensors that are kept themselves. `restored` are storages that get other numbers afterwards, `changing`
    those that the segment may write into. A tensor with a `lineage` is not held: the holder gets its lineage instead.
    """

    def __init__(
        self,
        name: str,
        saved: SavedTensors,
        task: int,
        holders: dict[int, Holder],
        parameters: Container[int],
        restored: Container[int],
        changing: Container[int],
        *,
        stops: bool,
        lineage: Lineage | None = None,
    ) -> None:
        self._lineage = lineage
        self.name, self.task, self.holders, self.stops = name, task, holders, stops
        self._saved, self._expected = saved, len(saved)
        self._parameters, self._restored, self._changing = parameters, restored, changing
        self.last = max(holders)
        self.count = 0
        self.stopped = False  # whether it was ended by its own exception
        self._versions: list[tuple[int, Tensor, int]] = []  # of the tensors in holders, when they were saved
        self._fingerprints: list[tuple[int, Tensor, Tensor]] = []
        self._error: RematError | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which the function runs."""
        with saved_tensors_hooks(self.pack, unpack), self._lineage or nullcontext():
            try:
                yield
            finally:
                if self._lineage is not None:
                    self._lineage.forget()

    def pack(self, tensor: Tensor) -> Tensor | View:
        """Put a recomputed tensor into its holder; stop when the last live holder is full.

        The recomputed graph saves the tensor itself, so that the function may differentiate inside.
        """
        if is_compiling():
            return run_uncompiled(self.pack, tensor)
        if id(tensor) in self._parameters:  # kept itself, without a holder
            return tensor
        index, saved = self.count, self._saved
        self.count = index + 1
        # Plain autograd saves a leaf itself, so that its backward sees a `.data` that was replaced meanwhile.
        value = tensor if tensor.is_leaf else tensor.detach()
        if self._restored and comparable_storage(tensor) in self._restored:
            value = value.clone()  # the tensor gets its later numbers back when the recomputation ends
        if index >= self._expected:
            return value
        before = saved.versions.get(index)
        is_written = before is not None and quick_version(tensor) > before
        if is_written or (tensor.shape, tensor.dtype, tensor.device) != saved.kinds[index]:
            self._compare(tensor, index)
        view = None if self._lineage is None else self._lineage.view_of(tensor)
        holder = self.holders.get(index)
        if holder is not None:
            holder.values[self.task] = value if view is None else view
            if view is None:
                self._versions.append((index, value, version(value) if tensor.is_leaf else quick_version(value)))
            else:
                view.want()
        if saved.checked and saved.fingerprint(index) is not None:
            local = local_part(value)
            self._fingerprints.append((index, local, device_fingerprint(local)))
        # An operator that fills what it has saved has not run yet; then wait for the tensor of the next one.
        if (
            index >= self.last
            and self.stops
            and not any(saved.may_be_filled(each) for each in range(max(index - 1, 0), index + 1))
        ):
            self.stopped = True
            raise StopRecomputation(self)
        return value if view is None else view

    def _compare(self, tensor: Tensor, index: int) -> None:
        try:
            self._saved.raise_difference(tensor, self.name, index, self._changing)
        except RematError as error:  # raised by `finish`, since autograd replaces some errors of pack hooks
            self._error = error
            self.stopped = True
            raise StopRecomputation(self) from None

    def written(self) -> list[int]:
        """The indices of tensors that were modified after they were saved; called once, at the end."""
        versions, self._versions = self._versions, []  # released: the graph holds its hooks, and these hold this
        return [index for index, value, before in versions if before != version(value)]

    def finish(self, *, complete: bool) -> list[tuple[int, float]]:
        """Raise a DeterminismError if the number of tensors differs from the first run, or floats have other values.

        Returns the tensors with other values that may be workspace (integers and noise), as (index, difference) pairs.
        """
        if self._error is not None:
            raise self._error
        expected = self._expected
        if self.count <= self.last or (self.count > expected and complete):
            raise_nondeterministic(self.name, f"it saved {expected} tensors for its backward and then {self.count}")
        suspects: list[tuple[int, float]] = []
        for index, tensor, difference in fingerprint_differences(self._saved, self._fingerprints):
            if not self._saved.is_suspicious(index):
                raise_difference(self.name, index, expected, tensor, difference)
            suspects.append((index, difference))
        return suspects


def raise_if_used(changed: Sequence[tuple[Tensor, int]], outputs: Sequence[Tensor], name: str) -> None:
    """Raise a StepError if outputs depend on a leaf that was modified since it had this version."""
    used = reachable_leaves(outputs)
    for tensor, before in changed:
        if id(tensor) in used:
            kind = describe((tensor.shape, tensor.dtype, tensor.device))
            what = f"a parameter that it uses ({kind}, version {before}, now {version(tensor)})"
            raise mutation_error(name, what, "since it was first run", "Call backward before it changes")
