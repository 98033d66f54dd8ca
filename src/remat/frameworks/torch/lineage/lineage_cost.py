"""The overhead of lineage besides the operators that are rerun: measured once per process, on tiny tensors.

The rule: plans count the time of its Python, per operator of a block and per operator that is rerun. On an accelerator
that time is hidden as far as the kernels take longer than the Python that launches them.

The cost: some fifty milliseconds, once.
"""

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from remat.frameworks.torch.lineage.lineage import Dropped, result_name, run_by_lineage
from remat.frameworks.torch.lineage.lineage import dropped_results as results

__all__ = ["LineageCost", "lineage_cost"]

OPERATORS = 10  # of each kind
TIMES = 15


class LineageCost(NamedTuple):
    """Seconds of overhead for each operator of a block, and for each that is rerun."""

    operator: float
    remade: float


@cache
def lineage_cost() -> LineageCost:
    """The overhead of lineage on this machine."""
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        x = torch.ones(2, 2, requires_grad=True)
        everything = results(tuple(result_name(name, i, 0) for name in ("mm", "sin") for i in range(OPERATORS)))
        plain, kept, remade = (_fastest(x, dropped) for dropped in (None, {}, everything))
        with torch.no_grad():
            alone = _seconds(lambda: _operators(x))
    count = 2 * OPERATORS
    return LineageCost(max(0.0, kept - plain) / count, max(0.0, remade - kept - alone) / count)


def _operators(x: Tensor) -> Tensor:
    for _ in range(OPERATORS):
        x = torch.mm(x, x.t()).sin()
    return x


def _fastest(x: Tensor, dropped: Dropped | None) -> float:
    def step() -> None:
        _pull_back(_operators(x) if dropped is None else run_by_lineage(_operators, (x,), {}, dropped), x)

    return _seconds(step)


def _pull_back(out: Tensor, x: Tensor) -> None:
    torch.autograd.grad(out.sum(), x)


def _seconds(run: Callable[[], object]) -> float:
    found = []
    for _ in range(TIMES):
        began = perf_counter()
        run()
        found.append(perf_counter() - began)
    return min(found)
