"""Models under a budget in two processes (distributed_program.py): functions that raise where they fail."""

from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import remat
from remat.frameworks.torch.models.measure_chain import StageMeasurement
from remat.frameworks.torch.models.measure_model import MeasuredModel
from tests.frameworks.torch.models.planned_models import WIDTH, batch, net

DATA = [batch(128, seed=rank) for rank in range(2)]
LITTLE, MORE = 160_000, 230_000  # bytes; the second with parameters that are gathered, of blocks or of the model


def sequence():
    parts = net()
    return nn.Sequential(parts.first, nn.Sequential(*parts.blocks[:3]), nn.Sequential(*parts.blocks[3:]), parts.last)


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def planned(model, memory=LITTLE, inside_blocks=False):
    return remat.auto_checkpoint(model, memory=memory, sample=(DATA[0],), inside_blocks=inside_blocks)


def check(model, make=net, called=None, only="", inside_blocks=False):
    """Gradients are the means of those that both processes would have alone; and blocks are computed again.

    Or, if choices are made inside of them, some of what they need is made again.
    """
    alone = make()
    for data in DATA:
        (alone(data).pow(2).sum() / 2).backward()
    expected = dict(alone.named_parameters())
    for _ in range(2):
        model.zero_grad()
        with remat.profile() as run:
            (called or model)(DATA[dist.get_rank()]).pow(2).sum().backward()
        for name, parameter in model.named_parameters():
            found = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
            assert only not in name or (found - expected[name].grad).abs().max() < 1e-11, name
    if inside_blocks:
        assert any(model._remat_forward.last.remade)
        return
    runs = [call.steps for call in run.calls]
    both = [None] * 2
    dist.all_gather_object(both, runs)
    assert both[0] == both[1]
    assert sum(runs) > len(runs) > 0


def planned_model_in_ddp():
    model = planned(net())
    check(model, called=DistributedDataParallel(model))


def measured_inside_ddp():
    """A static graph would count what is measured inside of it; planned before, the model is right."""
    for make in (net, lambda: remat.auto_checkpoint(net(), memory=LITTLE, inside_blocks=False)):
        chained = make()
        if make is net:
            chained.forward = lambda x, model=chained: model.last(
                remat.chain(model.blocks, model.first(x), memory=LITTLE)
            )
        wrapped = DistributedDataParallel(chained, static_graph=True)
        with pytest.raises(
            remat.ProblemError, match=r"is measured inside DistributedDataParallel\(static_graph=True\)"
        ):
            wrapped(DATA[0])
    model = planned(net())
    check(model, called=DistributedDataParallel(model, static_graph=True))


def planned_and_then_sharded():
    """Ranges of blocks are run again while their parameters are sharded; the plan is that of the first process."""
    model = sharded(planned(net(), LITTLE + 200_000 * dist.get_rank()))
    assert any(
        call > 1 for call in [len(item.items) for item in model._remat_forward.last.items if hasattr(item, "items")]
    )
    check(model)


def sharded_and_then_planned():
    check(planned(sharded(net()), MORE))
    check(planned(sharded(net(), reshard_after_forward=False), MORE))
    check(planned(fully_shard(net()), MORE))


def sharded_in_groups():
    grouped = net()
    fully_shard([grouped.blocks[0], grouped.blocks[1]])
    check(planned(fully_shard(grouped), MORE))
    only_blocks = net()
    for block in only_blocks.blocks:
        fully_shard(block)
    check(planned(only_blocks, MORE), only="blocks")


def sharded_sequences_of_blocks():
    """A range over blocks of two sharded modules; blocks are found in these as before."""
    for before in (False, True):
        model = sequence() if before else planned(sequence())
        for part in (model[1], model[2], model):
            fully_shard(part)
        check(planned(model, MORE) if before else model, make=sequence)


def sharded_parts_of_blocks():
    model = planned(net())
    for block in model.blocks:
        fully_shard(block.up)
    check(sharded(model))
    other = net()
    fully_shard(other.blocks[2].up)
    with pytest.raises(remat.ProblemError, match=r"part of block 'blocks.2' is sharded separately, 'up'.*plan="):
        planned(sharded(other))


def sharded_and_given_plans():
    """Before anybody waits, all are told."""
    plan = planned(net()).remat_plan
    plans = [None] * 2
    dist.all_gather_object(plans, plan.to_json())
    plan = remat.Plan.from_json(plans[0])
    check(sharded(remat.auto_checkpoint(net(), plan=plan)))
    other = planned(net(), LITTLE + 400_000 * dist.get_rank()).remat_plan
    with pytest.raises(remat.ProblemError, match=r"ranks \[1\] were given another plan than rank 0.*same plan="):
        sharded(remat.auto_checkpoint(net(), plan=other))(DATA[0])
    with pytest.raises(remat.ProblemError, match="sample="):
        remat.auto_checkpoint(sharded(net()), memory=MORE)(DATA[0])


def choices_inside_of_blocks():
    """What a block does not keep is made again while its parameters are gathered, or its parts' ones are."""
    # Blocks as small as these take more Python than anything, and would rather be computed again as a whole.
    StageMeasurement.seconds_as_segment = lambda self, segment: 0.01
    MeasuredModel.alternatives = lambda self, memory: ()
    model = planned(net(norm=False), 300_000, inside_blocks=True)
    check(model, called=DistributedDataParallel(model), inside_blocks=True)
    check(sharded(planned(net(), 300_000, inside_blocks=True)), inside_blocks=True)
    check(planned(sharded(net()), 300_000, inside_blocks=True), inside_blocks=True)
    model = planned(net(), 300_000, inside_blocks=True)
    for block in model.blocks:
        fully_shard(block.up)
    check(sharded(model), inside_blocks=True)


def sharded_in_mixed_precision():
    policy, found = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), []
    for plans in (False, True):
        model = net(dtype=torch.float32)
        if plans:
            remat.auto_checkpoint(model, memory=LITTLE, sample=(DATA[0].float(),))
        sharded(model, mp_policy=policy)(DATA[dist.get_rank()].float()).float().pow(2).sum().backward()
        found.append([parameter.grad.full_tensor() for parameter in model.parameters()])
    assert all(map(torch.equal, *found))


def tensor_parallel_blocks():
    """Planned before and after; both processes have the same plan, though one was given more memory."""
    mesh, found = init_device_mesh("cpu", (2,)), []
    for plans in ("", "before", "after", "inside before", "inside after"):
        model, memory = net(), LITTLE + 200_000 * dist.get_rank()
        if "before" in plans:
            planned(model, memory, "inside" in plans)
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if "after" in plans:
            planned(model, memory, "inside" in plans)
        model(DATA[0]).pow(2).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append([each.full_tensor() if hasattr(each, "full_tensor") else each for each in gradients])
    for ours in found[1:]:
        assert all((a - b).abs().max() < 1e-11 for a, b in zip(ours, found[0], strict=True))


class SynchronizedNorm(nn.Module):
    """The mean of all processes, as `nn.SyncBatchNorm` has it on GPUs."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, x):
        total = collective.all_reduce(torch.cat([x.sum(0), torch.tensor([float(len(x))])]), group=self.group)
        return x - total[:-1] / total[-1]


def synchronized_net(group=None):
    model = net()
    for block in model.blocks:
        block.norm = SynchronizedNorm(group or dist.group.WORLD)
    return model


def a_process_that_does_not_plan():
    model = synchronized_net(dist.new_group(timeout=timedelta(seconds=3)))
    dist.barrier()
    if dist.get_rank() == 0:
        with pytest.raises(remat.ProblemError, match=r"rank 0 .* the ranks \[0, 1\], .* the planning of a model"):
            planned(model)
    dist.barrier()


def collectives_in_blocks():
    """Each block waits for the other process, so both run one plan: other batches, other memory, shapes not planned."""
    rank = dist.get_rank()
    for sample in (DATA[0][: 64 + 64 * rank], None):
        given = {"memory": 180_000 + 60_000 * rank, "inside_blocks": False}
        model = remat.auto_checkpoint(synchronized_net(), sample=sample if sample is None else (sample,), **given)
        found = []
        for each in (synchronized_net(), model):
            wrapped = DistributedDataParallel(each)
            for size in (64 + 64 * rank, 32, 96 + 32 * rank):
                wrapped(DATA[0][:size]).pow(2).sum().backward()
            found.append([parameter.grad for parameter in each.parameters()])
        assert all((a - b).abs().max() < 1e-11 * (1 + b.abs().max()) for a, b in zip(*found, strict=True))
        both = [None] * 2
        dist.all_gather_object(both, str(model._remat_forward.last.items))
        assert both[0] == both[1]
    sizes = [None] * 2
    size, _ = remat.largest_batch(synchronized_net(), batch, memory=100_000 + 60_000 * rank, most=80)
    dist.all_gather_object(sizes, size)
    assert sizes[0] == sizes[1]
    with pytest.raises(remat.ProblemError, match="waits for other processes cannot be planned as one graph"):
        remat.auto_checkpoint(synchronized_net(), memory=LITTLE, sample=(DATA[0],), blocks="whole")


def _chained(model, plan, x):
    return model.last(remat.chain(model.blocks, model.first(x), plan=plan))


def chains_whose_stages_wait():
    """A budget in bytes is refused before anybody waits in vain; with a plan, all run the same."""
    plan = remat.plan(remat.Chain([remat.Stage()] * 6), memory=9)
    for make, what in ((lambda: sharded(net()), "a sharded Block"), (synchronized_net, "collectives")):
        with pytest.raises(
            remat.ProblemError, match=rf"wait for other processes \({what}.*auto_checkpoint.*same plan="
        ):
            remat.chain(make().blocks, DATA[0], memory=LITTLE)
        model, found = make(), []
        for chained in (False, True):
            if chained:
                model.forward = partial(_chained, model, plan)
            model.zero_grad()
            model(DATA[dist.get_rank()]).pow(2).sum().backward()
            found.append(
                [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
            )
        assert all((a - b).abs().max() < 1e-11 * (1 + b.abs().max()) for a, b in zip(*found, strict=True))


class LeftOut(nn.Module):
    """A block that one of the processes leaves out."""

    def __init__(self, rank=0):
        super().__init__()
        self.linear, self.rank = nn.Linear(WIDTH, WIDTH), rank

    def forward(self, x):
        return x if dist.get_rank() == self.rank else x + self.linear(x)


def block_left_out_by_one_process():
    """It would be measured with its neighbour in one process and by itself in the other, which wait in vain."""
    model = net()
    model.blocks[2] = LeftOut().double()
    with pytest.raises(remat.ProblemError, match=r"'blocks\.2' left itself out at random in some processes"):
        planned(sharded(model))


CASES = {
    case.__name__: case
    for case in (
        planned_model_in_ddp,
        block_left_out_by_one_process,
        measured_inside_ddp,
        planned_and_then_sharded,
        sharded_and_then_planned,
        sharded_in_groups,
        sharded_sequences_of_blocks,
        sharded_parts_of_blocks,
        sharded_and_given_plans,
        choices_inside_of_blocks,
        sharded_in_mixed_precision,
        tensor_parallel_blocks,
        collectives_in_blocks,
        a_process_that_does_not_plan,
        chains_whose_stages_wait,
    )
}
