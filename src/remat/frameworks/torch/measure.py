"""What a step costs, on PyTorch: first on fake tensors, which have no numbers and take no memory, then by real runs.

So nothing is lost to a step that does not fit: what its tape takes is known before it is run again. The real runs have
the last word on bytes too: kernels take memory of their own, and the engine adds gradients in place where it can. A
step that cannot be run on fake tensors, since it looks at numbers or is compiled, is measured as it is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remat.errors import InfeasibleError, RematError
from remat.execute.recomputation import recomputing
from remat.execute.rng_state import set_back
from remat.frameworks.torch.backend import TorchVerbs
from remat.frameworks.torch.function import TorchCall
from remat.frameworks.torch.leaves import looks, nbytes
from remat.frameworks.torch.meter import StorageMeter, cuda_of, free_bytes, meter_for
from remat.loops.loop_call import measured_before
from remat.loops.request import free_here
from remat.measuring import USUAL, Measured, Subject, measure_step
from remat.problem import Loop
from remat.units import bytes_text

__all__ = ["measured"]

STEPS = 8  # of which a few are run
CUDA_OWN = 1 << 19  # bytes of summaries on the device, in blocks of 512


def measured(call: TorchCall, leaves: Sequence[Any]) -> Measured:
    """What a step costs: measured now, or by an earlier loop whose first step is as large."""
    assert call.asked.memory is not None
    room = call.asked.memory.device.capacity or 0
    if (
        call.step.sharded
    ):  # all processes agree on it anew each time: none may know it from before while another does not
        return _estimated(call, leaves, [leaf.device for leaf in leaves if isinstance(leaf, Tensor)])
    step, first = call.step, 0 if call.opened is None else call.opened.tape.bytes
    specs = tuple(looks(leaf, "leaf") for leaf in leaves)
    flows = (*step.flows.carry, *step.flows.xs, *step.flows.ys)
    modes = (torch.get_num_threads(), repr(step.modes), step.bound)
    key = ("torch", *step.captured.looks, call.carry, call.xs, specs, flows, *modes)
    return measured_before(key, first, room, lambda: _measure(call, leaves, room, first))


def _measure(call: TorchCall, leaves: Sequence[Any], room: int, first: int) -> Measured:
    steps = min(call.steps or 1, STEPS)
    devices = [leaf.device for leaf in leaves if isinstance(leaf, Tensor)]
    device = cuda_of(devices)
    with set_back(call.step.sources), torch.no_grad(), recomputing(True):
        fake = None if call.step.bound or call.step.compiled else _fake(call, leaves, steps)
        if fake is not None:
            _check_room(measure_step(fake, 1, room), devices)

        def finish() -> None:
            if device is not None:
                torch.cuda.synchronize(device)

        try:
            rest = max(0, room - 2 * first)  # the recorded first step waits meanwhile
            found = measure_step(_subject(call, leaves, steps, devices, finish), steps, rest)
            return replace(found, own=0 if device is None else CUDA_OWN)
        except torch.cuda.OutOfMemoryError as error:
            raise InfeasibleError(
                f"CUDA ran out of memory while one step was measured: {error}. Free memory, or make the step smaller; "
                "a budget cannot help, since a single step does not fit",
                room,
                "bytes",
            ) from error


def _subject(
    call: TorchCall, leaves: Sequence[Any], steps: int, devices: Sequence[torch.device], finish: Any = lambda: None
) -> Subject:
    verbs, state = call.start([_first_rows(call, leaves, k, steps) for k in range(len(leaves))], steps)
    verbs.weighing = True
    return Subject(verbs, meter_for(devices), state, lambda state: _ones(verbs, state), finish, timed=_alone())


def _first_rows(call: TorchCall, leaves: Sequence[Any], k: int, steps: int) -> Any:
    """A leaf; of the inputs only the rows of the first steps."""
    return leaves[k][:steps] if call.sizes[0] <= k < call.sizes[0] + call.sizes[1] else leaves[k]


def _ones(verbs: TorchVerbs, state: Any) -> list[Any]:
    """A cotangent for a carry, and for all outputs if there are any."""
    outputs = verbs.body.outputs
    if outputs.leaves and not verbs.cotangents:
        pairs = zip(outputs.leaves, verbs.flows.ys, strict=True)
        verbs.cotangents = [torch.ones_like(leaf) if flow else None for leaf, flow in pairs]
    leaves = verbs.body.tree.apart(state, "carry")
    pairs = zip(leaves, verbs.flows.carry, strict=True)
    return [torch.ones_like(leaf) if flow and isinstance(leaf, Tensor) else None for leaf, flow in pairs]


class _Faked:
    """Verbs that run on fake tensors, each in the mode that makes them."""

    def __init__(self, verbs: TorchVerbs, mode: Any) -> None:
        self.verbs, self.mode = verbs, mode

    def advance(self, state: Any, start: int, stop: int) -> Any:
        with self.mode:
            return self.verbs.advance(state, start, stop)

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        with self.mode:
            return self.verbs.record(state, start, stop)

    def pull_back(self, tape: Any, cotangent: Any) -> Any:
        with self.mode:
            return self.verbs.pull_back(tape, cotangent)

    def copy(self, state: Any) -> Any:
        with self.mode:
            return self.verbs.copy(state)

    def size(self, value: Any) -> int:
        return self.verbs.size(value)


def _fake(call: TorchCall, leaves: Sequence[Any], steps: int) -> Subject | None:
    """The same loop on fake tensors, or None if its step cannot be run on them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    own = call.sizes[0] + call.sizes[1]
    given = [_first_rows(call, leaves, k, steps) for k in range(len(leaves))]
    fakes = [mode.from_tensor(leaf.detach()) if isinstance(leaf, Tensor) else leaf for leaf in given[:own]]
    held = [leaf if leaf.is_leaf else leaf.detach() for leaf in leaves[own:]]
    with mode:
        verbs, state = call.start([*fakes, *held], steps)
        verbs.weighing = True
        verbs.stand_ins = [mode.from_tensor(leaf) for leaf in leaves[own:] if leaf.is_leaf]
        meter = StorageMeter(inside=mode)
        subject = Subject(_Faked(verbs, mode), meter, state, lambda state: _ones(verbs, state))
        try:
            return subject if subject.at(0) is not None else None
        except RematError:
            raise
        except Exception:  # whatever a step does that fake tensors cannot: it is measured as it is
            return None


def _check_room(found: Measured, devices: Sequence[torch.device]) -> None:
    need, free = found.aside + found.loop.tape + found.once + 3 * found.loop.state, free_bytes(devices) or free_here()
    if free is not None and need > free:
        raise InfeasibleError(
            f"a single step takes {bytes_text(need, up=True)} and {bytes_text(free)} are free on the device: a budget "
            "cannot help. Free memory, or make the step smaller",
            need,
            "bytes",
        )


def _estimated(call: TorchCall, leaves: Sequence[Any], devices: Sequence[torch.device]) -> Measured:
    """What a step costs that calls modules of FSDP, by its first run.

    It is not run again to be measured: FSDP takes a backward pass for the end of the whole model's. Aside are a tape
    for what passes, and twice its parameters for their gradients.
    """
    assert call.opened is not None
    state = sum(map(nbytes, call.parts(leaves)[0]))
    whole = [p.numel() * p.element_size() for module in call.step.sharded for p in module.parameters()]
    tape = max(1, call.opened.tape.bytes)
    loop = Loop(None, max(1, state), tape, *USUAL[:3], per_range=USUAL[3])
    return _agreed(Measured(loop, tape + 2 * sum(whole), own=0), devices)


def _alone() -> bool:
    """Whether no other process trains together with this one."""
    distributed = torch.distributed
    return not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1


def _agreed(found: Measured, devices: Sequence[torch.device]) -> Measured:
    """What all processes agree on: steps wait for each other, so that all must run the same ranges."""
    if _alone():
        return found
    sizes = [found.aside, found.once, found.passing, found.loop.state, found.loop.tape]
    most = torch.tensor(sizes, device=devices[0] if devices else None)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    aside, once, passing, state, tape = most.tolist()
    loop = Loop(**{**found.loop.to_dict(), "state": state, "tape": tape})
    return replace(found, loop=loop, aside=aside, once=once, passing=passing)
