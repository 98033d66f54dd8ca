"""A UNet: what comes down beside every resolution is needed again on the way up, so its blocks are no chain."""

import torch
from torch import nn
from torch.nn import functional as F

from .case import Case, build, names_of

__all__ = ["UNet", "make_unet"]

SIZES = {
    "tiny": {"width": 4, "levels": 3, "side": 16, "batch": 2},
    "small": {"width": 8, "levels": 4, "side": 96, "batch": 4},
    "large": {"width": 64, "levels": 5, "side": 512, "batch": 16},
}


class DoubleConv(nn.Module):
    """Two convolutions with batch norm."""

    def __init__(self, before, after):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(x)), inplace=True)


class UNet(nn.Module):
    """A mask for every image."""

    def __init__(self, width, levels):
        super().__init__()
        widths = [width * 2**i for i in range(levels)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in reversed(widths[:-1]))
        self.up = nn.ModuleList(DoubleConv(2 * a, a) for a in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        beside = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            beside.append(x)
        beside.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([beside.pop(), widen(x)], 1))
        return self.head(x)


def make_unet(size="small", device="cpu", dtype=None, **changes):
    """A UNet, images, and the cross entropy of their masks; bfloat16 and channels last on CUDA."""
    sizes = {**SIZES[size], **changes}
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    form = torch.contiguous_format if device == "cpu" else torch.channels_last
    model = build(lambda: UNet(sizes["width"], sizes["levels"]), device, dtype).to(memory_format=form)
    batch, side = sizes["batch"], sizes["side"]
    images = torch.randn(batch, 3, side, side, device=device, dtype=dtype).to(memory_format=form)
    targets = torch.rand(batch, 1, side, side, device=device, dtype=dtype).round()
    title = f"UNet, width {sizes['width']}, {sizes['levels']} levels, {side} × {side}, batch {batch}"
    loss = lambda logits: F.binary_cross_entropy_with_logits(logits, targets)  # noqa: E731
    return Case(title, model, (images,), loss, names_of(model, DoubleConv), chained=False)
