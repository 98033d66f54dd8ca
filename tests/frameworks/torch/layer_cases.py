"""A case for every layer of torch.nn; the tests and the benchmark on a GPU share them.

A case has the layer's arguments and its inputs: a shape stands for normal numbers that may want a gradient, a function
for anything else. Layers that cannot be called by themselves, such as containers, are used by a `User`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    """A layer and its inputs; `make` is called after the generator is seeded and with the default dtype set."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]

    @property
    def layer(self) -> str:
        return self.name.partition(",")[0]

    def __repr__(self) -> str:
        return self.name


class User(nn.Module):
    """What uses a part in its own way: a container, or a layer that needs what another one returns."""

    def __init__(self, part, use):
        super().__init__()
        self.part, self.use = part, use

    def forward(self, *inputs):
        return self.use(self.part, *inputs)


def whole(bound, *shape):
    """Numbers below a bound, such as labels."""
    return lambda: torch.randint(0, bound, shape)


def signs(*shape):
    return lambda: torch.randint(0, 2, shape).mul(2).sub(1).to(torch.get_default_dtype())


def chances(*shape):
    return lambda: torch.rand(shape)


def fixed(*numbers):
    return lambda: torch.tensor(numbers)


def _case(name, args, *inputs, **options):
    layer = name.partition(",")[0]
    return Case(name, lambda: getattr(nn, layer)(*args, **options), inputs)


def _used(name, use, *inputs, make=None):
    layer = getattr(nn, name.partition(",")[0], None)
    return Case(name, lambda: User((make or layer)(), use), inputs)


def _activations():
    plain = """CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid Mish PReLU RReLU
    ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink AlphaDropout Dropout Flatten"""
    yield from (_case(name, (), (3, 6)) for name in plain.split())
    yield from (_case(name, (1,), (3, 6)) for name in ("LogSoftmax", "Softmax", "Softmin", "GLU"))
    yield _case("Threshold", (0.1, 0.5), (3, 6))
    yield _case("PReLU, one for each channel", (6,), (3, 6))
    yield _case("Softmax2d", (), (2, 3, 4, 4))
    yield _case("FeatureAlphaDropout", (), (2, 3, 4, 4))
    yield from (_case(f"Dropout{d}d", (), (3, 6, *[4] * d)) for d in (1, 2, 3))
    in_place = "ReLU ELU Hardtanh LeakyReLU SiLU Dropout RReLU Hardswish Mish SELU CELU ReLU6 Hardsigmoid"
    for name in in_place.split():
        layer = getattr(nn, name)
        yield Case(
            f"{name}, in place", lambda layer=layer: nn.Sequential(nn.Linear(6, 6), layer(inplace=True)), ((3, 6),)
        )


def _spatial():
    for d in (1, 2, 3):
        size = [4] * d
        yield _case(f"Conv{d}d", (3, 3, 3), (2, 3, *size), padding=1)
        yield _case(f"Conv{d}d, reflected", (3, 4, 3), (2, 3, *size), padding=1, padding_mode="circular", bias=False)
        yield _case(f"ConvTranspose{d}d", (3, 2, 3), (2, 3, *size), stride=2)
        yield _case(f"LazyConv{d}d", (3, 3), (2, 3, *size), padding=1)
        yield _case(f"LazyConvTranspose{d}d", (2, 3), (2, 3, *size))
        yield _case(f"BatchNorm{d}d", (3,), (2, 3, *size))
        yield _case(f"LazyBatchNorm{d}d", (), (2, 3, *size))
        yield _case(f"InstanceNorm{d}d", (3,), (2, 3, *size), affine=True, track_running_stats=True)
        yield _case(f"InstanceNorm{d}d, without statistics", (3,), (2, 3, *size))
        yield _case(f"LazyInstanceNorm{d}d", (), (2, 3, *size), affine=True)
        yield from (_case(f"{name}{d}d", (2,), (2, 3, *size)) for name in ("AvgPool", "MaxPool"))
        yield from (_case(f"{name}{d}d", (2,), (2, 3, *size)) for name in ("AdaptiveAvgPool", "AdaptiveMaxPool"))
        yield _case(f"LPPool{d}d", (2, 2), (2, 3, *size))
        yield from (
            _case(f"{name}Pad{d}d", (1,), (2, 3, *size)) for name in ("Circular", "Reflection", "Replication", "Zero")
        )
        yield _case(f"ConstantPad{d}d", (1, 0.5), (2, 3, *size))
        pool = getattr(F, f"max_pool{d}d")
        yield _used(
            f"MaxUnpool{d}d",
            lambda part, x, pool=pool: part(*pool(x, 2, return_indices=True)),
            (2, 3, *size),
            make=lambda d=d: getattr(nn, f"MaxUnpool{d}d")(2),
        )
    yield _case("MaxPool2d, with indices", (2,), (2, 3, 4, 4), return_indices=True)
    yield _case("BatchNorm1d, cumulative", (6,), (3, 6), momentum=None)
    yield _case("BatchNorm1d, without statistics", (6,), (3, 6), track_running_stats=False)
    yield _case("SyncBatchNorm", (3,), (2, 3, 4))
    yield _case("FractionalMaxPool2d", (2,), (2, 3, 5, 5), output_size=3)
    yield _case("FractionalMaxPool3d", (2,), (2, 3, 5, 5, 5), output_size=3)
    yield _case("ChannelShuffle", (2,), (2, 4, 3, 3))
    yield _case("PixelShuffle", (2,), (2, 4, 3, 3))
    yield _case("PixelUnshuffle", (2,), (2, 1, 4, 4))
    yield _case("CrossMapLRN2d", (2,), (2, 3, 4, 4))
    yield _case("LocalResponseNorm", (2,), (2, 3, 4, 4))
    yield _case("Fold", ((4, 5), (2, 2)), (2, 12, 12))
    yield _case("Unfold", ((2, 2),), (2, 3, 4, 5))
    yield _case("Unflatten", (1, (2, 3)), (3, 6))
    yield _case("Upsample", (), (2, 3, 4), scale_factor=2)
    yield _case("Upsample, cubic", (), (2, 3, 4, 4), scale_factor=1.5, mode="bicubic", align_corners=True)
    yield _case("UpsamplingBilinear2d", (6,), (2, 3, 4, 4))
    yield _case("UpsamplingNearest2d", (6,), (2, 3, 4, 4))


def _dense():
    yield _case("Linear", (6, 6), (3, 6))
    yield _case("LazyLinear", (6,), (3, 6))
    yield _case("Bilinear", (6, 4, 6), (3, 6), (3, 4))
    yield _case("LayerNorm", (6,), (3, 6))
    yield _case("RMSNorm", (6,), (3, 6))
    yield _case("GroupNorm", (2, 6), (3, 6, 4))
    yield _case("Embedding", (10, 4), whole(10, 3, 5))
    yield _case("Embedding, with a largest norm", (10, 4), whole(10, 3, 5), max_norm=1.0)
    yield _case("Embedding, sparse", (10, 4), whole(10, 3, 5), sparse=True, padding_idx=0)
    yield _case("EmbeddingBag", (10, 4), whole(10, 9), fixed(0, 2, 5), mode="sum")
    yield _case("EmbeddingBag, largest", (10, 4), whole(10, 9), fixed(0, 2, 5), mode="max")
    yield _case("CosineSimilarity", (), (3, 6), (3, 6))
    yield _case("PairwiseDistance", (), (3, 6), (3, 6))
    yield Case("Sequential", lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Softplus()), ((3, 6),))
    yield _used(
        "ModuleList",
        lambda part, x: part[1](part[0](x)),
        (3, 6),
        make=lambda: nn.ModuleList([nn.Linear(6, 6), nn.Dropout()]),
    )
    yield _used(
        "ModuleDict",
        lambda part, x: part["a"](x) + part["b"](x),
        (3, 6),
        make=lambda: nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Dropout()}),
    )
    yield _used(
        "ParameterList",
        lambda part, x: x @ part[0] + part[1],
        (3, 6),
        make=lambda: nn.ParameterList([torch.randn(6, 6), torch.randn(6)]),
    )
    yield _used(
        "ParameterDict",
        lambda part, x: x @ part["w"] + part["b"],
        (3, 6),
        make=lambda: nn.ParameterDict({"w": torch.randn(6, 6), "b": torch.randn(6)}),
    )
    yield _used("Module", lambda part, x: x, (3, 6))
    yield _used("Container", lambda part, x: part.a(x), (3, 6), make=lambda: nn.Container(a=nn.Linear(6, 6)))
    yield Case("DataParallel", lambda: nn.DataParallel(nn.Linear(6, 6)), ((3, 6),))


def _recurrent():
    yield _case("RNNCell", (4, 6), (3, 4), (3, 6))
    yield _case("GRUCell", (4, 6), (3, 4), (3, 6))
    yield _used(
        "LSTMCell", lambda part, x, h, c: part(x, (h, c)), (3, 4), (3, 6), (3, 6), make=lambda: nn.LSTMCell(4, 6)
    )
    for name in ("RNN", "GRU", "LSTM"):
        yield _case(name, (4, 6), (5, 3, 4))
        yield _case(f"{name}, two layers", (4, 3, 2), (3, 5, 4), batch_first=True, dropout=0.5, bidirectional=True)
    yield _case("LSTM, projected", (4, 6), (5, 3, 4), proj_size=2)
    yield _used("LSTM, packed", _packed, (5, 3, 4), make=lambda: nn.LSTM(4, 6))


def _packed(part, x):
    out, state = part(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2])))
    return out.data, state


def _attention():
    options = {"dim_feedforward": 16, "batch_first": True}
    yield _used(
        "MultiheadAttention",
        lambda part, x: part(x, x, x),
        (5, 3, 8),
        make=lambda: nn.MultiheadAttention(8, 2, dropout=0.2),
    )
    yield _used(
        "MultiheadAttention, causal", _causal, (3, 5, 8), make=lambda: nn.MultiheadAttention(8, 2, batch_first=True)
    )
    yield _case(
        "MultiheadAttention, three inputs", (8, 2), (5, 3, 8), (4, 3, 6), (4, 3, 7), kdim=6, vdim=7, add_bias_kv=True
    )
    yield _case("TransformerEncoderLayer", (8, 2), (3, 5, 8), **options)
    yield _used(
        "TransformerEncoderLayer, padded",
        _padded,
        (3, 5, 8),
        make=lambda: nn.TransformerEncoderLayer(8, 2, norm_first=True, **options),
    )
    yield _case("TransformerDecoderLayer", (8, 2), (3, 5, 8), (3, 4, 8), **options)
    yield Case(
        "TransformerEncoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **options), 2),
        ((3, 5, 8),),
    )
    yield Case(
        "TransformerDecoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **options), 2),
        ((3, 5, 8), (3, 4, 8)),
    )
    yield _case("Transformer", (8, 2, 1, 1), (3, 5, 8), (3, 4, 8), **options)


def _causal(part, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
    return part(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)


def _padded(part, x):
    return part(x, src_key_padding_mask=torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) > 2)


def _losses():
    yield from (
        _case(name, (), (3, 6), (3, 6)) for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss")
    )
    yield from (_case(name, (), (3, 6), signs(3, 6)) for name in ("SoftMarginLoss", "HingeEmbeddingLoss"))
    yield from (_case(name, (), (3, 6), whole(6, 3)) for name in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"))
    yield _case("CrossEntropyLoss, smoothed", (), (3, 6), whole(6, 3), label_smoothing=0.1, reduction="none")
    yield _case("NLLLoss2d", (), (2, 3, 4, 4), whole(3, 2, 4, 4))
    yield _case("MultiLabelSoftMarginLoss", (), (3, 6), chances(3, 6))
    yield _case("MultiLabelMarginLoss", (), (6,), fixed(3, 0, -1, 1, 2, 4))
    yield _used("BCELoss", lambda part, x, y: part(x.sigmoid(), y), (3, 6), chances(3, 6))
    yield _case("BCEWithLogitsLoss", (), (3, 6), chances(3, 6))
    yield _case("KLDivLoss", (), (3, 6), chances(3, 6), reduction="batchmean")
    yield _case("GaussianNLLLoss", (), (3, 6), (3, 6), chances(3, 6))
    yield _case("CosineEmbeddingLoss", (), (3, 6), (3, 6), signs(3))
    yield _case("MarginRankingLoss", (), (3, 6), (3, 6), signs(3, 6))
    yield _case("TripletMarginLoss", (), (3, 6), (3, 6), (3, 6))
    yield _case("TripletMarginWithDistanceLoss", (), (3, 6), (3, 6), (3, 6))
    yield _used(
        "CTCLoss",
        lambda part, x, *rest: part(x.log_softmax(-1), *rest),
        (6, 2, 5),
        whole(4, 2, 3),
        fixed(6, 6),
        fixed(3, 2),
        make=lambda: nn.CTCLoss(blank=4),
    )
    yield _case("AdaptiveLogSoftmaxWithLoss", (6, 12, [3, 7]), (5, 6), whole(12, 5))
    yield _case("LinearCrossEntropyLoss", (6, 5), (3, 6), whole(5, 3))


# No layers: what others are made of, and abstract ones without a `forward`.
NO_LAYERS = {"RNNBase": "of RNN, GRU and LSTM", "RNNCellBase": "of RNNCell, GRUCell and LSTMCell"}
GROUPS = (_activations, _spatial, _dense, _recurrent, _attention, _losses)
CASES = [case for group in GROUPS for case in group() if hasattr(nn, case.layer)]  # some are newer than torch 2.11
