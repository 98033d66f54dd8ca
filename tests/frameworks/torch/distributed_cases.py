"""Cases that two processes run (distributed_program.py): functions without arguments, which raise where they fail."""

import tempfile
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as collective
from torch.distributed.checkpoint import state_dict as api
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import remat

STEPS, WIDTH = 9, 6


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same_in_all(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return all(each == found[0] for each in found)


class Rnn(torch.nn.Module):
    """A loop, by remat or plainly; a head after it, and another cell from a later step on."""

    def __init__(self, budget=None, change=STEPS):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.later = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.head, self.budget, self.change = torch.nn.Linear(WIDTH, WIDTH), budget, change

    def step(self, h, x):
        h = torch.tanh((self.cell if int(x[0]) < self.change else self.later)(h) + x[1])
        return h, h

    def forward(self, xs):
        h, numbers, hs = torch.zeros_like(xs[0]), torch.arange(len(xs)), []
        if self.budget:
            return self.head(remat.scan(self.step, h, (numbers, xs), **self.budget)[1])
        for x in zip(numbers, xs, strict=True):
            h, y = self.step(h, x)
            hs.append(y)
        return self.head(torch.stack(hs))


def gradients_of(model, iterations=1):
    """By iteration, the full gradients of all parameters; each process has other inputs."""
    found = []
    for i in range(iterations):
        model.zero_grad()
        model(random(STEPS, 4, WIDTH, seed=10 * i + dist.get_rank())).pow(2).mean().backward()
        found.append([None if p.grad is None else p.grad.full_tensor() for p in model.parameters()])
    return found


def assert_close(found, expected):
    for ours, plain in zip(found, expected, strict=True):
        assert (ours is None) == (plain is None)
        assert ours is None or (ours - plain).abs().max() < 1e-12


def sharded_parts_before_and_after():
    """A sharded head is called after the loop: gradients come in this iteration, and not in the next one."""
    found = []
    for budget in (None, {"slots": 3}):
        model = Rnn(budget)
        fully_shard(model.head)
        found.append(gradients_of(fully_shard(model), iterations=3))
    for plain, ours in zip(*found, strict=True):
        assert_close(ours, plain)


def sharded_module_in_a_later_step():
    """Only from step 3 on is a sharded module called: with a budget in bytes, too."""
    found = []
    for budget in (None, {"slots": 3}, {"memory": 20_000}):
        model = Rnn(budget, change=3)
        fully_shard(model.later)
        found.append(gradients_of(fully_shard(model), iterations=2))
    for ours in found[1:]:
        for gradients, plain in zip(ours, found[0], strict=True):
            assert_close(gradients, plain)


def gradients_of_inputs_alone():
    """`torch.autograd.grad` for the inputs leaves `.grad` of sharded parameters alone."""
    found = []
    for loops in (False, True):
        torch.manual_seed(0)
        cell = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH))
        xs, h = random(STEPS, 4, WIDTH).requires_grad_(), torch.zeros(4, WIDTH)
        if loops:
            h = remat.scan(lambda h, x, cell=cell: (cell(x, h), None), h, xs, slots=3)[0]
        else:
            for x in xs:
                h = cell(x, h)
        found.append(torch.autograd.grad(h.pow(2).mean(), xs)[0])
        assert all(p.grad is None for p in cell.parameters())
    assert_close(found[1:], found[:1])


def collectives_of_the_users():
    """A statistic over all processes in every step, and batches of 4 and 10: the plan is the same."""
    cell = torch.nn.Linear(WIDTH, WIDTH)
    xs = random(24, 4 + 6 * dist.get_rank(), WIDTH)

    def step(h, x):
        h = torch.tanh(cell(h) + x - collective.all_reduce(h.detach().mean(0)))
        return h, None

    # The first loop fills caches in one process only.
    if dist.get_rank() == 0:
        remat.scan(lambda h, x: (torch.tanh(cell(h) + x), None), xs[0], xs, memory=9_000)
    with remat.profile() as run:
        remat.scan(step, torch.zeros_like(xs[0]), xs, memory=9_000)[0].pow(2).mean().backward()
    assert same_in_all([str(op) for op in run.calls[0].plan.schedule])
    assert run.calls[0].trace.forward_steps > 24


def fractions_of_what_is_free():
    """One process has more memory than the other: the smaller budget counts in both."""
    cell = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH))
    free, xs = (150_000, 900_000)[dist.get_rank()], random(40, 4, WIDTH)
    with mock.patch("remat.memory_meter.free_host_bytes", return_value=free), remat.profile() as run:
        remat.scan(lambda h, x: (cell(x, h),) * 2, torch.zeros(4, WIDTH), xs, memory=0.2)[1].mean().backward()
    assert same_in_all([str(op) for op in run.calls[0].plan.schedule])


def loops_of_other_lengths():
    """Both processes are told, before either waits for a step that the other one does not run."""
    cell = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH))
    xs = random(20 + dist.get_rank(), 4, WIDTH)
    with pytest.raises(remat.ProblemError, match=r"plans of this loop differ: it has 2[01] steps in rank [01]"):
        remat.scan(lambda h, x: (cell(x, h), None), torch.zeros(4, WIDTH), xs, memory="1 MiB")


def loops_of_other_slots_or_plans():
    """In slots, too: a step would meet another one of the other process, and seem not to repeat itself."""
    cell, other = torch.nn.Linear(WIDTH, WIDTH), dist.get_rank()

    def step(h, x):
        return torch.tanh(cell(h) + x - collective.all_reduce(h.detach().mean(0))), None

    def run(steps, **budget):
        return remat.scan(step, torch.zeros(4, WIDTH), random(steps, 4, WIDTH), **budget)

    with pytest.raises(remat.ProblemError, match=r"differ: it has [34] slots in rank [01], and 3 to 4 in the ranks"):
        run(9, slots=3 + other)
    with pytest.raises(remat.ProblemError, match=r"differ: it has (9|10) steps in rank [01], and 9 to 10 in the ranks"):
        run(9 + other, slots=3)
    plan = remat.plan(remat.Loop(9), slots=2 + other)
    with pytest.raises(remat.ProblemError, match=r"differ: it has \d+ forward steps in its plan in rank [01]"):
        run(9, plan=plan)
    with pytest.raises(remat.ProblemError, match=r"differ: it has [03] slots in rank [01], and 0 to 3 in the ranks"):
        run(9, **({"memory": "1 MiB"} if other else {"slots": 3}))
    run(9, slots=3)[0].pow(2).mean().backward()


def loops_of_unknown_length():
    """A budget in bytes for a `while_loop` with a sharded cell, planned while it runs."""
    found = []
    for budget in (None, {"memory": 40_000}):
        torch.manual_seed(0)
        cell, h = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH)), random(4, WIDTH, seed=dist.get_rank())
        x, state = h * 0.1, (h, torch.zeros((), dtype=torch.long))

        def body(state, cell=cell, x=x):
            return cell(x, state[0]), state[1] + 1

        if budget:
            state = remat.while_loop(lambda state: state[1] < 20, body, state, **budget)
        else:
            while state[1] < 20:
                state = body(state)
        state[0].pow(2).mean().backward()
        found.append([p.grad.full_tensor() for p in cell.parameters()])
    assert_close(found[1], found[0])


def loops_in_one_process_alone():
    """Only the processes of the module's own mesh are asked: here it is one of them, and the other has no loop."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("stage", "shard"))
    if dist.get_rank() == 0:
        cell = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH), mesh=mesh["shard"])
        xs = random(STEPS, 4, WIDTH)
        remat.scan(lambda h, x: (cell(x, h), None), torch.zeros(4, WIDTH), xs, memory="1 MiB")[0].sum().backward()


def a_process_that_does_not_call_the_loop():
    """Nobody waits for ever: when the time of the group is over, the error names who waits, and for whom."""
    group = dist.new_group(timeout=timedelta(seconds=5))

    def step(h, x):
        return torch.tanh(h + x - collective.all_reduce(h.detach().mean(0), group=group)), None

    xs = random(STEPS, 4, WIDTH).requires_grad_()
    dist.barrier()
    if dist.get_rank() == 1:
        step(xs[0], xs[0])
    else:
        with pytest.raises(remat.ProblemError, match=r"rank 0 did not get an answer .* of the ranks \[0, 1\]"):
            remat.scan(step, xs[0], xs, memory=9_000)
    dist.barrier()


def dtensors_as_carry_and_inputs():
    mesh, found = init_device_mesh("cpu", (2,)), []
    for budget in (None, {"slots": 2}, {"memory": 6_000}, {"slots": 2, "check": "always"}):
        w = distribute_tensor(random(8, 8) / 3, mesh, [Replicate()]).requires_grad_()
        start = h = distribute_tensor(random(6, 8), mesh, [Shard(0)]).requires_grad_()
        xs = distribute_tensor(random(12, 6, 8), mesh, [Shard(1)])

        def step(h, x, w=w):
            h = torch.tanh(h @ w + x)
            return h, h

        if budget:
            h, ys = remat.scan(step, h, xs, **budget)
            assert ys.placements == (Shard(1),)
        else:
            for x in xs.unbind(0):
                h = step(h, x)[0]
        h.pow(2).sum().full_tensor().backward()
        found.append([leaf.grad.full_tensor() for leaf in (w, start)])
    for ours in found[1:]:
        assert_close(ours, found[0])


def dtensors_in_segments():
    """What changed between forward and backward is found in the local parts."""
    mesh = init_device_mesh("cpu", (2,))
    w = distribute_tensor(random(8, 8), mesh, [Replicate()]).requires_grad_()
    x = distribute_tensor(random(6, 8), mesh, [Shard(0)])
    y = remat.checkpoint(lambda x: torch.tanh(x @ w), x).sum().full_tensor()
    with torch.no_grad():
        x.mul_(3)
    with pytest.raises(remat.StepError):
        y.backward()


def hooks_of_parameters_that_are_not_used():
    seen, model = [], Rnn({"slots": 3})
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-1, 1))
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
    called = DistributedDataParallel(model, find_unused_parameters=True)
    called(random(STEPS, 4, WIDTH)).sum().backward()
    assert len(seen) == 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.norm(self.up(x))))


def blocks(wrap, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(wrap(Block()), torch.nn.Linear(8, 8))


def plain(block):
    return block


def synchronized_batch_norm():
    """`convert_sync_batchnorm` exchanges parts of a dropped block; gradients and statistics are those without drop."""
    found = []
    for wrap in (plain, remat.drop):
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(blocks(wrap))
        # On the CPU it refuses to synchronize, so each process has its own statistics.
        assert sum(isinstance(each, torch.nn.SyncBatchNorm) for each in model.modules()) == 1
        model.eval()
        model(random(4, 8, seed=dist.get_rank())).sum().backward()
        found.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert_close(found[1], found[0])


def tensor_parallel_after_drop():
    mesh, plan = init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()}
    found = []
    for wrap in (plain, remat.drop):
        torch.manual_seed(0)
        block = Block()
        block.norm = torch.nn.Identity()
        block = parallelize_module(wrap(block), mesh, plan)
        assert sum(isinstance(p, DTensor) for p in block.parameters()) == 4
        block(random(4, 8)).sum().backward()
        found.append([p.grad.full_tensor() for p in block.parameters()])
    assert_close(found[1], found[0])


def _loaded(model, expected):
    return all(torch.equal(p.full_tensor(), q) for p, q in zip(model.parameters(), expected.parameters(), strict=True))


def state_dicts_of_dropped_blocks():
    """Weights and optimizer states have the names of the plain model, in every form that get_* and set_* have."""
    expected, names = blocks(plain, 1), list(blocks(plain).state_dict())
    for how in ({"broadcast_from_rank0": True}, {"strict": False}, {}):
        model = fully_shard(blocks(remat.drop))
        options = api.StateDictOptions(full_state_dict=True, **how)
        api.set_model_state_dict(model, expected.state_dict(), options=options)
        assert _loaded(model, expected)
        assert list(api.get_model_state_dict(model)) == names
    for how in ({}, {"flatten_optimizer_state_dict": True}, {"full_state_dict": True}, {"cpu_offload": True}):
        states = []
        for wrap in (plain, remat.drop):
            model = fully_shard(blocks(wrap))
            optimizer, options = torch.optim.AdamW(model.parameters()), api.StateDictOptions(**how)
            model(random(4, 8)).sum().backward()
            optimizer.step()
            states.append(api.get_optimizer_state_dict(model, optimizer, options=options))
            api.set_optimizer_state_dict(model, optimizer, states[-1], options=options)
        assert states[0].keys() == states[1].keys()
        assert states[0].get("state", {}).keys() == states[1].get("state", {}).keys()


def saved_and_loaded_by_dcp():
    """A checkpoint of a plain model is loaded into one with dropped blocks, and the other way round."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    for number, (saved, loaded) in enumerate(((plain, remat.drop), (remat.drop, plain))):
        source, target = fully_shard(blocks(saved, 1)), fully_shard(blocks(loaded, 0))
        path = f"{folder[0]}/{number}"
        dcp.save(api.get_model_state_dict(source), checkpoint_id=path)
        state = api.get_model_state_dict(target)
        dcp.load(state, checkpoint_id=path)
        api.set_model_state_dict(target, state)
        assert _loaded(target, blocks(plain, 1))


CASES = {
    case.__name__: case
    for case in (
        sharded_parts_before_and_after,
        sharded_module_in_a_later_step,
        gradients_of_inputs_alone,
        collectives_of_the_users,
        fractions_of_what_is_free,
        loops_of_other_lengths,
        loops_of_other_slots_or_plans,
        loops_of_unknown_length,
        loops_in_one_process_alone,
        a_process_that_does_not_call_the_loop,
        dtensors_as_carry_and_inputs,
        dtensors_in_segments,
        hooks_of_parameters_that_are_not_used,
        synchronized_batch_norm,
        tensor_parallel_after_drop,
        state_dicts_of_dropped_blocks,
        saved_and_loaded_by_dcp,
    )
}
