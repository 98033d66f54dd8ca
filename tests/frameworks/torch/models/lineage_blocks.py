"""Blocks for the tests of lineage: what stands in blocks of real models, small."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import remat

WIDTH = 16


class Attention(nn.Module):
    """A transformer's block: norms, attention and a perceptron; dropout where it is asked for."""

    def __init__(self, dropout=0.0, width=WIDTH, heads=2):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x, mask=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        attention = attention.transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(attention), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class Gated(nn.Module):
    """A norm written out in another dtype, rotated halves, and a gate, as Llama has them."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        wide = x.double()
        h = self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        first, second = h.chunk(2, -1)
        h = torch.cat([-second, first], -1)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Residual(nn.Module):
    """A block of a ResNet: batch norms with statistics, activations in place."""

    def __init__(self, channels=4):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        h += x
        return self.relu(h)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        twice = x * 2  # known to nobody but this function
        ctx.save_for_backward(x, twice)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, twice = ctx.saved_tensors
        return grad * twice + 0 * x


class Custom(nn.Module):
    """A custom function between others, and one that differentiates inside."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        h = self.linear(x).tanh()
        h = _Square.apply(h.sin())
        (g,) = torch.autograd.grad(h.exp().sum(), h, create_graph=True)
        return x + g


class Shared(nn.Module):
    """One tensor in several places, complex numbers, and views of views."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        h = self.linear(x).exp()
        z = torch.view_as_complex(h.sin().unflatten(-1, (-1, 2)))
        z = z.conj() * z.exp() * z.conj().imag.cos()
        a, b = h.tanh().split(WIDTH // 2, -1)
        return x + torch.cat([a * b, b * b], -1) * h + torch.view_as_real(z * z).flatten(-2).sin()


class Writes(nn.Module):
    """Memory that is written into after others have read it."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        h = self.linear(x) + 1
        g = (h * 2).sigmoid()  # reads what is written into next
        h.mul_(3)
        k = h.exp()
        total = torch.zeros_like(k)
        total[..., ::2] = k[..., ::2].sin()
        total += g
        return x + total.cos() * k


class Segments(nn.Module):
    """Segments inside of the block, of both libraries."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        h = checkpoint(lambda y: self.first(y).tanh().exp(), x.sin(), use_reentrant=False)
        h = checkpoint(lambda y: self.second(y).tanh(), h.cos(), use_reentrant=True)
        return x + remat.checkpoint(lambda y: self.third(y).sin().exp(), h * 2)


BLOCKS = {
    "attention": (Attention, (2, 6, WIDTH)),
    "dropout": (lambda: Attention(0.3), (2, 6, WIDTH)),
    "gated": (Gated, (2, 6, WIDTH)),
    "residual": (Residual, (2, 4, 6, 6)),
    "custom": (Custom, (3, WIDTH)),
    "shared": (Shared, (3, WIDTH)),
    "segments": (Segments, (3, WIDTH)),
    "writes": (Writes, (3, WIDTH)),
}


def block_of(name, dtype=torch.float32):
    """A block, and an input."""
    torch.manual_seed(0)
    make, shape = BLOCKS[name]
    return make().to(dtype), torch.randn(shape, dtype=dtype, requires_grad=True)
