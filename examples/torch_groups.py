"""Segments of several inputs and outputs, groups, and thresholds that decide by themselves.

`checkpoint_segment` and `CheckpointGroup` recompute a function of several tensors that gives one or more;
`adaptive_checkpoint` does so only where the result is larger than a threshold. The counter of `CheckpointProfiler` says
how many segments there were, and what plain differentiation would have held for them.
Run it: python examples/torch_groups.py
"""

import torch
from side_by_side import compare

import remat
from remat.legacy import CheckpointGroup, CheckpointProfiler, checkpoint_segment

HEADS, TOKENS, WIDTHS, ROWS, LAYERS, ROUNDS = 6, 256, (16, 64, 256, 1024), 64, 4, 5
THRESHOLDS = ("100 KiB", "10 KiB", "0 B")


def attend(inputs):
    """A segment of three inputs and two outputs: values mixed by weights, and the weights."""
    query, key, value = inputs
    weights = torch.softmax(query @ key.T / query.shape[1] ** 0.5, 1)
    return weights @ value, weights


def gate(inputs):
    """A segment of two inputs and one output."""
    new, old = inputs
    return torch.sigmoid(new) * torch.tanh(old) + old


def plain(parts):
    query, key, value = parts
    for _ in range(HEADS):
        mixed, _weights = attend([query, key, value])
        value = gate([mixed, value])
    return value.sum()


def grouped(parts):
    query, key, value = parts
    for _ in range(HEADS):
        mixed, _weights = CheckpointGroup().checkpoint_fn([query, key, value], attend)
        value = checkpoint_segment(gate, [mixed, value])
    return value.sum()


def activate(x):
    return x.exp().sin().tanh()


def activations(xs, threshold=None):
    """Activations of very different sizes, recomputed where they are larger than the threshold."""
    total = 0.0
    for x in xs:
        for _ in range(LAYERS):
            x = activate(x) if threshold is None else remat.adaptive_checkpoint(activate, x, threshold=threshold)
        total = total + x.sum()
    return total


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    parts = [torch.randn(TOKENS, 32, requires_grad=True) for _ in range(3)]
    ways = {"plain": lambda: plain(parts), "groups and segments": lambda: grouped(parts)}
    peaks = compare(ways, parts, ROUNDS)
    assert peaks["groups and segments"] < peaks["plain"] / 2

    xs = [torch.randn(ROWS, width, requires_grad=True) for width in WIDTHS]
    ways = {"plain": lambda: activations(xs)}
    for threshold in THRESHOLDS:
        ways[f"recomputed above {threshold}"] = lambda threshold=threshold: activations(xs, threshold)
    compare(ways, xs, ROUNDS)
    for threshold in THRESHOLDS:
        CheckpointProfiler.reset_statistics()
        CheckpointProfiler.start_tracking()
        activations(xs, threshold).backward()
        CheckpointProfiler.stop_tracking()
        count, saved = CheckpointProfiler.checkpoint_count(), CheckpointProfiler.memory_saved()
        print(
            f"above {threshold:<8} {count} of {LAYERS * len(xs)} recomputed, {saved / 1024:.0f} KiB not held for them"
        )
    assert count == LAYERS * len(xs)


if __name__ == "__main__":
    main()
