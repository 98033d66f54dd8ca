"""PyTorch leaves: tensors and numbers; their specs, copies, sizes and fingerprints.

In: values as a step takes and returns them. Out: for each leaf a `TensorSpec` to check later values against, a private
copy, and a fingerprint to compare a recomputed value with the first. The module as a whole is the `LeafOps` of PyTorch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.fingerprint import fingerprint, weights
from remat.execute.fingerprint import row_fingerprints as fingerprints_of_rows
from remat.execute.rng_state import private_rng_state
from remat.frameworks.torch.internals.functorch import escaped_its_transform
from remat.frameworks.torch.internals.storage import local_part
from remat.pytree import TreeDef
from remat.pytree import flatten as flatten_value

__all__ = [
    "TensorSpec",
    "astype",
    "batched_zeros_like",
    "by_step",
    "copy_tensor",
    "detached",
    "device_fingerprint",
    "empty",
    "eps_of",
    "fast_match",
    "flatten",
    "is_differentiable",
    "is_on_host",
    "matches_spec",
    "nbytes",
    "own",
    "quick_fingerprint",
    "reject_tracer",
    "require_grad_roots",
    "row_fingerprints",
    "spec_of",
    "stack",
    "tensors_in",
    "unpack",
    "with_finite_numbers",
    "zero_rows_like",
]

_NUMBERS = (bool, int, float, complex)  # each promotes to those after it


def unpack(value: Any) -> Any:
    """The value unchanged: PyTorch has no containers of its own."""
    return value


def flatten(value: Any) -> tuple[list[Any], TreeDef]:
    """The leaves of a value, and its structure."""
    return flatten_value(value)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors among the leaves of a value."""
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)]


def stack(rows: Sequence[Any]) -> Any:
    """Several tensors stacked along a new first axis."""
    return torch.stack([torch.as_tensor(row) for row in rows])


def own(leaf: Any) -> Any:
    """A copy of a tensor; one that requires a gradient unchanged, since autograd follows writes into it."""
    return leaf if not isinstance(leaf, Tensor) or leaf.requires_grad else leaf.clone()


def batched_zeros_like(leaf: Tensor, batch: int | None) -> Tensor:
    """Zeros in the shape of a tensor, with a first axis of size `batch` if that is given."""
    return torch.zeros_like(leaf) if batch is None else leaf.new_zeros((batch, *leaf.shape))


def by_step(stacked: Tensor, batch: int | None) -> Tensor:
    """Stacked cotangents or gradients with the axes of steps and batch swapped, if there is a batch."""
    return stacked if batch is None else stacked.transpose(0, 1)


@dataclass(frozen=True)
class TensorSpec:
    """The shape, dtype and device of a leaf; a Python number is `weak`, a random generator is `opaque`."""

    shape: tuple[int, ...]
    dtype: Any
    device: torch.device | None = None
    weak: bool = False
    opaque: bool = False

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow through such a leaf: tensors of floats, real and complex."""
        return isinstance(self.dtype, torch.dtype) and (self.dtype.is_floating_point or self.dtype.is_complex)

    @property
    def eps(self) -> float:
        """The relative spacing of its numbers."""
        return eps_of(self.dtype) if self.differentiable else 2.0**-52

    def promotes_to(self, other: "TensorSpec") -> bool:
        """Whether a leaf of spec `other` may follow one of this spec: a Python number may become a scalar tensor."""
        if self == other:
            return True
        if not self.weak or self.shape != other.shape:
            return False
        return not other.weak or _NUMBERS.index(self.dtype) <= _NUMBERS.index(other.dtype)

    def promoted(self, other: "TensorSpec") -> "TensorSpec":
        """The spec to check later values against, once a leaf of spec `other` has followed one of this spec."""
        return other if self.weak and self.promotes_to(other) else self

    def advice(self, other: "TensorSpec", name: str) -> str:
        """What the user can do if a leaf of spec `other` follows that does not match."""
        if self.weak:
            return "; start with a tensor of that shape"
        if self.device != other.device and other.device is not None:
            return f"; move it, as in {name}.to({str(self.device)!r})"
        if self.shape == other.shape and other.differentiable and not (self.differentiable or other.weak):
            return f"; start with {str(other.dtype).removeprefix('torch.')}"  # integers would cut the gradient
        return f"; cast it, as in {name}.to({self.dtype})" if self.shape == other.shape and not other.weak else ""

    def __str__(self) -> str:
        if self.weak or self.opaque:
            return f"a {'Python ' if self.weak else ''}{self.dtype.__name__}"
        where = "" if self.device is None or self.device.type == "cpu" else f" on {self.device}"
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}{where}"


def eps_of(dtype: torch.dtype) -> float:
    """The relative spacing of the numbers of a dtype."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 2.0**-52


def spec_of(leaf: Any, name: str) -> TensorSpec:
    """The spec of a leaf, or a StepError that names it if it is not a tensor, a number or a generator."""
    if isinstance(leaf, Tensor):
        if leaf.layout is not torch.strided:
            raise StepError(f"{name} is a tensor of layout {leaf.layout}: give a dense one, as {name}.to_dense() is")
        return TensorSpec(tuple(leaf.shape), leaf.dtype, leaf.device)
    if type(leaf) in _NUMBERS:
        return TensorSpec((), type(leaf), weak=True)
    if isinstance(leaf, torch.Generator) or private_rng_state(leaf) is not None:
        return TensorSpec((), type(leaf), opaque=True)
    leaf_type = type(leaf)
    raise StepError(
        f"{name} is a {leaf_type.__module__}.{leaf_type.__qualname__}: a leaf must be a tensor or a number"
        + ("; torch.from_numpy makes one of an array" if leaf_type.__module__ == "numpy" else "")
        + ". Tuples, lists, dicts, named tuples and dataclasses are taken apart; let the step close over the rest"
    )


def matches_spec(leaf: Any, spec: TensorSpec) -> bool:
    """Whether a leaf is a tensor of exactly this spec."""
    return (
        isinstance(leaf, Tensor)
        and leaf.shape == spec.shape
        and leaf.dtype is spec.dtype
        and leaf.device == spec.device
        and leaf.layout is torch.strided
    )


def fast_match(spec: TensorSpec) -> Callable[[Any], bool]:
    """A fast test for leaves of this spec."""
    shape, dtype, device = spec.shape, spec.dtype, spec.device
    if spec.opaque:
        return lambda value: type(value) is dtype
    if spec.weak:
        number_types = _NUMBERS[: _NUMBERS.index(dtype) + 1]
        return lambda value: type(value) in number_types
    return lambda value: (
        isinstance(value, Tensor) and value.shape == shape and value.dtype is dtype and value.device == device
    )


_DTYPES = {bool: torch.bool, int: torch.int64}


def _dtype(spec: TensorSpec) -> torch.dtype:
    if isinstance(spec.dtype, torch.dtype):
        return spec.dtype
    default = torch.get_default_dtype()
    return _DTYPES.get(spec.dtype, default.to_complex() if spec.dtype is complex else default)


def empty(count: int, spec: TensorSpec, like: Any) -> Any:
    """An uninitialized tensor for the rows of `count` leaves."""
    if spec.opaque:
        raise StepError("an output of a step must be a tensor or a number, and one is a random generator")
    if isinstance(like, Tensor) and hasattr(like, "placements"):
        return _rows_like(like, count, "empty")
    if isinstance(like, Tensor):
        return like.new_empty((count, *spec.shape))
    return torch.empty((count,), dtype=_dtype(spec))


def zero_rows_like(like: Any, count: int) -> Any:
    """Zeros for the rows of `count` tensors like a DTensor."""
    return _rows_like(like, count, "zeros")


def _rows_like(like: Any, count: int, filled: str) -> Any:
    """A DTensor for rows that are sharded like another one; `new_empty` would put all rows into every process."""
    from torch.distributed import tensor as dtensor

    placements = [dtensor.Shard(each.dim + 1) if each.is_shard() else dtensor.Replicate() for each in like.placements]
    make, shape = getattr(dtensor, filled), (count, *like.shape)
    return make(*shape, dtype=like.dtype, device_mesh=like.device_mesh, placements=placements)


def astype(rows: Any, spec: TensorSpec) -> Any:
    """The rows of a leaf, in the dtype and on the device of a spec."""
    return rows.to(dtype=_dtype(spec), device=spec.device or rows.device)


def reject_tracer(leaf: Any, name: str) -> None:
    """Raise a StepError if a leaf belongs to a transform of torch.func that is not running."""
    if isinstance(leaf, Tensor) and escaped_its_transform(leaf):
        raise StepError(
            f"{name} is still traced by torch.func where it must not be: the step uses a traced tensor that remat "
            "could not find. Pass it through init or xs, or close over it directly: closures, partials, "
            "attributes, items of lists and dicts, and globals are searched"
        )


def is_differentiable(leaf: Any) -> bool:
    """Whether a leaf can have a gradient: a tensor of real or complex floats."""
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def detached(leaf: Any) -> Any:
    """The leaf, detached from its graph if it has one."""
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def require_grad_roots(leaves: Sequence[Any], active: Sequence[bool]) -> list[Any]:
    """The leaves, with the active ones replaced by detached tensors that require a gradient: roots of a new graph."""
    return [
        leaf.detach().requires_grad_() if is_active and is_differentiable(leaf) else leaf
        for leaf, is_active in zip(leaves, active, strict=True)
    ]


def copy_tensor(leaf: Any) -> Any:
    """A detached copy of a tensor; a number unchanged."""
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def nbytes(leaf: Any) -> int:
    """Bytes of a tensor's local part; 0 for Python numbers, which take none on the device."""
    return local_part(leaf).numel() * leaf.element_size() if isinstance(leaf, Tensor) else 0


# Without dtypes that NumPy lacks, and without half precision, in which NumPy would also accumulate.
_IN_NUMPY = {torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64, torch.bool}
_weights: dict[tuple[torch.dtype, torch.device], Tensor] = {}
SCALE = 2.0**-14  # of the weights: even a row of 4096 of the largest numbers does not overflow
SMALL = 1 << 16  # elements of a leaf that may be copied for its fingerprint
PIECE = 1 << 22  # elements that are copied at a time, where memory may be short


def quick_fingerprint(leaf: Any, *, of_sizes: bool = False) -> float:
    """The fingerprint of a leaf: a weighted sum of its elements, which is most unlikely to agree for another value."""
    if not isinstance(leaf, Tensor):
        return fingerprint(abs(leaf) if of_sizes else leaf) if type(leaf) in _NUMBERS else 0.0
    leaf = local_part(leaf)
    if is_on_host(leaf):
        plain = leaf.detach().resolve_conj().resolve_neg()
        return fingerprint((plain.abs() if of_sizes and leaf.dtype is not torch.bool else plain).numpy())
    return float(device_fingerprint(with_finite_numbers(leaf), of_sizes=of_sizes))


def is_on_host(tensor: Tensor) -> bool:
    """Whether a tensor's fingerprint is computed by NumPy, as those of all arrays on the host."""
    return tensor.device.type == "cpu" and tensor.dtype in _IN_NUMPY


def with_finite_numbers(leaf: Any) -> Any:
    """A leaf with nan and inf replaced by numbers, so that they hide no other change; a large leaf unchanged."""
    # A copy of a large leaf would take bytes that no plan counts; so in one with nan or inf, other changes are missed.
    if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() <= SMALL:
        return leaf.detach().nan_to_num(nan=0.3, posinf=0.7, neginf=-0.7)
    return leaf


def device_fingerprint(leaf: Any, *, of_sizes: bool = False) -> Tensor:
    """The fingerprint of a leaf (or of its absolute values) as a tensor on its device, without synchronization."""
    if not isinstance(leaf, Tensor):
        leaf = torch.tensor(leaf if type(leaf) in _NUMBERS else 0.0, dtype=torch.complex128)
    part = local_part(leaf).detach()
    if part.numel() > PIECE:
        return _weighted_pieces(part, of_sizes)
    return _weighted(_as_floats(part.reshape(-1), of_sizes)).to(torch.float64)


def _as_floats(flat: Tensor, of_sizes: bool) -> Tensor:
    # Real and imaginary parts as two elements: the fingerprint is one real number, and must depend on both.
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.to(torch.float32 if flat.is_floating_point() else torch.float64)
    return flat.abs() if of_sizes else flat


def _weighted_pieces(part: Tensor, of_sizes: bool) -> Tensor:
    """The fingerprint of a large tensor; only a piece is copied at a time, since memory may be short."""
    sums, rest = list[Tensor](), None
    for piece in _pieces(part):
        flat = _as_floats(piece, of_sizes)
        flat = flat if rest is None else torch.cat([rest, flat])
        factors = _factors(flat.dtype, flat.device)
        rows = flat.numel() // factors.numel()
        whole, rest = flat[: rows * factors.numel()], flat[rows * factors.numel() :].clone()
        sums.append((whole.reshape(rows, -1) @ factors).to(torch.float64))
    assert rest is not None
    total = 0.7 / SCALE * _weighted(torch.cat(sums))
    return total + torch.dot(rest, factors[: rest.numel()]).to(torch.float64)


def _pieces(part: Tensor) -> Iterator[Tensor]:
    """The elements of a tensor in order, in flat pieces."""
    if part.is_contiguous():
        yield from torch.tensor_split(part.view(-1), -(-part.numel() // PIECE))
    elif part.numel() <= PIECE:
        yield part.reshape(-1)
    else:
        for piece in torch.tensor_split(part, min(len(part), -(-part.numel() // PIECE))):
            yield from _pieces(piece if piece.shape[0] > 1 else piece[0])


def row_fingerprints(stacked: Tensor) -> Any:
    """Two columns: the fingerprint of each row of a tensor, up to rounding, and that of the row's absolute values."""
    stacked = local_part(stacked)
    if is_on_host(stacked):
        return fingerprints_of_rows(stacked.detach().resolve_conj().resolve_neg().numpy())
    width = _factors(torch.float64, stacked.device).numel()
    if stacked[:1].numel() > width or not stacked.is_floating_point():
        pairs = [torch.stack([device_fingerprint(row), device_fingerprint(row, of_sizes=True)]) for row in stacked]
        return torch.stack(pairs) if pairs else torch.zeros(0, 2)
    numbers = []
    count = max(1, SMALL // max(1, stacked[:1].numel()))  # rows at a time: few, since some parts are copied
    for part in torch.split(stacked.detach(), count):
        rows = part.reshape(len(part), -1).to(stacked.dtype if stacked.dtype is torch.float64 else torch.float32)
        factors = _factors(rows.dtype, rows.device)[: rows.shape[1]]
        numbers.append(torch.stack([rows @ factors, rows.abs() @ factors], 1).to(torch.float64))
    return torch.cat(numbers) if numbers else torch.zeros(0, 2)


def _weighted(flat: Tensor) -> Tensor:
    factors = _factors(flat.dtype, flat.device)
    rows = flat.numel() // factors.numel()
    if not rows:
        return torch.dot(flat, factors[: flat.numel()])
    whole, rest = flat[: rows * factors.numel()], flat[rows * factors.numel() :]
    # The factor distinguishes whole rows from the rest; row sums are added in float64, so that rounding does not grow.
    total = 0.7 / SCALE * _weighted((whole.reshape(rows, -1) @ factors).to(torch.float64))
    return total + torch.dot(rest, factors[: rest.numel()]) if rest.numel() else total


def _factors(dtype: torch.dtype, device: torch.device) -> Tensor:
    factors = _weights.get((dtype, device))
    if factors is None:
        factors = _weights[dtype, device] = torch.from_numpy(weights("float64") * SCALE).to(dtype).to(device)
    return factors
