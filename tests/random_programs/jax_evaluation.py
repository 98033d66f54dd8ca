"""Programs of JAX, evaluated by NumPy: nothing is compiled, which takes most of the time of small programs.

Rule: loops, branches and calls are run by Python, equation by equation; what NumPy has is computed by NumPy, and the
rest by JAX outside of jit, which compiles each operation once for all programs. It misses mistakes in the lowering to
XLA: some programs are compiled as a whole for these.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from remat.frameworks.jax.avals import ClosedJaxpr, Jaxpr, without_unused

__all__ = ["evaluate"]


def evaluate(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function that JAX can trace."""
    program, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    program = without_unused(program, [True] * len(program.out_avals))
    results = _run(program, [_number(leaf) for leaf in jax.tree.leaves(args)])
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def _run(program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    return _equations(program.jaxpr, [*map(_number, program.consts)], args)


def _equations(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    read = lambda var: np.asarray(var.val, var.aval.dtype) if isinstance(var, Literal) else values[var]  # noqa: E731
    for eqn in jaxpr.eqns:
        results = _equation(eqn, [read(var) for var in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _equation(eqn: Any, args: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _CONTROL:
        return _CONTROL[name](args, params)
    if name in _NUMPY and all(isinstance(arg, np.ndarray) for arg in args):
        with np.errstate(all="ignore"):
            return [np.asarray(_NUMPY[name](*args, **params), eqn.outvars[0].aval.dtype)]
    bound = eqn.primitive.get_bind_params(params)
    functions, rest = bound if isinstance(bound, tuple) else ((), bound)
    results = eqn.primitive.bind(*functions, *map(jnp.asarray, args), **rest)
    return [_number(each) for each in (results if eqn.primitive.multiple_results else [results])]


def _number(value: Any) -> Any:
    """An array of NumPy; random keys stay JAX's."""
    is_key = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
    return value if is_key else np.asarray(value)


def _scan(args: list[Any], params: dict[str, Any]) -> list[Any]:
    n, m, length = params["num_consts"], params["num_carry"], params["length"]
    consts, carry, xs = args[:n], args[n : n + m], args[n + m :]
    rows: list[list[Any]] = [[] for _ in params["jaxpr"].out_avals[m:]]
    for i in range(length)[:: -1 if params["reverse"] else 1]:
        results = _run(params["jaxpr"], [*consts, *carry, *(_number(x[i]) for x in xs)])
        carry = results[:m]
        for row, y in zip(rows, results[m:], strict=True):
            row.append(y)
    pairs = zip(rows, params["jaxpr"].out_avals[m:], strict=True)
    return [*carry, *(_stacked(row[::-1] if params["reverse"] else row, aval) for row, aval in pairs)]


def _stacked(rows: list[Any], aval: Any) -> Any:
    if not rows:
        return _number(jnp.zeros((0, *aval.shape), aval.dtype))
    return np.stack(rows) if isinstance(rows[0], np.ndarray) else jnp.stack(rows)


def _while(args: list[Any], params: dict[str, Any]) -> list[Any]:
    a, b = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, consts, carry = args[:a], args[a:b], args[b:]
    while np.any(going := _run(params["cond_jaxpr"], [*cond_consts, *carry])[0]):
        after = _run(params["body_jaxpr"], [*consts, *carry])
        # In a batch members that ended keep their carry.
        carry = [_member(going, a, b) for a, b in zip(after, carry, strict=True)] if going.ndim else after
    return carry


def _member(going: Any, after: Any, before: Any) -> Any:
    where = np.where if isinstance(after, np.ndarray) else jnp.where
    return where(going.reshape(going.shape + (1,) * (after.ndim - going.ndim)), after, before)


def _cond(args: list[Any], params: dict[str, Any]) -> list[Any]:
    branches = params["branches"]
    return _run(branches[min(max(int(args[0]), 0), len(branches) - 1)], args[1:])


def _ours(args: list[Any], params: dict[str, Any]) -> list[Any]:
    return _run(params["function"].jaxpr([_aval(arg) for arg in args]), args)


def _our_jvp(args: list[Any], params: dict[str, Any]) -> list[Any]:
    linearization, count = params["linearization"], len(params["linearization"].active_inputs)

    def jvp(*args: Any) -> list[Any]:
        return list(linearization.jvp(args[:count], args[count + params["n_residuals"] :]))

    return _run(jax.make_jaxpr(jvp)(*map(_aval, args)), args)


def _aval(arg: Any) -> Any:
    return jax.ShapeDtypeStruct(arg.shape, arg.dtype)


def _called(name: str) -> Callable[[list[Any], dict[str, Any]], list[Any]]:
    def run(args: list[Any], params: dict[str, Any]) -> list[Any]:
        program = params[name]
        return _equations(program, [], args) if isinstance(program, Jaxpr) else _run(program, args)

    return run


_CONTROL = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "jit": _called("jaxpr"),
    "pjit": _called("jaxpr"),
    "checkpoint": _called("jaxpr"),
    "remat2": _called("jaxpr"),
    "closed_call": _called("call_jaxpr"),
    "custom_jvp_call": _called("call_jaxpr"),
    "custom_vjp_call": _called("call_jaxpr"),
    "optimization_barrier": lambda args, _: args,
    "remat_call": _ours,
    "remat_jvp": _our_jvp,
}


def _slice(x: Any, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _starts(x: Any, sizes: Sequence[int], starts: Sequence[Any]) -> Any:
    """A window of x as an index; one that lies partly outside is moved inside, as XLA does."""
    firsts = [min(max(int(at), 0), n - size) for at, n, size in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _update(x: Any, update: Any, *starts: Any, **_: Any) -> Any:
    x = x.copy()
    x[_starts(x, update.shape, starts)] = update
    return x


def _broadcast(x: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    whole = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        whole[axis] = size
    return np.broadcast_to(x.reshape(whole), shape)


def _select(which: Any, *cases: Any) -> Any:
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases)


def _pad(x: Any, value: Any, padding_config: Any) -> Any:
    axes = [(n, *config) for n, config in zip(x.shape, padding_config, strict=True)]
    whole = np.full([low + high + n + max(n - 1, 0) * gap for n, low, high, gap in axes], value)
    places = [low + (gap + 1) * np.arange(n) for n, low, _, gap in axes]
    kept = [(at >= 0) & (at < size) for at, size in zip(places, whole.shape, strict=True)]  # negative padding cuts
    whole[np.ix_(*(at[flags] for at, flags in zip(places, kept, strict=True)))] = x[np.ix_(*kept)]
    return whole


def _dot(a: Any, b: Any, dimension_numbers: Any, **_: Any) -> Any:
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    names_a, names_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*contract_a, *batch_a), (*contract_b, *batch_b), strict=True):
        names_b[j] = names_a[i]
    rest_a = [n for i, n in enumerate(names_a) if i not in (*contract_a, *batch_a)]
    rest_b = [n for i, n in enumerate(names_b) if i not in (*contract_b, *batch_b)]
    return np.einsum(a, names_a, b, names_b, [*(names_a[i] for i in batch_a), *rest_a, *rest_b])


_NAMES = {  # of operations that NumPy calls otherwise
    "is_finite": "isfinite", "add_any": "add", "sub": "subtract", "mul": "multiply", "neg": "negative",
    "max": "maximum", "min": "minimum", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "eq": "equal", "ne": "not_equal", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "invert",
}  # fmt: skip
_SAME = "sin cos tan tanh exp exp2 log log1p expm1 sqrt abs floor ceil add square atan2 sinh cosh real imag conj copy"
_NAMES |= {name: {"atan2": "arctan2"}.get(name, name) for name in _SAME.split()}


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **_: function(*args)  # parameters are about accuracy and placement


_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: _elementwise(getattr(np, other)) for name, other in _NAMES.items()},
    "integer_pow": lambda x, y: x**y if y >= 0 else 1 / x**-y,
    "copy_p": np.copy,
    "logistic": lambda x, **_: 1 / (1 + np.exp(-x)),
    "pad": _pad,
    "empty2": lambda dtype, **_: np.zeros((), dtype),
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "rem": lambda x, y: np.fmod(x, y),
    "pow": lambda x, y: np.power(x, y),
    "div": lambda x, y: np.divide(x, y) if x.dtype.kind in "fc" else (np.sign(x) * np.sign(y) * (abs(x) // abs(y))),
    "convert_element_type": lambda x, new_dtype, **_: x.astype(new_dtype),
    "broadcast_in_dim": _broadcast,
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "squeeze": lambda x, dimensions: x.squeeze(dimensions),
    "expand_dims": lambda x, dimensions: np.expand_dims(x, dimensions),
    "transpose": lambda x, permutation: x.transpose(permutation),
    "rev": lambda x, dimensions: np.flip(x, dimensions),
    "argmax": lambda x, axes, index_dtype: np.argmax(x, axes[0]).astype(index_dtype),
    "stack": lambda *xs, **_: np.stack(xs),
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "slice": _slice,
    "dynamic_slice": lambda x, *starts, slice_sizes: x[_starts(x, slice_sizes, starts)],
    "dynamic_update_slice": _update,
    "select_n": _select,
    "dot_general": _dot,
    "reduce_sum": lambda x, axes, **_: x.sum(axes),
    "reduce_max": lambda x, axes, **_: x.max(axes),
    "reduce_min": lambda x, axes, **_: x.min(axes),
    "reduce_or": lambda x, axes, **_: x.any(axes) if x.dtype == bool else np.bitwise_or.reduce(x, axes),
    "reduce_and": lambda x, axes, **_: x.all(axes) if x.dtype == bool else np.bitwise_and.reduce(x, axes),
    "iota": lambda dtype, shape, dimension, **_: _broadcast(
        np.arange(shape[dimension], dtype=dtype), shape, [dimension]
    ),
}
