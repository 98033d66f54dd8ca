"""Tools for our tests and for users' tests: check gradients, plans and schedules, and generate random problems.

`check_gradient`, `check_plan` and `check_schedule` raise an AssertionError that says what is wrong. The strategies
(`loops`, `memories`) need hypothesis.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.errors import ProblemError
from remat.frameworks import find_framework
from remat.planners import Plan, Prediction
from remat.problem import Level, Loop, Memory, Problem
from remat.pytree import flatten
from remat.schedule import Op, Trace, simulate, verify
from remat.segments import display_name

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["check_gradient", "check_plan", "check_schedule", "loops", "memories"]


def check_schedule(schedule: Iterable[Op], problem: Problem, memory: Memory) -> Trace:
    """The trace of a schedule; raise an AssertionError unless it is legal and fits the memory.

    >>> from remat import Loop, Memory, Schedule
    >>> check_schedule(Schedule.parse("record 0 3; turn; pullback 3 0"), Loop(3), Memory("1 KiB")).forward_steps
    3
    """
    verdict = verify(schedule, problem, memory)
    if not verdict:
        raise AssertionError(str(verdict))
    return simulate(schedule, problem, memory)


def check_plan(plan: Plan) -> Trace:
    """The trace of a plan; raise an AssertionError unless it is legal, fits its memory and costs what it predicts.

    >>> from remat import Loop, plan
    >>> check_plan(plan(Loop(100), slots=5)).advances
    316
    """
    trace = check_schedule(plan.schedule, plan.problem, plan.memory)
    cost = Prediction.of(trace)
    if not plan.predicted.agrees(cost):
        raise AssertionError(f"the plan predicts {plan.predicted}, and its ops cost {cost}")
    if plan.memory.device.capacity is not None and trace.peak > plan.memory.device.capacity:
        raise AssertionError(f"a peak of {trace.peak} bytes in a memory of {plan.memory.device.capacity}")
    return trace


def loops(most_steps: int = 60) -> "SearchStrategy[Loop]":
    """A strategy for loops of at most `most_steps` steps, with random sizes and times."""
    from hypothesis import strategies as st

    times = st.floats(0, 10, allow_nan=False).map(lambda x: round(x, 3))

    @st.composite
    def build(draw: Any) -> Loop:
        state, tape = draw(st.integers(1, 9)), draw(st.integers(0, 30))
        restartable = draw(st.booleans()) and tape >= state
        forward, record, backward, per_range = (draw(times) for _ in range(4))
        return Loop(draw(st.integers(0, most_steps)), state, tape, forward, record, backward, restartable, per_range)

    return build()


def memories(most_levels: int = 3) -> "SearchStrategy[Memory]":
    """A strategy for memories of one or more levels, in bytes, in slots or unlimited; later levels cost no less."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw: Any) -> Memory:
        levels = []
        read = write = 0.0
        for number in range(draw(st.integers(1, most_levels))):
            in_slots = draw(st.booleans())
            slots = draw(st.integers(0, 8)) if in_slots else None
            capacity = None if in_slots else draw(st.integers(0, 300))
            if number and draw(st.booleans()):
                slots = capacity = None
            levels.append(Level(f"level{number}", capacity, slots=slots, read=read, write=write))
            read, write = read + draw(st.integers(0, 8)) / 4, write + draw(st.integers(0, 8)) / 4
        return Memory(levels=levels)

    return build()


def check_gradient(
    function: Callable[..., Any], reference: Callable[..., Any], *args: Any, tolerance: float | None = None
) -> None:
    """Raise an AssertionError unless both functions have the same value and the same gradients at `args`.

    The arguments decide the framework: autograd for NumPy arrays and numbers, PyTorch for tensors and modules, JAX for
    its arrays. PyTorch and JAX differentiate with respect to all floating-point leaves of the arguments; PyTorch also
    with respect to the parameters of modules among them.

    Args:
        function: The function to test, which uses remat; it takes `args` and returns one number.
        reference: The same function, computed plainly.
        *args: Arrays and numbers in any nesting of containers.
        tolerance: The largest difference allowed, relative to the largest number of each array; by default 1e-12 in
            double precision and 64 times the machine epsilon in lower precisions.

    Raises:
        AssertionError: If a value or a gradient differs; it says which, and by how much.
        ProblemError: If a function does not return one number, or there is nothing to differentiate.

    Example:
        >>> import autograd.numpy as np
        >>> import remat
        >>> def loop(x):
        ...     return remat.scan(lambda x, _: (np.sin(x), None), x, length=9, slots=2)[0]
        >>> def plain(x):
        ...     for _ in range(9):
        ...         x = np.sin(x)
        ...     return x
        >>> check_gradient(loop, plain, 0.5)
    """
    differentiate = _DIFFERENTIATE[find_framework(*args, using=(function, reference)).TRAITS.name]
    actual, expected = differentiate(function, args), differentiate(reference, args)
    for name, (right, rounding) in expected.items():
        error = float(np.max(np.abs(actual[name][0] - right), initial=0.0))
        scale = float(np.max(np.abs(right), initial=0.0))
        allowed = max(1e-12, 64 * rounding) if tolerance is None else tolerance
        if not error <= allowed * scale:
            raise AssertionError(f"{name} differs by {error:.3g}, where its largest number is {scale:.3g}")


# The value and each gradient by name: its numbers in double precision, and the machine epsilon of its original dtype.
_Results = dict[str, tuple[Any, float]]
_VALUE, _GRADIENTS = "(value, gradients)[0]", "(value, gradients)[1]"
_NOTHING = "there is nothing to differentiate: no argument has a leaf of floating-point numbers"


def _doubled(array: Any) -> tuple[Any, float]:
    """An array in double precision, and the machine epsilon of its dtype, which must be one that NumPy knows."""
    array = np.asarray(array)
    if not np.issubdtype(array.dtype, np.inexact):  # integers are exact
        return array.astype(np.float64), 0.0
    return array.astype(np.result_type(array.dtype, np.float64)), float(np.finfo(array.dtype).eps)


def _differentiate_autograd(function: Callable[..., Any], args: tuple[Any, ...]) -> _Results:
    from autograd import value_and_grad

    leaves, tree = flatten(value_and_grad(function, tuple(range(len(args))))(*args))
    return {name: _doubled(leaf) for name, leaf in zip(tree.paths("(value, gradients)"), leaves, strict=True)}


def _differentiate_torch(function: Callable[..., Any], args: tuple[Any, ...]) -> _Results:
    import torch

    def doubled(tensor: torch.Tensor) -> tuple[Any, float]:
        double = torch.complex128 if tensor.is_complex() else torch.float64
        rounding = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0
        return tensor.detach().to("cpu", double).numpy(), rounding

    leaves, tree = flatten(args)
    inputs: dict[str, torch.Tensor] = {}
    for index, (leaf, name) in enumerate(zip(leaves, tree.paths(_GRADIENTS), strict=True)):
        if isinstance(leaf, torch.nn.Module):
            inputs |= {f"{name}.{key}": each for key, each in leaf.named_parameters() if each.requires_grad}
        elif isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            leaves[index] = inputs[name] = leaf.detach().clone().requires_grad_()
    if not inputs:
        raise ProblemError(_NOTHING)
    value = function(*tree.unflatten(leaves))
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise ProblemError(f"a function must return a tensor of one number, and {display_name(function)} gave {shape}")
    grads: tuple[torch.Tensor | None, ...] = (None,) * len(inputs)
    if value.requires_grad:
        grads = torch.autograd.grad(value.sum(), list(inputs.values()), allow_unused=True)
    pairs = zip(inputs.items(), grads, strict=True)
    gradients = {name: doubled(torch.zeros_like(leaf) if grad is None else grad) for (name, leaf), grad in pairs}
    return {_VALUE: doubled(value), **gradients}


def _differentiate_jax(function: Callable[..., Any], args: tuple[Any, ...]) -> _Results:
    import jax
    import jax.numpy as jnp

    def is_active(leaf: Any) -> bool:
        numbers = isinstance(leaf, jax.Array | np.ndarray | np.generic | float | complex)
        return numbers and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)

    def doubled(array: Any) -> tuple[Any, float]:
        double = jnp.promote_types(array.dtype, jnp.float32)  # NumPy has no bfloat16
        return _doubled(array.astype(double))[0], float(jnp.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]

    paths_and_leaves, tree = jax.tree_util.tree_flatten_with_path(args)
    leaves = [leaf for _, leaf in paths_and_leaves]
    active = {index: leaf for index, leaf in enumerate(leaves) if is_active(leaf)}
    if not active:
        raise ProblemError(_NOTHING)

    def of_active(active: dict[int, Any]) -> Any:
        return function(
            *jax.tree_util.tree_unflatten(tree, [active.get(index, leaf) for index, leaf in enumerate(leaves)])
        )

    value, grads = jax.value_and_grad(of_active)(active)
    names = {index: f"{_GRADIENTS}{jax.tree_util.keystr(paths_and_leaves[index][0])}" for index in active}
    return {_VALUE: doubled(value), **{names[index]: doubled(grad) for index, grad in grads.items()}}


_DIFFERENTIATE = {"numpy": _differentiate_autograd, "torch": _differentiate_torch, "jax": _differentiate_jax}
