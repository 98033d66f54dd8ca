"""Checkpoint, drop and nesting in a deep network: what each of them holds, and what it costs.

`remat.checkpoint(block, x)` computes a block again in the backward pass; `remat.drop(block)` is the same as a wrapper,
and drops nest: 1 → drop(2a → drop(2b)) → 3. The trace shows that the inner one keeps nothing while the outer one runs.
Run it: python examples/torch_blocks.py
"""

import torch
from side_by_side import compare
from torch import nn

import remat

BLOCKS, WIDTH, BATCH, ROUNDS = 25, 32, 1024, 5


class Block(nn.Module):
    """A residual block with dropout, which a recomputation draws again as it was."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        """The input, and what the block adds to it."""
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


def each_dropped(blocks):
    """Every block is computed again by itself."""
    return nn.Sequential(*(remat.drop(block) for block in blocks))


def nested(blocks):
    """Groups of √n blocks are computed again, and inside of them every block."""
    size = round(len(blocks) ** 0.5)
    groups = [blocks[i : i + size] for i in range(0, len(blocks), size)]
    return nn.Sequential(*(remat.drop(each_dropped(group)) for group in groups))


def by_calls(blocks, x):
    """The same as `each_dropped`, by a call for each block."""
    for block in blocks:
        x = remat.checkpoint(block, x)
    return x


class Outer(nn.Module):
    """The block 2 of 1 → drop(2) → 3, itself 2a → drop(2b)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), remat.drop(Inner(nn.Linear(WIDTH, WIDTH), nn.Tanh()))

    def forward(self, x):
        """2a, then drop(2b)."""
        return self.b(torch.tanh(self.a(x)))


class Inner(nn.Sequential):
    """The block 2b."""


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks, x = nn.ModuleList(Block() for _ in range(BLOCKS)), torch.randn(BATCH, WIDTH)
    plain, dropped, twice = nn.Sequential(*blocks), each_dropped(blocks), nested(blocks)
    ways = {
        "plain": lambda: plain(x).square().mean(),
        "checkpoint(block, x)": lambda: by_calls(blocks, x).square().mean(),
        "drop(block)": lambda: dropped(x).square().mean(),
        "drop of drops": lambda: twice(x).square().mean(),
    }
    peaks = compare(ways, blocks.parameters(), ROUNDS)
    assert peaks["drop(block)"] < peaks["plain"] / 2

    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), remat.drop(Outer()), nn.Linear(WIDTH, 1))
    with remat.profile() as run:
        network(x).sum().backward()
    print("what happens in 1 → drop(2a → drop(2b)) → 3:", *run.passes, sep="\n  ")


if __name__ == "__main__":
    main()
