"""A transformer under several budgets by `auto_checkpoint`: memory, time and what is done with each block.

A model is planned for each budget from one measurement of its blocks, and its peak stays inside.
Run it: python examples/torch_budget.py
"""

import copy

import torch
from side_by_side import compare
from torch import nn

import remat

LAYERS, WIDTH, TOKENS, BATCH, SHARES, ROUNDS = 6, 64, 64, 8, (0.6, 0.35), 5


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True) for _ in range(LAYERS)]
    plain, batch = nn.Sequential(*layers), torch.randn(BATCH, TOKENS, WIDTH)
    whole = remat.auto_checkpoint(copy.deepcopy(plain), memory="1 GiB", sample=batch).remat_plan.peak
    ways, budgets = {"plain": lambda: plain(batch).square().mean()}, {}
    for share in SHARES:
        model = copy.deepcopy(plain)
        for name, parameter in plain.named_parameters():  # a copy of the blocks, with the same parameters
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, parameter)
        name = f"inside {share * whole / 2**20:.2f} MiB"
        model = remat.auto_checkpoint(model, memory=int(share * whole), sample=batch)
        ways[name], budgets[name] = lambda model=model: model(batch).square().mean(), int(share * whole)
    print(*remat.explain(model).splitlines()[:12], "...", sep="\n")  # the rest is what is kept inside of blocks
    peaks = compare(ways, plain.parameters(), ROUNDS)
    assert all(peaks[name] <= budget for name, budget in budgets.items())


if __name__ == "__main__":
    main()
