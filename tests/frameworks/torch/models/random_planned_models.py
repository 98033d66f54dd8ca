"""Random models for auto_checkpoint: sequences, residual blocks in lists, and encoders with decoders."""

import random
from itertools import pairwise

import torch
from torch import nn

from tests.frameworks.torch.models.planned_models import WIDTH


def random_model(seed):
    """A model in float64 and its inputs."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    make = choose.choice([_sequence, _residual, _encoder_decoder])
    size = choose.choice([8, 24, 64])
    model, inputs = make(choose), 2 if make is _encoder_decoder else 1
    data = tuple(torch.randn(size, WIDTH, dtype=torch.float64) for _ in range(inputs))
    if choose.random() < 0.3:
        data = tuple(each.requires_grad_() for each in data)
    model = model.double()
    if choose.random() < 0.2:
        for parameter in choose.sample(list(model.parameters()), 3):
            parameter.requires_grad_(False)
    return model, data


def _layer(choose, width, out):
    kind = choose.choice(["mlp", "norm", "batch", "drop", "plain", "in place"])
    linear = nn.Linear(width, out)
    if kind == "mlp":
        hidden = width * choose.choice([1, 4])
        return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out))
    if kind == "norm":
        return nn.Sequential(nn.LayerNorm(width), linear, nn.SiLU())
    if kind == "batch":
        return nn.Sequential(nn.BatchNorm1d(width), linear, nn.Tanh())
    if kind == "drop":
        return nn.Sequential(linear, nn.Dropout(0.3))
    return nn.Sequential(linear, nn.ReLU(inplace=kind == "in place"))


def _sequence(choose):
    """Layers of many widths, some of them in sequences inside, some in place."""
    widths = [WIDTH, *(choose.choice([4, 8, 16, 32]) for _ in range(choose.randint(3, 9))), 2]
    layers = [_layer(choose, a, b) for a, b in pairwise(widths)]
    flat = [part for layer in layers for part in (layer if choose.random() < 0.5 else [layer])]
    return nn.Sequential(*flat)


class _Residual(nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.body, self.tuples = _layer(choose, WIDTH, WIDTH), False

    def forward(self, x, *others, scale=1.0):
        y = x + scale * self.body(x)
        for other in others:
            y = y + 0.1 * other
        return (y, y.mean()) if self.tuples else y


class _Stack(nn.Module):
    """A list of residual blocks; what stands between and around them differs."""

    def __init__(self, choose):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(_Residual(choose) for _ in range(choose.randint(2, 9)))
        self.tuples, self.skip, self.between = (choose.random() < 0.3 for _ in range(3))
        self.at = choose.randrange(len(self.blocks))
        for block in self.blocks:
            block.tuples = self.tuples

    def forward(self, x, *others):
        h, aux, skipped = self.first(x), 0.0, None
        for number, block in enumerate(self.blocks):
            h = block(h, *others, scale=0.5)
            if self.tuples:
                h, part = h
                aux = aux + part
            if number == self.at:
                skipped = h
            elif self.between and number % 2:
                h = torch.tanh(h)
        return self.last(h + skipped if self.skip else h) + aux


def _residual(choose):
    return _Stack(choose)


class _EncoderDecoder(nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.encoder, self.decoder = _Stack(choose), _Stack(choose)
        self.encoder.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        return self.decoder(y, self.encoder(x))


def _encoder_decoder(choose):
    return _EncoderDecoder(choose)
