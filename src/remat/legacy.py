"""Loops under the names and signatures of older systems, with exact gradients."""

from collections.abc import Callable
from typing import Any

from remat.errors import ProblemError, StepError
from remat.frameworks import find_framework
from remat.interface.estimates import checkpoint_count, compute_checkpoint_positions
from remat.loops.request import LoopRequest
from remat.profiling.profiler import recorded_call
from remat.pytree import LEAF, flatten
from remat.units import to_count

__all__ = ["binomial_checkpoint", "checkpointed_loop"]


def binomial_checkpoint(
    function: Callable[[Any, Any, Any], Any], sequence_length: int, num_checkpoints: int
) -> Callable[[Any, Any, Any], Any]:
    """A function of (parameters, (hidden, visible), inputs) that loops `function` over the inputs.

    `function(parameters, (hidden, visible), input) -> (hidden, visible)`. The result is the `sequence_length + 1`
    visible states, the initial one first: an array with one row for each, or a list if a visible state is a container.
    Gradients flow to parameters, state and inputs together, with at most `num_checkpoints` states kept.

    >>> import autograd.numpy as np
    >>> from remat import ag_tuple
    >>> def rnn(weight, state, x):
    ...     return ag_tuple(()), np.tanh(weight * state[1] + x)
    >>> loop = binomial_checkpoint(rnn, 3, 2)
    >>> loop(0.5, (ag_tuple(()), np.zeros(2)), np.ones((3, 2))).shape
    (4, 2)
    """
    if not callable(function):
        raise ProblemError(f"function must be callable, not {function!r:.60}")
    steps = to_count(sequence_length, "sequence_length", least=1)
    slots = to_count(num_checkpoints, "num_checkpoints", least=1)

    def loop(parameters: Any, state: Any, inputs: Any) -> Any:
        room = find_framework(parameters, state, inputs)
        first = room.unpack(state)
        if not isinstance(first, tuple | list) or len(first) != 2:
            raise StepError(
                f"the initial state must be (hidden, visible), not a {type(first).__name__}; where nothing is hidden, "
                "give (ag_tuple(()), visible)"
            )
        inputs = room.stacked(inputs, steps)

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            after = room.unpack(function(parameters, state, x))
            if not isinstance(after, tuple | list) or len(after) != 2:
                raise StepError(f"the function must return (hidden, visible), not a {type(after).__name__}")
            return tuple(after), after[1]

        request = LoopRequest.parse(None, slots, None, "first", None)
        with recorded_call("binomial_checkpoint", function) as call:
            _, after = room.scan(step, tuple(first), inputs, steps, request.for_profile(call, room.NAME))
        return room.with_first(first[1], after, steps)

    return loop


def checkpointed_loop(
    func: Callable[[Any], Any], initial_state: Any, seq_length: int, num_checkpoints: int | None = None
) -> tuple[Any, dict[int, Any]]:
    """The state after `seq_length` times `state = func(state)`, and the states at the checkpoints by position.

    There are √n checkpoints by default, at `compute_checkpoint_positions`. Both results are differentiable; a gradient
    keeps as many states, placed for the least recomputation.

    >>> import numpy as np
    >>> final, checkpoints = checkpointed_loop(lambda x: x + 1, np.zeros(1), 20, 4)
    >>> final, sorted(checkpoints)
    (array([20.]), [4, 8, 12, 16])
    """
    if not callable(func):
        raise ProblemError(f"func must be callable, not {func!r:.60}")
    steps, count = checkpoint_count(seq_length, num_checkpoints)
    positions = compute_checkpoint_positions(steps, count)
    if steps == 0:
        return initial_state, {}
    later = [position for position in positions if position]
    rows = {position - 1: row for row, position in enumerate(later)}

    def step(state: Any, x: None) -> tuple[Any, Any]:
        after = func(state)
        return after, after

    request = LoopRequest.parse(None, max(1, count), None, "first", None)
    room = find_framework(initial_state)
    with recorded_call("checkpointed_loop", func) as call:
        final, shown = room.scan(step, initial_state, None, steps, request.for_profile(call, room.NAME), rows=rows)
    checkpoints = {0: initial_state} if 0 in positions else {}
    leaves, tree = flatten(shown)
    for row, position in enumerate(later):
        checkpoints[position] = leaves[0][row] if tree is LEAF else tree.unflatten([leaf[row] for leaf in leaves])
    return final, checkpoints
