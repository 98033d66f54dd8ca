"""GPT at long context and ViT: blocks with scaled dot-product attention in a ModuleList, and a forward of their own."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .case import Case, build, names_of

__all__ = ["GPT", "ViT", "make_gpt", "make_vit"]

GPT_SIZES = {
    "tiny": {"blocks": 5, "width": 16, "heads": 2, "words": 12, "batch": 2, "vocabulary": 32},
    "small": {"blocks": 12, "width": 128, "heads": 4, "words": 128, "batch": 4, "vocabulary": 512},
    "large": {"blocks": 24, "width": 1024, "heads": 16, "words": 4096, "batch": 8, "vocabulary": 512},
}
VIT_SIZES = {
    "tiny": {"blocks": 4, "width": 16, "heads": 2, "side": 16, "patch": 4, "batch": 2, "classes": 10},
    "small": {"blocks": 12, "width": 96, "heads": 4, "side": 64, "patch": 8, "batch": 4, "classes": 100},
    "large": {"blocks": 12, "width": 768, "heads": 12, "side": 224, "patch": 16, "batch": 256, "classes": 1000},
}


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside the identity."""

    def __init__(self, width, heads, causal, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.causal, self.dropout = heads, causal, dropout

    def forward(self, x):
        x = x + F.dropout(self.mix(self.heads_of(x)), self.dropout, self.training)
        return x + F.dropout(self.lower(self.raised(x)), self.dropout, self.training)

    def heads_of(self, x):
        return self.qkv(self.norm1(x))

    def mix(self, qkv):
        batch, words, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = qkv.view(batch, words, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, words, width))

    def raised(self, x):
        return self.up(self.norm2(x))

    def lower(self, h):
        return self.down(F.gelu(h))


def _checkpoint(block, *names):
    """Let methods of a block run as segments of torch.utils.checkpoint."""
    for name in names:
        setattr(block, name, partial(checkpoint, getattr(block, name), use_reentrant=False))


def _halves(block):
    """A segment for each half of a block, from its norm to its last product."""

    def attention(x):
        return block.mix(block.heads_of(x))

    def perceptron(x):
        return block.lower(block.raised(x))

    def forward(x):
        x = x + F.dropout(checkpoint(attention, x, use_reentrant=False), block.dropout, block.training)
        return x + F.dropout(checkpoint(perceptron, x, use_reentrant=False), block.dropout, block.training)

    block.forward = forward


def _perceptron(block):
    """A segment of norm and heads, and one of the whole perceptron."""
    _checkpoint(block, "heads_of")
    raised, lower = block.raised, block.lower
    block.raised = lambda x: x
    block.lower = lambda x: checkpoint(lambda x: lower(raised(x)), x, use_reentrant=False)


BY_HAND = {
    "[norm1, qkv], [norm2, up], [gelu, down]": lambda block: _checkpoint(block, "heads_of", "raised", "lower"),
    "[norm1, qkv], [norm2, up, gelu, down]": _perceptron,
    "[norm1, ..., out], [norm2, ..., down]": _halves,
}


class GPT(nn.Module):
    """A decoder of text; its vocabulary is small, so that blocks hold the memory and not the logits."""

    def __init__(self, blocks, width, heads, words, vocabulary, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(words, width))
        self.blocks = nn.ModuleList(Block(width, heads, True, dropout) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """A classifier of images by their patches."""

    def __init__(self, blocks, width, heads, side, patch, classes, dropout=0.0):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.label = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn((side // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, False, dropout) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.label.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def make_gpt(size="small", device="cpu", dtype=None, **changes):
    """A GPT, its tokens, and the cross entropy of the next ones; bfloat16 on CUDA."""
    sizes = {**GPT_SIZES[size], **changes}
    batch, words = sizes.pop("batch"), sizes["words"]
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    model = build(lambda: GPT(**sizes), device, dtype)
    ids = torch.randint(sizes["vocabulary"], (batch, words + 1), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
    title = "GPT, {blocks} blocks, width {width}, {heads} heads, {words} words".format(**sizes) + f", batch {batch}"
    loss = lambda logits: F.cross_entropy(logits.flatten(0, 1), targets)  # noqa: E731
    return Case(title, model, (inputs,), loss, names_of(model, Block), chained=True, by_hand=BY_HAND)


def make_vit(size="small", device="cpu", dtype=None, **changes):
    """A ViT (the large one is ViT-B/16), images, and the cross entropy of their classes; bfloat16 on CUDA."""
    sizes = {**VIT_SIZES[size], **changes}
    batch = sizes.pop("batch")
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    model = build(lambda: ViT(**sizes), device, dtype)
    images = torch.randn(batch, 3, sizes["side"], sizes["side"], device=device, dtype=dtype)
    targets = torch.randint(sizes["classes"], (batch,), device=device)
    title = "ViT, {blocks} blocks, width {width}, {heads} heads, {side} × {side}".format(**sizes) + f", batch {batch}"
    loss = lambda logits: F.cross_entropy(logits, targets)  # noqa: E731
    return Case(title, model, (images,), loss, names_of(model, Block), chained=True, by_hand=BY_HAND)
