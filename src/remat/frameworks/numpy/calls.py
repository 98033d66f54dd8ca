"""The calls: from a user's step and values to a loop that runs, plainly or under autograd."""

from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import ProblemError, StepError
from remat.execute.tree import Tree, take_apart
from remat.frameworks.asked import Asked
from remat.frameworks.numpy.body import Body, Inputs, Outputs
from remat.frameworks.numpy.captured import Captured
from remat.frameworks.numpy.leaves import Spec, is_boxed, own, unpack, writable
from remat.frameworks.numpy.loop import ScanCall, Step, WhileCall, holds, run
from remat.frameworks.numpy.verbs import is_about_writing, refuse_writing
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
) -> tuple[Any, Any]:
    """The last carry and the outputs of all steps, or of those that `rows` gives a row."""
    init_leaves, carry = _leaves(init, "init")
    xs_leaves, inputs = _leaves(xs, "xs")
    steps = _length(xs_leaves, inputs, length)
    captured = Captured(step, vjp)
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
        return run(ScanCall(step, carry, inputs, sizes, asked, vjp, rows, steps), leaves)
    asked.check_slots(steps)
    asked.note(steps)
    body = _body(carry, parts[0], Inputs(parts[1], inputs), Outputs(steps, rows))
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
    leaves, carry = _leaves(init, "init")

    def step(carry: Any, x: None) -> tuple[Any, None]:
        return body(carry), None

    captured = Captured(step, cond)
    boxes = captured.release()
    nothing = Tree(type(None))
    if most != 0 and any(map(is_boxed, [*leaves, *boxes])):
        sizes = (len(leaves), 0, len(boxes))
        return run(WhileCall(captured, carry, nothing, sizes, asked, cond=cond, most=most), [*leaves, *boxes])[0]
    plain = _body(carry, leaves, Inputs((), nothing), Outputs(0))
    value, done = carry.build([leaf if is_boxed(leaf) else own(leaf) for leaf in leaves]), 0
    while done != most and holds(cond(value)):
        value = plain.run(step, value, done, done + 1)
        done += 1
    asked.note(done)
    return value


def _body(carry: Tree, leaves: Sequence[Any], inputs: Inputs, outputs: Outputs) -> Body:
    specs = [Spec.of(leaf, name) for leaf, name in zip(leaves, carry.names("init"), strict=True)]
    return Body(carry, specs, inputs, outputs)


def _leaves(value: Any, name: str) -> tuple[list[Any], Tree]:
    """The leaves of a value, each an array or a number, or a StepError that names one that is not."""
    leaves, tree = take_apart(value, unpack)
    for leaf, leaf_name in zip(leaves, tree.names(name), strict=True):
        Spec.of(leaf, leaf_name)
    return leaves, tree


def _length(leaves: Sequence[Any], tree: Tree, length: int | None) -> int:
    """The number of steps that all inputs and `length` agree on."""
    said = None if length is None else to_count(length, "length")
    found = {} if said is None else {"length": said}
    for leaf, name in zip(leaves, tree.names("xs"), strict=True):
        shape = Spec.of(leaf, name).shape
        if not shape:
            raise StepError(
                f"{name} is a single number: the leaves of xs have one row for each step. A list is taken for a "
                "container of inputs: give numpy.array of a list with one entry for each step"
            )
        found[name] = shape[0]
    if not found:
        raise ProblemError("the number of steps is not known: give xs, or length= if there are none")
    if len(set(found.values())) > 1:
        said_by = ", ".join(f"{name} says {count}" for name, count in list(found.items())[:6])
        hint = "; a list is taken for a container of inputs: give numpy.stack of a list with one entry for each step"
        raise ProblemError(
            f"the number of steps is not clear: {said_by}; every leaf of xs has one row for each step"
            + (hint if tree.kind in (list, tuple) else "")
        )
    steps = next(iter(found.values()))
    if steps == 0:
        raise ProblemError(
            f"a loop of 0 steps has no outputs, not even their shapes ({next(iter(found))} has no rows): the result "
            "would be init itself, so leave the call out where there are no steps"
        )
    return steps
