"""JAX, in double precision."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy

from .adapter import Adapter, Counter
from .trees import leaves_of

__all__ = ["JAX"]


class JAX(Adapter):
    name = "jax"
    np = jnp
    exact = ()  # XLA fuses sums and products, each program in its own way
    last_bit = 1e-14
    any_plan = {"driven": True}  # noqa: RUF012
    generators: dict = {}  # noqa: RUF012  # random numbers are made of keys, which are values like others
    has_zero_steps = True  # as jax.lax.scan
    runs_python = False

    @contextlib.contextmanager
    def settings(self, quick=True):
        with jax.enable_x64(True):
            jax.config.update("jax_disable_most_optimizations", quick)
            yield
            jax.config.update("jax_disable_most_optimizations", False)

    def array(self, value, dtype="float64"):
        return jnp.asarray(value, dtype)

    def to_numpy(self, array):
        return numpy.asarray(array)

    def value_and_gradient(self, loss, *args, compiled=False):
        leaves, back = self.split(args)
        transform = jax.value_and_grad(lambda leaves: jnp.asarray(loss(*back(leaves)), float))
        value, found = (jax.jit(transform) if compiled else transform)(leaves)
        return self.to_numpy(value), [numpy.asarray(part) for part in found]

    def value(self, function, *args):
        return [numpy.asarray(leaf) for leaf in leaves_of(function(*args))]

    def outline(self, function):
        return jax.eval_shape(function)

    def compiled(self, function):
        return jax.jit(function)

    def grad(self, function):
        return jax.grad(function)

    def jvp(self, function, x, tangent):
        return jax.jvp(function, (x,), (tangent,))[1]

    def vjp(self, function, x):
        pull = jax.vjp(function, x)[1]
        return lambda cotangent: pull(cotangent)[0]

    def jacobian(self, function, x):
        return jax.jacrev(function)(x)

    def hessian(self, function, x):
        return jax.hessian(function)(x)

    def plain_scan(self, step, init, xs=None, length=None):
        return jax.lax.scan(step, init, xs, length=length)

    def weigh(self, value):
        return _weigh(super().weigh, value)

    def dataclass(self, cls):
        with contextlib.suppress(ValueError):  # where it is registered already
            jax.tree_util.register_dataclass(cls)
        return cls

    def counter(self):
        """The same one each time, so that programs that call it are compiled once."""
        COUNTER.reset()
        return COUNTER

    def counters(self, number):
        return [CallbackCounter() for _ in range(number)]

    def peak(self, function, *args):
        leaves, back = self.split(args)
        gradient = jax.jit(jax.grad(lambda leaves: function(*back(leaves))))
        return gradient.lower(leaves).compile().memory_analysis().temp_size_in_bytes

    def storage(self, array):
        return None

    def is_differentiable(self, leaf):
        return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


@partial(jax.jit, static_argnums=0)
def _weigh(function, value):
    return jnp.asarray(function(value), float)


class CallbackCounter(Counter):
    """Counts where the compiled program evaluates the step."""

    def reset(self):
        jax.effects_barrier()
        self.calls = 0

    def here(self, value):
        jax.debug.callback(self._add, jnp.ravel(value)[0])

    def _add(self, _):
        self.calls += 1

    @property
    def count(self):
        jax.effects_barrier()
        return self.calls


COUNTER = CallbackCounter()
