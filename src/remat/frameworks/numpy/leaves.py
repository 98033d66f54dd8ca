"""NumPy leaves: arrays and numbers, plain or in autograd's boxes; their specs, copies, sizes and fingerprints.

In: values as a step takes and returns them. Out: for each leaf an `ArraySpec` to check later values against, a private
copy, and a fingerprint to compare a recomputed value with the first. The module as a whole is the `LeafOps` of NumPy.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import autograd.numpy as anp
import numpy as np
from autograd.builtins import DictBox, SequenceBox
from autograd.extend import defjvp, defvjp, primitive
from autograd.tracer import getval, isbox

from remat.errors import StepError
from remat.execute.fingerprint import fingerprint as array_fingerprint
from remat.execute.fingerprint import weights
from remat.execute.rng_state import private_rng_state
from remat.loops.stacked_values import SeparateRows
from remat.pytree import Leaf, PyTree, TreeDef
from remat.pytree import flatten as flatten_value

__all__ = [
    "OF_BOXES",
    "ArraySpec",
    "GeneratorSpec",
    "astype",
    "copy",
    "empty",
    "ensure_writable",
    "fast_match",
    "fingerprint",
    "flatten",
    "is_boxed",
    "is_observation",
    "matches_spec",
    "nbytes",
    "numbers",
    "own",
    "prepend",
    "reject_tracer",
    "separate",
    "spec_of",
    "stack",
    "unpack",
]

_RANKS = "biufc"  # kinds of dtypes; each promotes to those after it
_OBJECTS = np.dtype(object)
OF_BOXES = "which holds boxes of autograd"
_WEIGHT = weights(np.dtype(np.float64))[0]  # of the first number in a fingerprint
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_PYTHON = {bool: "b", int: "i", float: "f", complex: "c"}


def unpack(value: PyTree) -> PyTree:
    """Autograd's boxed tuples, lists and dicts as plain containers of boxes; anything else unchanged."""
    if type(value) is SequenceBox:
        plain_type = type(getval(value))
        items = [value[i] for i in range(len(value))]
        return plain_type._make(items) if hasattr(plain_type, "_make") else plain_type(items)
    if type(value) is DictBox:
        return {key: value[key] for key in value}
    return value


def flatten(value: PyTree) -> tuple[list[Leaf], TreeDef]:
    """The leaves of a value, boxed or not, and its structure."""
    return flatten_value(value, unpack)


def stack(rows: Sequence[Leaf]) -> Leaf:
    """Several arrays as one leaf, along a new first axis; `SeparateRows`, without a copy, if none is traced."""
    first = rows[0]
    if all(type(row) is np.ndarray and row.shape == first.shape and row.dtype == first.dtype for row in rows):
        return SeparateRows(rows)
    return anp.stack(list(rows))


def own(leaf: Leaf) -> Leaf:
    """A copy of an array, which the caller may write into; a box, which nobody can write into, unchanged."""
    return copy(leaf)


def separate(rows: Leaf) -> Sequence[Leaf]:
    """The rows of an array one by one, copied if they are not traced."""
    return [own(rows[i]) for i in range(len(rows))]


def prepend(first: Leaf, rows: Leaf) -> Leaf:
    """An array with one more row in front, in the same memory if that has a spare row."""
    plain = rows._value if is_boxed(rows) else rows
    has_room = type(plain) is np.ndarray and type(plain.base) is np.ndarray and not is_boxed(plain)
    if has_room and plain.base.shape == (len(plain) + 1, *plain.shape[1:]) and plain.base.flags.writeable:
        return _put_first(first, rows)
    return anp.concatenate([anp.expand_dims(first, 0), rows])


@primitive  # type: ignore[untyped-decorator]
def _put_first(first: Leaf, rows: Leaf) -> Leaf:
    """Write `first` into the spare row in front of `rows`, and return the whole array."""
    buffer = rows.base
    buffer[0] = first
    buffer.setflags(write=rows.flags.writeable)
    return buffer


# The cotangents are views: with the rule of `anp.concatenate` the outputs would have two cotangents at once.
defvjp(_put_first, lambda ans, first, rows: lambda bar: bar[0], lambda ans, first, rows: lambda bar: bar[1:])
defjvp(
    _put_first,
    lambda tangent, ans, first, rows: prepend(tangent, anp.zeros_like(rows)),
    lambda tangent, ans, first, rows: prepend(anp.zeros_like(first), tangent),
)


def is_boxed(leaf: Leaf) -> bool:
    """Whether autograd is tracing this leaf."""
    return bool(isbox(leaf))


def numbers(value: Leaf) -> Leaf:
    """The value inside any number of nested boxes; a value that is not boxed unchanged."""
    while (inside := getval(value)) is not value:
        value = inside
    return value


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of a leaf; that of a Python number is `weak`: its dtype may be promoted."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool = False

    @classmethod
    def of(cls, leaf: Leaf, name: str) -> "ArraySpec":
        """The spec of a leaf, or a StepError that names it if it is neither an array nor a number."""
        value = getval(leaf)
        leaf_type = type(value)
        if leaf_type is SeparateRows:
            row = cls.of(value[0], name)
            return cls((len(value), *row.shape), row.dtype)
        if leaf_type in _PYTHON:
            return cls((), np.dtype(leaf_type), weak=True)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _RANKS:
            if isinstance(value, np.ndarray) and leaf_type is not np.ndarray and not isinstance(value, np.memmap):
                masked = isinstance(value, np.ma.MaskedArray)
                raise StepError(
                    f"{name} is {_type_name(leaf_type)}: "
                    + (
                        "give its data and its mask as two arrays"
                        if masked
                        else "give np.asarray of it, or a plain array"
                    )
                )
            return cls(value.shape, value.dtype)
        of_dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray) else ""
        if of_dtype and value.dtype == _OBJECTS and any(map(is_boxed, value.flat)):
            raise StepError(
                f"{name} is {_type_name(leaf_type)}{of_dtype}, {OF_BOXES}: a function of plain NumPy, such as "
                "numpy.roll, was called on an array that is differentiated. Write import autograd.numpy as np for the "
                "step, or give the step's adjoint as vjp="
            )
        raise StepError(
            f"{name} is {_type_name(leaf_type)}{of_dtype}: a leaf must be a NumPy array or a number"
            + (": give numpy.arange" if leaf_type is range else "")
            + (
                ". Give init as arrays of JAX, so that it is a loop of JAX"
                if leaf_type.__module__.startswith("jax")
                else ""
            )
            + ". Tuples, lists, dicts, named tuples and dataclasses are taken apart; let the step close over the rest"
        )

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow through such a leaf: real and complex floats."""
        return self.dtype.kind in "fc"

    @property
    def eps(self) -> float:
        """The relative spacing of its numbers."""
        return float(np.finfo(self.dtype).eps) if self.differentiable else 2.0**-52

    def promotes_to(self, other: "ArraySpec") -> bool:
        """Whether a leaf of spec `other` may follow one of this spec: Python numbers promote, arrays do not."""
        if self.shape != other.shape or self.dtype == other.dtype:
            return self.shape == other.shape
        return self.weak and self.rank <= other.rank

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def promoted(self, other: "ArraySpec") -> "ArraySpec":
        """The spec to check later values against, once a leaf of spec `other` has followed one of this spec."""
        return other if self.weak and self != other and self.rank <= other.rank else self

    def advice(self, other: "ArraySpec", name: str) -> str:
        """What the user can do if a leaf of spec `other` follows that does not match."""
        if self.shape != other.shape:
            return ""
        if self.rank < other.rank:
            return f"; start with {other.dtype.name}"
        return f"; cast it, as in {name}.astype({self.dtype.name!r})"

    @property
    def rank(self) -> int:
        """The rank of the dtype among bool, int, float and complex: each promotes to those after it."""
        return _RANKS.index(self.dtype.kind)


@dataclass(frozen=True)
class GeneratorSpec(ArraySpec):
    """The spec of a random generator in the carry: all states share the generator, and its rng state is replayed."""

    shape: tuple[int, ...] = ()
    dtype: np.dtype = _OBJECTS
    generator: object = None

    def promotes_to(self, other: ArraySpec) -> bool:
        """Whether it is the same generator."""
        return isinstance(other, GeneratorSpec) and other.generator is self.generator

    def advice(self, other: ArraySpec, name: str) -> str:
        """What the user can do."""
        return f"; {name} must stay the same generator: draw from it, and return it"

    def __str__(self) -> str:
        return type(self.generator).__name__


def spec_of(leaf: Leaf, name: str) -> ArraySpec:
    """The spec of a leaf, or a StepError that names it if it is not an array, a number or a random generator."""
    if isinstance(leaf, _GENERATORS) and private_rng_state(leaf) is not None:
        return GeneratorSpec(generator=leaf)
    return ArraySpec.of(leaf, name)


def is_observation(leaf: Leaf) -> bool:
    """Whether a leaf of xs is an array that only the step can interpret: records, dates, strings, masks, objects.

    No gradient flows to its rows, so the step gets them as `for x in xs` would.
    """
    if not isinstance(leaf, np.ndarray) or (type(leaf) is np.ndarray and leaf.dtype.kind in _RANKS):
        return False
    return not (leaf.dtype.hasobject and any(map(is_boxed, np.asarray(leaf).flat)))


def matches_spec(leaf: Leaf, spec: ArraySpec) -> bool:
    """Whether a leaf, boxed or not, is an array of exactly this spec."""
    # By identity: another generator with an equal state would not be replayed.
    if isinstance(spec, GeneratorSpec):
        return leaf is spec.generator
    plain = getval(leaf)
    return type(plain) is np.ndarray and plain.shape == spec.shape and plain.dtype == spec.dtype


def empty(count: int, spec: ArraySpec, like: Leaf) -> np.ndarray:
    """An uninitialized array for the rows of `count` leaves."""
    if isinstance(spec, GeneratorSpec):
        raise StepError(f"an output of the step is a {spec}: return the numbers that it draws, or leave it out")
    return np.empty((count, *spec.shape), spec.dtype)


def astype(rows: np.ndarray, spec: ArraySpec) -> np.ndarray:
    """The rows of a leaf, in the dtype of a spec."""
    return rows.astype(spec.dtype)


def reject_tracer(leaf: Leaf, name: str) -> None:
    """Raise a StepError if a leaf is boxed although all inputs of the step are plain."""
    if is_boxed(leaf):
        raise StepError(
            f"{name} is still traced by autograd where it must not be: the step uses a traced variable that remat "
            "could not find, or something made from one in another call of it (a cache, a cached_property, a log). "
            "Compute it in every call or before the loop, and pass it through init or xs, or close over it directly: "
            "closures, partials, attributes, items of lists and dicts, and globals are searched"
        )


def fast_match(spec: ArraySpec) -> Callable[[Leaf], bool]:
    """A fast test for plain leaves of this spec."""
    if isinstance(spec, GeneratorSpec):
        generator = spec.generator
        return lambda value: value is generator
    shape, dtype, array = spec.shape, spec.dtype, np.ndarray
    if shape:
        return lambda value: type(value) is array and value.shape == shape and value.dtype == dtype
    rank = _RANKS.index(dtype.kind)
    types = {dtype.type, *(number for number, letter in _PYTHON.items() if _RANKS.index(letter) <= rank)}
    return lambda value: (
        type(value) in types or (type(value) is array and value.shape == shape and value.dtype == dtype)
    )


def copy(leaf: Leaf) -> Leaf:
    """A writeable private copy of an array; a number unchanged."""
    return np.array(leaf, order="K") if isinstance(leaf, np.ndarray) else leaf


def ensure_writable(leaf: Leaf) -> Leaf:
    """The leaf, or a copy if it is read-only, since the caller of a loop may write into its results."""
    return leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.writeable else leaf


def nbytes(leaf: Leaf) -> int:
    """Bytes of a leaf, including its Python object."""
    if type(leaf) is SeparateRows:
        return sum(map(nbytes, leaf.rows))
    return leaf.nbytes + header(leaf) if isinstance(leaf, np.ndarray) else sys.getsizeof(leaf)


def header(array: np.ndarray) -> int:
    """Bytes of an array object without its data."""
    return sys.getsizeof(array) - (array.nbytes if array.flags.owndata else 0)


def fingerprint(leaf: Leaf, *, of_sizes: bool = False) -> float:
    """The fingerprint of a leaf, or of its absolute values; 0 for a generator, whose draws show in other leaves."""
    if type(leaf) is np.float64 and np.isfinite(leaf):  # most outputs: the same result in a sixth of the time
        return float(abs(leaf) * _WEIGHT if of_sizes else leaf * _WEIGHT)
    if isinstance(leaf, _GENERATORS):
        return 0.0
    with np.errstate(all="ignore"):
        return array_fingerprint(np.abs(leaf) if of_sizes else leaf)


def _type_name(leaf_type: type) -> str:
    name = leaf_type.__name__ if leaf_type.__module__ == "builtins" else f"{leaf_type.__module__}.{leaf_type.__name__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
