"""The calls: from a user's step and values to a loop that runs, plainly or under autograd."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from remat.closures.capture import Captured
from remat.errors import InfeasibleError, StepError
from remat.execute.rng_state import Replay, private_source
from remat.frameworks.torch import leaves as kit
from remat.frameworks.torch.autocast import Modes
from remat.frameworks.torch.function import Flows, TorchCall, TorchStep, holds, run
from remat.frameworks.torch.graph import Tensors
from remat.frameworks.torch.leaves import looks, nbytes
from remat.frameworks.torch.probe import open_call
from remat.frameworks.torch.replayable_state import TorchGenerator, torch_generators
from remat.loops.request import Asked
from remat.loops.step_runner import Body, Inputs, Outputs, count_steps, take_leaves
from remat.pytree import Tree
from remat.units import to_count

__all__ = ["scan", "while_loop"]


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
    if vjp is not None:
        raise StepError("vjp= is for NumPy; on PyTorch write a torch.autograd.Function and call it in the step")
    init_leaves, carry = take_leaves(kit, init, "init")
    xs_leaves, inputs = take_leaves(kit, xs, "xs")
    steps = count_steps(kit, xs_leaves, inputs, length)
    asked.check_slots(steps)
    asked.note(steps)
    sizes = (len(init_leaves), len(xs_leaves), 0)
    call = _call(step, None, init_leaves, xs_leaves, carry, inputs, sizes, asked, rows, steps)
    found = _differentiated(call, init_leaves, xs_leaves)
    if found is not None:
        return found
    body = _body(call, carry, init_leaves, Inputs(xs_leaves, inputs), Outputs(kit, steps, rows))
    value, done = _begun(call, body, carry.build(init_leaves))
    value = body.run(step, value, done, steps)
    outputs = body.outputs
    return value, None if outputs.tree is None else outputs.tree.build(outputs.leaves)


def while_loop(
    cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int | None, asked: Asked
) -> Any:
    """The first carry for which `cond` does not hold, or the one after `max_steps`."""
    most = None if max_steps is None else to_count(max_steps, "max_steps")
    leaves, carry = take_leaves(kit, init, "init")
    nothing = Tree(type(None))

    def step(carry: Any, x: None) -> tuple[Any, None]:
        return body(carry), None

    call = _call(step, cond, leaves, [], carry, nothing, (len(leaves), 0, 0), asked, None, None)
    call.cond, call.most = cond, most
    goes_on = most != 0 and holds(cond(init))
    if goes_on:
        call.began = True
        found = _differentiated(call, leaves, [])
        if found is not None:
            return found[0]
    plain = _body(call, carry, leaves, Inputs((), nothing), Outputs(kit, 0))
    value, done = _begun(call, plain, carry.build(leaves))
    while done != most and (goes_on if done == 0 else holds(cond(value))):
        value = plain.run(step, value, done, done + 1)
        done += 1
    asked.note(done)
    return value


def _call(
    step: Callable[..., Any],
    cond: Callable[..., Any] | None,
    init: list[Any],
    xs: list[Any],
    carry: Tree,
    inputs: Tree,
    sizes: tuple[int, int, int],
    asked: Asked,
    rows: dict[int, int] | None,
    steps: int | None,
) -> TorchCall:
    flows = Flows([kit.flows(leaf) for leaf in init], [isinstance(x, Tensor) and x.requires_grad for x in xs])
    tensors = Tensors()
    graphs = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    graphs = graphs and torch.autograd.forward_ad._current_level < 0  # forward mode goes along with a plain loop
    captured = Captured(tensors, step, cond) if graphs else None
    private = [TorchGenerator(leaf) if isinstance(leaf, torch.Generator) else private_source(leaf) for leaf in init]
    found = [] if captured is None else [*captured.sources, *tensors.sources]
    sources = [*torch_generators(), *(source for source in private if source is not None), *found]
    bound = torch._C._functorch.maybe_current_level() is not None
    made = TorchStep(captured, Modes(), sources, flows, bound=bound)  # type: ignore[arg-type]
    made.modules, made.compiled = tensors.modules, tensors.compiled
    return TorchCall(made, carry, inputs, sizes, asked, rows, steps)


def _differentiated(call: TorchCall, init: list[Any], xs: list[Any]) -> tuple[Any, Any] | None:
    """The results of a loop that gradients flow through, or None: then it is a plain loop."""
    if call.step.captured is None:
        return None
    known: list[Tensor] | None
    if call.step.bound:  # torch.func runs the loop at another level: all that can flow does, and is put in place there
        known = call.step.captured.release()
        call.step.numbers, call.step.closed = list(range(len(known))), [False] * len(known)
        call.step.flows.xs = [kit.flows(leaf) for leaf in xs]
        call.specs = [looks(leaf, name) for leaf, name in zip(init, call.carry.names("carry"), strict=True)]
    else:
        call.replay = Replay(call.step.sources)
        try:
            known = open_call(call, [*init, *xs], call.step.modules)
        except torch.cuda.OutOfMemoryError as error:
            raise InfeasibleError(
                f"CUDA ran out of memory in the first step: {error}. Free memory, or make the step smaller; a budget "
                "cannot help, since a single step does not fit",
                sum(map(nbytes, init)),
                "bytes",
            ) from error
    if known is None:
        call.replay = None
        return None
    if call.step.sharded:  # something must tell autograd that there is a gradient, where parameters do not
        known = [*known, torch.zeros((), requires_grad=True)]
        call.step.numbers.append(-1)
        call.step.closed.append(True)
    call.sizes = (len(init), len(xs), len(known))
    return run(call, [*init, *xs, *known])


def _begun(call: TorchCall, body: Body, carry: Any) -> tuple[Any, int]:
    """Where a plain loop begins: after the first step, if that has been run to see whether gradients flow."""
    opened, call.opened = call.opened, None
    if opened is None:
        return carry, 0
    outside = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in body.tree.apart(opened.carry, "carry")]
    if body.outputs.row(0) is not None:
        with torch.no_grad():
            body.outputs.put(0, opened.y)
    body.done = 1
    return body.tree.build(outside), 1


def _body(call: TorchCall, carry: Tree, leaves: Sequence[Any], inputs: Inputs, outputs: Outputs) -> Body:
    specs = [looks(leaf, name) for leaf, name in zip(leaves, carry.names("init"), strict=True)]
    return Body(kit, carry, call.specs or specs, inputs, outputs)
