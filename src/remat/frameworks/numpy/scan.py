"""The calls: from a user's step and values to a loop that runs, plainly or under autograd."""

from collections.abc import Callable, Sequence
from typing import Any

from remat.closures.capture import Captured
from remat.frameworks.numpy import leaves as kit
from remat.frameworks.numpy.backend import is_about_writing, refuse_writing
from remat.frameworks.numpy.leaves import Spec, is_boxed, own, protected, writable
from remat.frameworks.numpy.primitive import NumpyCall, Step, holds, run
from remat.frameworks.numpy.tape import LiveTraces
from remat.loops.request import Asked
from remat.loops.step_runner import Body, Inputs, Outputs, count_steps, take_leaves
from remat.pytree import Tree, take_apart
from remat.units import to_count

__all__ = ["scan", "scan_flat", "while_loop"]


def scan(
    step: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    length: int | None,
    asked: Asked,
    vjp: Callable[..., Any] | None = None,
    rows: dict[int, int] | None = None,
    driven: bool = True,
) -> tuple[Any, Any]:
    """The last carry and the outputs of all steps, or of those that `rows` gives a row; it is driven anyway."""
    init_leaves, carry = take_leaves(kit, init, "init")
    xs_leaves, inputs = take_leaves(kit, xs, "xs")
    steps = count_steps(kit, xs_leaves, inputs, length)
    captured = Captured(LiveTraces(), step, vjp)
    return _scan(captured, (init_leaves, xs_leaves, captured.release()), carry, inputs, steps, asked, vjp, rows)


def scan_flat(
    step: Step, init: Any, xs: Any, captured: list[Any], steps: int, asked: Asked, rows: dict[int, int] | None = None
) -> tuple[Any, Any]:
    """A scan of a step that takes what it captures as an argument."""
    init_leaves, carry = take_apart(init)
    xs_leaves, inputs = take_apart(xs)
    return _scan(step, (init_leaves, xs_leaves, captured), carry, inputs, steps, asked, None, rows)


def _scan(
    step: Step,
    parts: tuple[list[Any], list[Any], list[Any]],
    carry: Tree,
    inputs: Tree,
    steps: int,
    asked: Asked,
    vjp: Callable[..., Any] | None,
    rows: dict[int, int] | None,
) -> tuple[Any, Any]:
    leaves = [leaf for part in parts for leaf in part]
    if any(map(is_boxed, leaves)):
        sizes = (len(parts[0]), len(parts[1]), len(parts[2]))
        return run(NumpyCall(step, carry, inputs, sizes, asked, rows, steps, vjp=vjp), leaves)
    asked.check_slots(steps)
    asked.note(steps)
    body = _body(carry, parts[0], Inputs([protected(leaf) for leaf in parts[1]], inputs), Outputs(kit, steps, rows))
    with step.bind(parts[2]) as plain:
        try:
            after = body.run(plain, carry.build([own(leaf) for leaf in parts[0]]), 0, steps)
        except ValueError as error:
            if is_about_writing(error):
                raise refuse_writing(error, body.at) from error
            raise
    outputs = body.outputs
    return carry.mapped(writable, after), None if outputs.tree is None else outputs.tree.build(outputs.leaves)


def while_loop(
    cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int | None, asked: Asked
) -> Any:
    """The first carry for which `cond` does not hold, or the one after `max_steps`."""
    most = None if max_steps is None else to_count(max_steps, "max_steps")
    leaves, carry = take_leaves(kit, init, "init")

    def step(carry: Any, x: None) -> tuple[Any, None]:
        return body(carry), None

    captured = Captured(LiveTraces(), step, cond)
    boxes = captured.release()
    nothing = Tree(type(None))
    if most != 0 and any(map(is_boxed, [*leaves, *boxes])):
        sizes = (len(leaves), 0, len(boxes))
        return run(NumpyCall(captured, carry, nothing, sizes, asked, cond=cond, most=most), [*leaves, *boxes])[0]
    plain = _body(carry, leaves, Inputs((), nothing), Outputs(kit, 0))
    value, done = carry.build([leaf if is_boxed(leaf) else own(leaf) for leaf in leaves]), 0
    while done != most and holds(cond(value)):
        value = plain.run(step, value, done, done + 1)
        done += 1
    asked.note(done)
    return value


def _body(carry: Tree, leaves: Sequence[Any], inputs: Inputs, outputs: Outputs) -> Body:
    specs = [Spec.of(leaf, name) for leaf, name in zip(leaves, carry.names("init"), strict=True)]
    return Body(kit, carry, specs, inputs, outputs)
