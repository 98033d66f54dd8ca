"""Instruments for tests, ours and users': is a gradient exact, is a schedule what its plan says, random problems.

`check_gradient`, `check_plan` and `check_schedule` raise an AssertionError that says what is wrong. The strategies need
hypothesis.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from remat.planners import Plan, Prediction
from remat.problem import Level, Loop, Memory, Problem
from remat.pytree import flatten
from remat.schedule import Op, Trace, simulate, verify

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["check_gradient", "check_plan", "check_schedule", "loops", "memories"]


def check_schedule(schedule: Iterable[Op], problem: Problem, memory: Memory) -> Trace:
    """The trace of a schedule that is legal inside the memory; one that is not raises an AssertionError."""
    verdict = verify(schedule, problem, memory)
    if not verdict:
        raise AssertionError(str(verdict))
    return simulate(schedule, problem, memory)


def check_plan(plan: Plan) -> Trace:
    """The trace of a plan that is legal, fits its memory and costs what it predicts; else an AssertionError.

    >>> from remat import Loop, plan
    >>> check_plan(plan(Loop(100), slots=5)).advances
    316
    """
    trace = check_schedule(plan.schedule, plan.problem, plan.memory)
    found = Prediction.of(trace)
    if not plan.predicted.agrees(found):
        raise AssertionError(f"the plan predicts {plan.predicted}, and its ops cost {found}")
    if plan.memory.device.capacity is not None and trace.peak > plan.memory.device.capacity:
        raise AssertionError(f"a peak of {trace.peak} bytes in a memory of {plan.memory.device.capacity}")
    return trace


def loops(most_steps: int = 60) -> "SearchStrategy[Loop]":
    """Random loops of up to so many steps, of all sizes and times."""
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
    """Random memories of one level or several, in bytes, slots or without limit, with costs in the order of levels."""
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
    function: Callable[..., Any], reference: Callable[..., Any], *args: Any, tolerance: float = 1e-12
) -> None:
    """Raise an AssertionError unless both functions have the same value and the same autograd gradients at `args`.

    Differences are relative to the largest number of each array.

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
    import numpy as np
    from autograd import value_and_grad

    found, expected = (value_and_grad(f, tuple(range(len(args))))(*args) for f in (function, reference))
    leaves, tree = flatten(expected)
    for name, a, b in zip(tree.paths("(value, gradients)"), tree.flatten_like(found, "found"), leaves, strict=True):
        error = float(np.max(np.abs(np.asarray(a) - b), initial=0.0))
        scale = float(np.max(np.abs(b), initial=0.0))
        if not error <= tolerance * scale:
            raise AssertionError(f"{name} differs by {error:.3g}, where its largest number is {scale:.3g}")
