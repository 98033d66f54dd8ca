"""Two identity primitives: one notes what a transformation does to its arguments, one refuses reverse mode.

`observe` reports which of its arguments vmap batches, or which have tangents. `forward_only` lets values, batches and
tangents pass. It refuses to be linearized, which happens before anything runs, and otherwise to be transposed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from remat.errors import StepError
from remat.frameworks.jax.avals import Array, Flags, Tracer, is_linearized, is_ref

__all__ = ["forward_only", "may_be_pulled_back", "observe"]


def may_be_pulled_back(array: Any) -> bool:
    """Whether an array is traced, other than for forward mode only."""
    return is_linearized(array.tangent) if isinstance(array, ad.JVPTracer) else isinstance(array, Tracer)


_observe_p = Primitive("remat_observe")
_observe_p.multiple_results = True
_observe_p.def_impl(lambda *_, note: [])
_observe_p.def_abstract_eval(lambda *_, note: [])


def observe(values: Sequence[Array], note: Callable[[Flags], None]) -> None:
    """Call `note` with one flag for each value: whether vmap batches it, or whether it has a tangent under jvp."""
    _observe_p.bind(*values, note=note)


def _observe_jvp(primals: Any, tangents: Any, *, note: Callable[[Flags], None]) -> Any:
    note(tuple(not isinstance(tangent, ad.Zero) for tangent in tangents))
    return [], []


def _observe_batch(axis: Any, args: Any, dims: Any, *, note: Callable[[Flags], None]) -> Any:
    note(tuple(dim is not None for dim in dims))
    return [], []


ad.primitive_jvps[_observe_p] = _observe_jvp
batching.fancy_primitive_batchers[_observe_p] = _observe_batch

_forward_only_p = Primitive("remat_forward_only")
_forward_only_p.multiple_results = True


def forward_only(values: Sequence[Array], reason: str) -> list[Array]:
    """The values; differentiating them in reverse mode raises a StepError with the reason."""
    arrays = [value for value in values if not is_ref(value)]
    passed = iter(_forward_only_p.bind(*arrays, reason=reason) if arrays else ())
    return [value if is_ref(value) else next(passed) for value in values]


@_forward_only_p.def_impl
def _pass(*args: Array, reason: str) -> list[Array]:
    return list(args)


@_forward_only_p.def_abstract_eval
def _pass_avals(*avals: Any, reason: str) -> list[Any]:
    return list(avals)


def _forward_only_jvp(primals: Any, tangents: Any, *, reason: str) -> Any:
    if any(map(is_linearized, tangents)):
        raise StepError(reason)
    moving = [tangent for tangent in tangents if not isinstance(tangent, ad.Zero)]
    passed = iter(_forward_only_p.bind(*moving, reason=reason) if moving else ())
    outputs = _forward_only_p.bind(*primals, reason=reason)
    return outputs, [tangent if isinstance(tangent, ad.Zero) else next(passed) for tangent in tangents]


def _forward_only_transpose(cotangents: Any, *args: Any, reason: str) -> Any:
    raise StepError(reason)


def _forward_only_batch(axis: Any, args: Any, dims: Any, *, reason: str) -> Any:
    return _forward_only_p.bind(*args, reason=reason), dims


ad.primitive_jvps[_forward_only_p] = _forward_only_jvp
ad.primitive_transposes[_forward_only_p] = _forward_only_transpose
batching.fancy_primitive_batchers[_forward_only_p] = _forward_only_batch
mlir.register_lowering(_forward_only_p, mlir.lower_fun(_pass, multiple_results=True))
