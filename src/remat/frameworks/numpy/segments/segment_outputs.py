"""The outputs of a segment: differentiable leaves, and leaves that autograd does not see."""

from collections.abc import Sequence
from enum import Enum
from numbers import Number

import numpy as np

from remat.errors import StepError
from remat.execute.fingerprint import other_values, relative_difference, tolerance_of
from remat.frameworks.numpy.leaves import ArraySpec, ensure_writable, fingerprint, is_boxed, numbers, unpack
from remat.frameworks.numpy.multiple_results import PartlyTraced
from remat.frameworks.numpy.tape import is_boxable, unbox
from remat.pytree import Leaf, PyTree, StructureMismatch, flatten
from remat.segments import raise_nondeterministic

__all__ = ["SegmentOutputs", "nbytes_of"]


class SegmentOutputs(PartlyTraced):
    """The outputs of a first run, with their specs and fingerprints, to compare recomputed outputs with."""

    def __init__(self, out: PyTree, name: str, trace: float = -1.0, *, check: bool) -> None:
        self.name = name
        leaves, self.tree = flatten(out, unpack)
        self._names = list(self.tree.paths("its result"))
        pairs = [unbox(leaf, trace) for leaf in leaves]
        for (value, _), leaf_name in zip(pairs, self._names, strict=True):
            _check_output(value, leaf_name, name)
        # The caller may write into results, but a view of an input would be read-only.
        plain = [ensure_writable(value) for value, _ in pairs]
        super().__init__(plain, [is_boxable(leaf) for leaf in plain])
        # Only of differentiable leaves: no gradient flows to integers, even if they were computed from boxes.
        self.nodes = [node for (_, node), active in zip(pairs, self.differentiable, strict=True) if active]
        self._specs = [_spec(leaf) for leaf in self.leaves]
        self._fingerprints = [
            fingerprint(leaf) if check and spec is not None else None
            for leaf, spec in zip(self.leaves, self._specs, strict=True)
        ]

    @property
    def like(self) -> list[Leaf]:
        """Zeros like the differentiable leaves, each in the memory of one number."""
        specs = [spec for spec, active in zip(self._specs, self.differentiable, strict=True) if active]
        return [np.broadcast_to(np.zeros((), spec.dtype), spec.shape) for spec in specs if spec is not None]

    def compare(self, out: PyTree, trace: float) -> list[Leaf]:
        """The nodes of the differentiable recomputed outputs; a DeterminismError if any output differs."""
        try:
            leaves = self.tree.flatten_like(out, "its result", unpack)
        except StructureMismatch as error:
            raise_nondeterministic(self.name, str(error))
        nodes = []
        for leaf, name, spec, recorded, active in zip(
            leaves, self._names, self._specs, self._fingerprints, self.differentiable, strict=True
        ):
            value, node = unbox(leaf, trace)
            if active:
                nodes.append(node)
            plain = numbers(value)
            now = _spec(plain)
            # Before the fingerprints, which are comparable only for equal shapes and dtypes.
            if now != spec:
                raise_nondeterministic(self.name, f"{name} was {spec or 'no array'} and became {now or 'no array'}")
            if recorded is None or spec is None or (number := fingerprint(plain)) == recorded:
                continue
            size = fingerprint(plain, of_sizes=True)
            if difference := relative_difference(number, recorded, size, tolerance_of(spec.eps)):
                raise_nondeterministic(self.name, f"{name}, {spec}, {other_values(difference)}")
        return nodes


_PLAIN = (np.generic, Number, str, bytes, bool, type(None), Enum, type, np.dtype, slice, range, type(...))


def _check_output(leaf: Leaf, where: str, name: str) -> None:
    """Raise a StepError for an output that is still traced, or of a type in which gradients would be lost."""
    if is_boxed(leaf):
        raise StepError(
            f"{where} is still traced by autograd where it must not be: the segment {name} uses a traced variable that "
            "remat could not find, or something made from one in another call of it (a cache, a cached_property, a "
            "log). Compute it in every call, pass it in, or close over it directly: closures, partials, attributes, "
            "items of lists and dicts, and globals are searched"
        )
    if not isinstance(leaf, _PLAIN) and not (isinstance(leaf, np.ndarray) and leaf.dtype != object):
        which = "an array of objects" if isinstance(leaf, np.ndarray) else f"a {type(leaf).__qualname__}"
        raise StepError(
            f"{where} of the segment {name} is {which}, in which gradients would be lost. Return arrays, numbers and "
            "texts, in any nesting of tuples, named tuples, lists, dicts (also OrderedDict and defaultdict) and "
            "dataclasses"
        )


def nbytes_of(leaves: Sequence[Leaf]) -> int:
    """Bytes of the data of arrays and scalars."""
    return sum(np.asarray(leaf).nbytes for leaf in leaves if _spec(leaf) is not None)


def _spec(leaf: Leaf) -> ArraySpec | None:
    """The spec of an array or a number; None for anything else."""
    if isinstance(leaf, bool | int | float | complex) or (
        isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc"
    ):
        return ArraySpec(np.shape(leaf), np.asarray(leaf).dtype)
    return None
