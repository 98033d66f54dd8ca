"""What changes between forward and backward changes no gradient: it is that of the plain call, with the same changes.

Each change is made to the plain module as well, between its forward and its backward.
"""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import remat
from tests.frameworks.torch.layer_runs import differences
from tests.frameworks.torch.programs import plain_scan

DOUBLE = torch.float64


class Block(nn.Module):
    """Layers whose results depend on flags, statistics and numbers that are drawn."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6, dtype=DOUBLE), nn.BatchNorm1d(6, dtype=DOUBLE)
        self.drop, self.second = nn.Dropout(0.4), nn.Linear(6, 4, dtype=DOUBLE)
        self.register_buffer("shift", torch.full((4,), 0.5, dtype=DOUBLE))
        self.scale, self.extra = 1.5, [0.25]

    def forward(self, x):
        x = self.drop(self.norm(self.first(x)).tanh())
        return (self.second(x) * self.scale + self.shift).sin() + self.extra[0]


def spectral():
    block = Block()
    parametrizations.spectral_norm(block.first)
    parametrizations.weight_norm(block.second)
    return block


def other_value(tensor):
    return nn.Parameter(tensor.detach() * 3 + 1)


def replace_parameters(block):
    for layer in (block.first, block.second):
        layer.register_parameter("bias", other_value(layer.bias))


def replace_layer(block):
    block.first = nn.Linear(4, 6, dtype=DOUBLE)


def assign_data(block):
    """Plain autograd computes with what it saved, and a parameter's new data is another storage."""
    for parameter in block.parameters():
        parameter.data = parameter.data * 2


def load(block):
    block.load_state_dict({name: value * 2 for name, value in block.state_dict().items()}, assign=True)


def add_hooks(block):
    block.first.register_forward_hook(lambda module, args, out: out * 2)
    block.second.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def write_statistics(block):
    block.norm.reset_running_stats()
    block.norm.running_mean.fill_(9.0)


CHANGES = {
    "nothing": lambda block: None,
    "eval": lambda block: block.eval(),
    "frozen": lambda block: block.requires_grad_(False),
    "partly frozen": lambda block: block.second.requires_grad_(False),
    "another forward": lambda block: block(torch.ones(5, 4, dtype=DOUBLE)),
    "another backward": lambda block: torch.autograd.grad(
        block(torch.ones(5, 4, dtype=DOUBLE)).sum(), [*block.parameters()]
    ),
    "parameters replaced": replace_parameters,
    "layer replaced": replace_layer,
    "data assigned": assign_data,
    "state loaded by assignment": load,
    "hooks added": add_hooks,
    "statistics written": write_statistics,
    "buffer replaced": lambda block: setattr(block, "shift", block.shift * 5),
    "buffer written": lambda block: block.shift.mul_(5),
    "attribute set": lambda block: setattr(block, "scale", -7.0),
    "attribute deleted": lambda block: delattr(block, "scale"),
    "list changed": lambda block: block.extra.insert(0, 99.0),
    "chance of dropout": lambda block: setattr(block.drop, "p", 0.9),
    "generator seeded": lambda block: torch.manual_seed(99),
    "gradients set to None": lambda block: block.zero_grad(),
}


def dropped(block, x):
    return remat.drop(block)(x)


def nested(block, x):
    outer = nn.Sequential(remat.drop(block))
    return remat.checkpoint(remat.drop(outer), x)


def scanned(block, x):
    return remat.scan(lambda h, _: (block(h), None), x, length=5, slots=2)[0]


def scanned_in_memory(block, x):
    return remat.scan(lambda h, _: (block(h), None), x, length=5, memory="20 kB")[0]


def looped(block, x):
    return plain_scan(lambda h, _: (block(h), h.sum()), x, (), length=5)[0]


WAYS = {
    "checkpoint": (lambda block, x: block(x), remat.checkpoint),
    "drop": (lambda block, x: block(x), dropped),
    "nested": (lambda block, x: block(x), nested),
    "slots": (looped, scanned),
    "memory": (looped, scanned_in_memory),
}


def outcome(make, way, change, training):
    """Gradients of what was used in the forward, and the state afterwards."""
    torch.manual_seed(0)
    block = make().train(training)
    x = torch.randn(5, 4, dtype=DOUBLE, requires_grad=True)
    used = dict(block.named_parameters())
    out = way(block, x)
    change(block)
    out.square().sum().backward()
    found = {name: value.grad for name, value in {**used, "x": x}.items()}
    found |= {f"{name} afterwards": value.detach() for name, value in block.state_dict().items()}
    found |= {f"{name} wants": torch.tensor(value.requires_grad) for name, value in block.named_parameters()}
    found |= {"generator": torch.get_rng_state(), "training": torch.tensor([m.training for m in block.modules()])}
    return found | {"attributes": torch.tensor([*block.extra, vars(block).get("scale", 0.0), block.drop.p])}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Block, spectral], ids=["block", "spectral norm"])
def test_gradients_are_those_of_the_forward_that_was_run(make, way, change, training):
    plain, ours = WAYS[way]
    try:
        expected = outcome(make, plain, CHANGES[change], training)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return  # what plain autograd refuses, remat may refuse
    assert differences(outcome(make, ours, CHANGES[change], training), expected) == []


def test_each_of_two_backwards_of_a_loop_reads_the_memory_of_its_forward():
    """The second one has no kept states any more, and runs forward again first."""

    def gradients(scan):
        layer = nn.Linear(3, 3, dtype=DOUBLE)
        nn.init.constant_(layer.weight, 0.3)
        nn.init.constant_(layer.bias, 0.1)
        out = scan(lambda h, _: (layer(h).tanh(), None), torch.ones(2, 3, dtype=DOUBLE), length=6)[0].sum()
        found = []
        for factor in (2, 3):
            layer.weight.data = layer.weight.data * factor
            found.append(torch.autograd.grad(out, [*layer.parameters()], retain_graph=True))
        return [gradient for pair in found for gradient in pair] + [layer.weight.detach()]

    plain = gradients(lambda step, h, length: plain_scan(lambda h, x: (step(h, x)[0], h.sum()), h, (), length=length))
    ours = gradients(lambda step, h, length: remat.scan(step, h, length=length, slots=2))
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


class Settings:
    """What steps read, and do not write."""

    def __init__(self):
        self.factor, self.table = 1.0, {"shift": 0.5}


def derivatives_with_changes(loop, **how):
    """Two first derivatives, a second and a third one; what steps read is changed before each of them."""
    torch.manual_seed(0)
    settings, w = Settings(), torch.randn(3, 3, dtype=DOUBLE, requires_grad=True)

    def step(h, x):
        return torch.tanh(h @ w * settings.factor + x + settings.table["shift"]), None

    def after_a_change(value, **options):
        settings.factor += 1.0
        settings.table["shift"] -= 1.0
        return torch.autograd.grad(value, w, **options)[0]

    h = loop(step, torch.ones(2, 3, dtype=DOUBLE), torch.ones(5, 3, dtype=DOUBLE) / 9, **how)[0].pow(2).sum()
    once, twice = after_a_change(h, retain_graph=True), after_a_change(h, retain_graph=True)
    first = after_a_change(h, create_graph=True)
    second = after_a_change(first.pow(2).sum(), create_graph=True)
    return once, twice, first, second, after_a_change(second.sum()), settings.factor, settings.table


@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_every_derivative_of_a_loop_reads_what_its_forward_has_read(how):
    *ours, factor, table = derivatives_with_changes(remat.scan, **how)
    *plain, plain_factor, plain_table = derivatives_with_changes(plain_scan)
    assert all(torch.allclose(one, other, rtol=1e-9) for one, other in zip(ours, plain, strict=True))
    assert (factor, table) == (plain_factor, plain_table)
