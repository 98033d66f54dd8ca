"""The documented functions of older systems: same names, signatures and values, with exact gradients.

Loops: `binomial_checkpoint` and `checkpointed_loop`. Segments: `checkpoint_segment` and `CheckpointGroup`. The rest
estimate what checkpoints save: the keys of an estimate keep their documented meaning, and the true cost, which is that
of the optimal plan, has separate keys.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from math import inf, isqrt
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from remat.errors import ProblemError, StepError
from remat.frameworks import Framework, find_framework
from remat.interface.segment_inputs import CheckpointGroup, checkpoint_segment, checkpoint_segment_flex
from remat.loops.legacy_inputs import stack_inputs, with_initial
from remat.loops.request import LoopRequest
from remat.planners import Plan, SavePoints, plan
from remat.planners.loop.save_points import even_positions
from remat.problem import Loop
from remat.profiling import CheckpointProfiler
from remat.profiling.profiler import recorded_call
from remat.units import to_count

__all__ = [
    "CheckpointGroup",
    "CheckpointProfiler",
    "ag_tuple",
    "binomial_checkpoint",
    "checkpoint_segment",
    "checkpoint_segment_flex",
    "checkpointed_loop",
    "compute_checkpoint_positions",
    "estimate_checkpoint_savings",
    "get_memory_savings",
    "should_checkpoint",
]

State = TypeVar("State")

ag_tuple: Any  # autograd's tuple, loaded by __getattr__

if not TYPE_CHECKING:  # a type checker that saw this would accept every name

    def __getattr__(name: str) -> Any:
        """Load `ag_tuple` from autograd on first use."""
        if name == "ag_tuple":
            return import_module("remat.frameworks.numpy").ag_tuple
        raise AttributeError(f"module 'remat.legacy' has no attribute {name!r}")


def binomial_checkpoint(
    function: Callable[[Any, Any, Any], Any], sequence_length: int, num_checkpoints: int
) -> Callable[[Any, Any, Any], Any]:
    """Return a function of (parameters, (hidden, visible), inputs) that loops `function` over the inputs.

    The loop returns `sequence_length + 1` visible states, the initial one first: an array with one row per state, or a
    list if a visible state is a container. Parameters, state and inputs all get gradients.

    Args:
        function: `function(parameters, (hidden, visible), input) -> (hidden, visible)`, one step of the loop.
        sequence_length: The number of steps.
        num_checkpoints: The most states to keep for the gradient.

    Returns:
        `loop(parameters, (hidden, visible), inputs)`, where inputs are an array with one row per step, or a list.

    Raises:
        ProblemError: If `function` is not callable, a count is not a positive whole number, or the number of inputs
            is not `sequence_length`.
        StepError: If the initial state or what `function` returns is not a pair (hidden, visible).

    Example:
        >>> import autograd.numpy as np
        >>> from remat.legacy import ag_tuple
        >>> def rnn(weight, state, x):
        ...     return ag_tuple(()), np.tanh(weight * state[1] + x)
        >>> loop = binomial_checkpoint(rnn, 3, 2)
        >>> loop(0.5, (ag_tuple(()), np.zeros(2)), np.ones((3, 2))).shape
        (4, 2)
    """
    if not callable(function):
        order = ": write binomial_checkpoint(function, sequence_length, num_checkpoints)"
        order = order if any(map(callable, (sequence_length, num_checkpoints))) else ""
        raise ProblemError(f"function must be callable, not {function!r:.60}{order}")
    steps = to_count(sequence_length, "sequence_length", least=1)
    slots = to_count(num_checkpoints, "num_checkpoints", least=1)

    def loop(parameters: Any, state: Any, inputs: Any) -> Any:
        return _visible_states(function, steps, slots, parameters, state, inputs)

    return loop


def _visible_states(
    function: Callable[[Any, Any, Any], Any], steps: int, slots: int, parameters: Any, state: Any, inputs: Any
) -> Any:
    """The visible state before the first step and after each one."""
    framework = find_framework(parameters, state, inputs)
    first = framework.unpack(state)
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise StepError(
            f"the initial state must be (hidden, visible), not a {type(first).__name__}; where nothing is hidden, "
            "give (ag_tuple(()), visible)"
        )
    inputs = stack_inputs(framework, inputs, steps)

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        after = framework.unpack(function(parameters, state, x))
        if not isinstance(after, tuple | list) or len(after) != 2:
            raise StepError(f"the function must return (hidden, visible), not a {type(after).__name__}")
        return tuple(after), after[1]

    request = replace(LoopRequest.parse(None, slots, None, "first", None), spare_row=True)
    with recorded_call("binomial_checkpoint", function) as call:
        request = request.for_call(function, call, framework.TRAITS.name)
        _, visible = framework.scan(step, tuple(first), inputs, steps, request)
    return with_initial(framework, first[1], visible, steps)


_LOOP = "checkpointed_loop(func, initial_state, seq_length)"  # the correct call, for messages


def _check_order(func: Any, initial_state: Any, seq_length: Any) -> None:
    """Raise a ProblemError that shows the correct call if the arguments are in another order."""
    if not callable(func):
        order = f": write {_LOOP}" if callable(initial_state) or callable(seq_length) else ""
        what = f"an array of shape {list(func.shape)}" if hasattr(func, "shape") else f"{func!r:.60}"
        raise ProblemError(f"func must be callable, not {what}{order}")
    if isinstance(initial_state, int) and hasattr(seq_length, "shape") and seq_length.shape:
        raise ProblemError(f"seq_length is an array of shape {list(seq_length.shape)}: write {_LOOP}")


def checkpointed_loop(
    func: Callable[[State], State], initial_state: State, seq_length: int, num_checkpoints: int | None = None
) -> tuple[State, dict[int, State]]:
    """Run `state = func(state)` `seq_length` times; return the last state and the states at the checkpoints.

    Both results are differentiable. By default, the gradient starts from the √n returned states and reruns each
    section between two of them once, which is fastest in the memory of these states and one section's tape. With
    `num_checkpoints`, it keeps that many states, placed for the least recomputation. The plan of a profiled call
    (`remat.profile`) says which of the two was used.

    Args:
        func: One step, from a state to the next one.
        initial_state: Arrays and numbers in any nesting of containers.
        seq_length: The number of steps.
        num_checkpoints: The number of checkpoints; by default √n rounded down.

    Returns:
        The last state, and a dict from the positions of `compute_checkpoint_positions` to the states there. Each state
        is a copy that shares memory neither with another state nor with a step.

    Raises:
        ProblemError: If `func` is not callable or a count is not a whole number.

    Example:
        >>> import numpy as np
        >>> final, checkpoints = checkpointed_loop(lambda x: x + 1, np.zeros(1), 20, 4)
        >>> final, sorted(checkpoints)
        (array([20.]), [4, 8, 12, 16])
    """
    _check_order(func, initial_state, seq_length)
    steps, count = _checkpoint_count(seq_length, num_checkpoints)
    if steps == 0:
        return initial_state, {}
    positions = compute_checkpoint_positions(steps, count)
    later = [position for position in positions if position]
    request = LoopRequest.parse(None, max(1, count), None, "first", None)
    if num_checkpoints is None:
        request = replace(request, memory=None, plan=_sections(steps, tuple(later)))
    framework = find_framework(initial_state, using=[func])
    with recorded_call("checkpointed_loop", func) as call:
        request = request.for_call(func, call, framework.TRAITS.name)
        final, rows = _scan_with_rows(framework, func, initial_state, steps, request, later)
    leaves, tree = framework.flatten(initial_state)
    checkpoints = {0: tree.unflatten([framework.own(leaf) for leaf in leaves])} if 0 in positions else {}
    leaves, tree = framework.flatten(rows)
    separate = [framework.separate(leaf) for leaf in leaves]
    for row, position in enumerate(later):
        checkpoints[position] = tree.unflatten([leaf[row] for leaf in separate])
    return final, checkpoints


@lru_cache(maxsize=64)
def _sections(steps: int, positions: tuple[int, ...]) -> Plan:
    """The plan that keeps the states at these positions and records one section between them at a time."""
    chosen = plan(Loop(steps), slots=len(positions), planner=SavePoints(positions))
    return chosen.because(
        "no number of checkpoints is given, so the loop runs what is fastest in the memory of √n states and one "
        "section's tape: every section but the last runs twice"
    )


def _scan_with_rows(
    framework: Framework, func: Callable[[Any], Any], init: Any, steps: int, request: LoopRequest, positions: list[int]
) -> Any:
    """The last state, and the states at these positions stacked as rows; no other state becomes an output."""

    def step(state: Any, x: None) -> tuple[Any, Any]:
        after = func(state)
        return after, after

    rows = {position - 1: row for row, position in enumerate(positions)}
    return framework.scan(step, init, None, steps, request, rows=rows)


def _checkpoint_count(seq_length: int, num_checkpoints: int | None) -> tuple[int, int]:
    """Both counts, validated; the number of checkpoints defaults to √n rounded down."""
    steps = to_count(seq_length, "seq_length")
    return steps, isqrt(steps) if num_checkpoints is None else to_count(num_checkpoints, "num_checkpoints")


def compute_checkpoint_positions(seq_length: int, num_checkpoints: int) -> list[int]:
    """Evenly spaced positions for the checkpoints, longer gaps last; every position if there are enough checkpoints.

    These are the positions that `checkpointed_loop` returns. With `num_checkpoints`, the states that it keeps for the
    gradient are placed optimally instead.

    Args:
        seq_length: The number of steps.
        num_checkpoints: The number of checkpoints.

    Returns:
        The positions, increasing.

    Raises:
        ProblemError: If a count is not a whole number.

    Example:
        >>> compute_checkpoint_positions(100, 5)
        [16, 32, 49, 66, 83]
    """
    steps, count = _checkpoint_count(seq_length, num_checkpoints)
    if count >= steps:
        return list(range(steps))
    return even_positions(steps, count)


def get_memory_savings(seq_length: int, num_checkpoints: int | None = None) -> dict[str, Any]:
    """What checkpoints save in a loop, counted in states.

    Args:
        seq_length: The number of steps, n.
        num_checkpoints: The number of checkpoints, k; √n rounded down by default.

    Returns:
        A dict. `savings_ratio` is 1 − k/n, which `should_checkpoint` compares with its threshold, and
        `savings_percent` is the same in percent. `recomputation_factor` is n/k, as it was always documented. The
        optimal reversal with k states runs `forward_steps` steps, of which `extra_forward_steps` are recomputed, and
        has `peak_states` states live at its peak.

    Raises:
        ProblemError: If a count is not a whole number.

    Example:
        >>> stats = get_memory_savings(1000)
        >>> stats["num_checkpoints"], stats["savings_ratio"], round(stats["recomputation_factor"], 1)
        (31, 0.969, 32.3)
        >>> stats["forward_steps"], stats["extra_forward_steps"], stats["peak_states"]
        (3439, 2439, 34)
    """
    steps, count = _checkpoint_count(seq_length, num_checkpoints)
    used = min(count, steps)
    saved = (steps - used) / steps if steps else 0.0
    optimal = plan(Loop(steps, tape=0), slots=max(1, used))
    return {
        "without_checkpointing": steps,
        "with_checkpointing": used,
        "savings_percent": 100.0 * saved,
        "savings_ratio": saved,
        "num_checkpoints": used,
        "recomputation_factor": steps / used if used else (inf if steps else 1.0),
        "peak_states": optimal.peak,
        "forward_steps": optimal.forward_steps,
        "extra_forward_steps": optimal.recomputed,
    }


def estimate_checkpoint_savings(seq_length: int, num_checkpoints: int | None = None) -> dict[str, Any]:
    """Another name for `get_memory_savings`.

    Args:
        seq_length: The number of steps.
        num_checkpoints: The number of checkpoints, √n rounded down by default.

    Returns:
        The dict of `get_memory_savings`.

    Raises:
        ProblemError: If a count is not a whole number.

    Example:
        >>> estimate_checkpoint_savings(100)["savings_percent"]
        90.0
    """
    return get_memory_savings(seq_length, num_checkpoints)


def should_checkpoint(seq_length: int, threshold: float = 0.5) -> bool:
    """Whether √n checkpoints save at least the fraction `threshold` of the memory of n states.

    Args:
        seq_length: The number of steps, n.
        threshold: A fraction between 0 and 1.

    Returns:
        True if they save at least that much.

    Raises:
        ProblemError: If `seq_length` is not a whole number or `threshold` is not between 0 and 1.

    Example:
        >>> should_checkpoint(1000), should_checkpoint(1)
        (True, False)
    """
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        raise ProblemError(f"threshold is a share between 0 and 1, not {threshold!r:.40}")
    return bool(get_memory_savings(seq_length)["savings_ratio"] >= threshold)
