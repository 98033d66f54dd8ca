"""ResNet-50 and ResNet-101 as nested Sequentials, and deep ResNets for small images as one flat Sequential."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from .case import Case, build, names_of

__all__ = ["Bottleneck", "deep_resnet", "make_deep_resnet", "make_resnet50", "make_resnet101", "resnet"]

SIZES = {
    "tiny": {"width": 4, "side": 32, "batch": 2, "classes": 10},
    "small": {"width": 16, "side": 64, "batch": 8, "classes": 100},
    "large": {"width": 64, "side": 224, "batch": 256, "classes": 1000},
}
DEEP_SIZES = {
    "tiny": {"each": 3, "width": 4, "side": 8, "batch": 3, "classes": 10},
    "small": {"each": 8, "width": 8, "side": 32, "batch": 8, "classes": 10},
    "large": {"each": 36, "width": 16, "side": 32, "batch": 512, "classes": 10},
}


class Bottleneck(nn.Module):
    """Three convolutions with batch norm beside the identity, or beside a projection where shapes differ."""

    def __init__(self, before, width, stride=1):
        super().__init__()
        after = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.project = None
        if stride != 1 or before != after:
            self.project = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        beside = x if self.project is None else self.project(x)
        return F.relu(self.norm3(self.conv3(y)) + beside, inplace=True)


def _group(before, width, count, stride):
    """Blocks of one resolution."""
    return [Bottleneck(before if i == 0 else 4 * width, width, stride if i == 0 else 1) for i in range(count)]


def _head(features, classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


def resnet(counts, width, classes):
    """A ResNet for large images, with these numbers of blocks at four resolutions."""
    norm = nn.BatchNorm2d(width)
    stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), norm, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    parts, before = OrderedDict(stem=stem), width
    for i, count in enumerate(counts):
        inner = width * 2**i
        parts[f"layer{i + 1}"] = nn.Sequential(*_group(before, inner, count, 1 if i == 0 else 2))
        before = 4 * inner
    return nn.Sequential(parts | {"head": _head(before, classes)})


def deep_resnet(each, width, classes):
    """A ResNet for small images, with `each` blocks at three resolutions: 9·each + 2 layers."""
    stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    blocks, before = [], width
    for i in range(3):
        blocks += _group(before, width * 2**i, each, 1 if i == 0 else 2)
        before = 4 * width * 2**i
    return nn.Sequential(stem, *blocks, _head(before, classes))


def make_resnet50(size="small", device="cpu", dtype=None, **changes):
    """ResNet-50, images, and the cross entropy of their classes."""
    return _make("ResNet-50", (3, 4, 6, 3), size, device, dtype, changes)


def make_resnet101(size="small", device="cpu", dtype=None, **changes):
    """ResNet-101, images, and the cross entropy of their classes."""
    return _make("ResNet-101", (3, 4, 23, 3), size, device, dtype, changes)


def make_deep_resnet(size="small", device="cpu", dtype=None, **changes):
    """A deep ResNet (each=111 is ResNet-1001), images, and the cross entropy of their classes."""
    sizes = {**DEEP_SIZES[size], **changes}
    name = f"ResNet-{9 * sizes['each'] + 2}"
    return _case(name, lambda: deep_resnet(sizes["each"], sizes["width"], sizes["classes"]), sizes, device, dtype)


def _make(name, counts, size, device, dtype, changes):
    sizes = {**SIZES[size], **changes}
    return _case(name, lambda: resnet(counts, sizes["width"], sizes["classes"]), sizes, device, dtype)


def _case(name, make, sizes, device, dtype):
    """Channels last and bfloat16 on CUDA, as they are trained there."""
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    form = torch.contiguous_format if device == "cpu" else torch.channels_last
    model = build(make, device, dtype).to(memory_format=form)
    batch, side = sizes["batch"], sizes["side"]
    images = torch.randn(batch, 3, side, side, device=device, dtype=dtype).to(memory_format=form)
    targets = torch.randint(sizes["classes"], (batch,), device=device)
    title = f"{name}, width {sizes['width']}, {side} × {side}, batch {batch}"
    loss = lambda logits: F.cross_entropy(logits, targets)  # noqa: E731
    return Case(title, model, (images,), loss, names_of(model, Bottleneck), chained=True)
