"""Functions of flat arrays with our own derivatives, to any order and in both modes.

JAX's `custom_vjp` refuses forward mode, and `custom_jvp` transposes tangents the way they were computed, which stores a
tape of the whole loop. So two primitives (`primitives.py`) ask the classes of this file for derivatives:

    call(f, args)                                          f.run: the plain function
      │
      │ differentiate:  L = f.linearize(active_inputs, args)
      ├──► call(ForwardWithResiduals(L), args)             L.forward: outputs, and residuals for the VJP
      └──► jvp primitive(L, args, residuals, tangents)     L.jvp: linear in the tangents, does not read the residuals
             │
             │ transpose (reverse mode only)
             └──► call(VJP(L), args, residuals, cotangents)   L.vjp: the reverse sweep

Higher orders work because each arrow again ends in a call or in the jvp primitive (`linearizations.py`):

- ForwardWithResiduals is differentiated like f. Residuals have no tangents: they are a function of the arguments, and
  the VJP is differentiated with respect to the arguments.
- VJP, forward over reverse: jax.jvp through L.forward and L.vjp. Both sweeps carry tangents, in the memory of two runs.
- VJP, reverse over reverse: jax.vjp of L.differentiable_vjp, which computes the same by loops that are calls themselves
  (`second_order.py`).
- jvp primitive, with tangents for its args: jax.jvp of L.differentiable_jvp, a loop of steps with tangents.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
from jax.typing import ArrayLike

from remat.errors import StepError
from remat.frameworks.jax.avals import Array, Aval, BatchAxis, ClosedJaxpr, Flags, aval_of, inputs_needed

__all__ = ["Arrays", "CacheKeyed", "DifferentiableFunction", "ForwardModeOnly", "Linearization"]

Arrays = Sequence[Array]


class CacheKeyed:
    """Compared by its key, so that equal objects share compiled programs."""

    key: Any = None  # None: equal only to itself

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self.key is not None and self.key == other.key

    def __hash__(self) -> int:
        return id(self) if self.key is None else hash((type(self), self.key))


class DifferentiableFunction(CacheKeyed, ABC):
    """A function of flat arrays that returns a list of arrays."""

    eager = False  # whether Python runs it, outside of any trace
    algorithm: Any = None  # cache key of how it is differentiated; equal functions may have different plans

    @property
    @abstractmethod
    def has_custom_rules(self) -> bool:
        """Whether it calls functions with their own derivative rules (jax.custom_vjp or jax.custom_jvp)."""

    @property
    @abstractmethod
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """The user's programs that it runs, each any number of times."""

    @abstractmethod
    def run(self, *args: Array) -> Arrays:
        """The results, computed by operations that JAX can trace."""

    @abstractmethod
    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Sequence[ArrayLike]]":
        """The linearization with respect to the active arguments, and the extra arrays that it needs.

        Extra arrays are computed on the host, such as the tables of a plan. As inputs they are not part of the cache
        key.
        """

    def batched(
        self, axis: BatchAxis, flags: Flags, args: Arrays
    ) -> "tuple[DifferentiableFunction, Arrays, list[int | None]] | None":
        """The function for a batch along the first axis of the flagged arguments, its arguments, and its out_axes.

        None means that jax.vmap of `run` suffices.
        """
        return None

    def limited(self, share: int) -> "DifferentiableFunction":
        """The function with its loops that have a budget in bytes planned within `share` bytes, where that suffices."""
        return self

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """Which arguments these results depend on."""
        return inputs_needed(self.jaxpr(avals), outputs)

    def jaxpr(self, args: Sequence[Aval]) -> ClosedJaxpr:
        """The jaxpr for arguments with these avals, traced once."""
        programs = self.__dict__.setdefault("_jaxprs", {})
        avals = tuple(map(aval_of, args))
        # With x64 enabled, Python numbers in `run` become arrays of another dtype.
        key = avals, jax.config.jax_enable_x64  # type: ignore[attr-defined]
        if key not in programs:
            programs[key] = jax.make_jaxpr(self.run)(*avals)
        program: ClosedJaxpr = programs[key]
        return program


class Linearization(CacheKeyed, ABC):
    """A function linearized with respect to its active inputs: its jvp, and its vjp from residuals."""

    function: DifferentiableFunction
    n_outputs: int  # results of the function
    extra_inputs: int = 0  # how many extra arrays `linearize` returns
    active_inputs: Flags  # the arguments that have tangents
    active_outputs: Flags  # the results that have tangents
    error: StepError | None = None  # why it cannot be transposed, if it cannot
    algorithm: Any = None  # cache key of choices that matter to `differentiable_vjp` and not to `vjp`
    eager = False

    @property
    def has_custom_rules(self) -> bool:
        """Whether the function has custom rules."""
        return self.function.has_custom_rules

    def output_avals(self, args: Sequence[Aval]) -> list[Aval]:
        """The avals of the results, which their tangents share."""
        return list(self.function.jaxpr(args).out_avals)

    @property
    def needed_inputs(self) -> Flags:
        """The arguments that the residuals and `vjp` depend on; a VJP may be passed anything for the others."""
        return (True,) * len(self.active_inputs)

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The function that `forward` runs; a jax.custom_vjp rule may make it differ from `function`."""
        return self.function

    @abstractmethod
    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results, and the residuals: what `vjp` needs besides the arguments and the extra arrays."""

    @abstractmethod
    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the active outputs, given those of the active inputs."""

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """Like `jvp`, by operations that can be differentiated in both modes."""
        return self.jvp(args, tangents)

    @abstractmethod
    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs; `residuals` start with the extra arrays.

        `nonzero` says which active outputs have a cotangent in `cotangents`; the cotangents of the others are zero.
        """

    @abstractmethod
    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """Like `vjp`, from the arguments alone, by operations that can be differentiated in both modes."""


class ForwardModeOnly(Linearization):
    """What the linearizations of functions with a JVP but no VJP share: they refuse reverse mode."""

    extra_inputs = 0
    error: StepError

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The function itself."""
        return self.function

    @property
    def needed_inputs(self) -> Flags:
        """None: there is no VJP."""
        return (False,) * len(self.active_inputs)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results, without residuals."""
        return self.function.run(*args), ()

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Raise the StepError that says why there is no VJP."""
        raise self.error
