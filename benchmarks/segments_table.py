"""For segments.py: meters of what is saved and of peaks, and a table of ways that are measured side by side."""

import gc
import statistics
import time
import tracemalloc
import weakref
from contextlib import nullcontext

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PLAIN, PEER, OURS, DROP = "plain", "the framework's own", "remat.checkpoint", "remat.drop"


class Storages(TorchDispatchMode):
    """Bytes of all storages that were made on the CPU while it is on and that are still there."""

    def __init__(self):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for each in () if func.is_view else tree_leaves(out):
            storage = each.untyped_storage() if isinstance(each, torch.Tensor) else None
            if storage is not None and id(storage) not in given | self.live.keys():
                self.live[id(storage)] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.gone, id(storage))
        return out

    def gone(self, number):
        self.now -= self.live.pop(number)


def memory(begin, kind):
    """Bytes between forward and backward, and at the peak; `begin` runs the forward, and returns the backward."""
    storages, cuda = Storages(), torch.cuda
    start, read = {
        "cpu": (gc.collect, lambda: (storages.now, storages.peak)),
        "cuda": (cuda.reset_peak_memory_stats, lambda: (cuda.memory_allocated(), cuda.max_memory_allocated())),
        "numpy": (tracemalloc.start, tracemalloc.get_traced_memory),
    }[kind]
    gc.collect()
    start()
    with storages if kind == "cpu" else nullcontext():
        before, end = read()[0], begin()
        saved = read()[0]
        end()
    peak = read()[1]
    tracemalloc.stop()
    return saved - before, peak - before


def table(title, ways, sizes, rounds, segments=0):
    """Measure all ways side by side and print them; `sizes` gives the bytes saved and at the peak of a way by name."""
    gradients, found, times = {}, {}, {name: [] for name in ways}
    for name, begin in ways.items():
        begin()()  # in the first backward remat looks whether a block repeats itself
        gradients[name] = [each.cpu() if isinstance(each, torch.Tensor) else numpy.asarray(each) for each in begin()()]
        found[name] = sizes(name)
    for _ in range(rounds):
        for name, begin in ways.items():
            began = time.perf_counter()
            begin()()
            times[name].append(time.perf_counter() - began)
    heads = ("saved MiB", "of plain", "peak MiB", "of plain", "ms", "time", "error")
    print(f"\n{title}\n{'':20}" + "".join(f"{head:>10}" for head in heads))
    more = {}
    for name in ways:
        pairs = list(zip(times[name], times[PLAIN], strict=True))
        more[name] = statistics.median(mine - plain for mine, plain in pairs)
        ratio = statistics.median(mine / plain for mine, plain in pairs)
        error = max(abs(a - b).max() / abs(b).max() for a, b in zip(gradients[name], gradients[PLAIN], strict=True))
        shown = [
            f"{'-':>20}" if mine is None else f"{mine / 2**20:>10.3f}{mine / plain:>10.1%}"
            for mine, plain in zip(found[name], found[PLAIN], strict=True)
        ]
        took = 1e3 * statistics.median(times[name])
        print(f"{name:20}{''.join(shown)}{took:>10.2f}{ratio:>10.3f}{error:>10.0e}", flush=True)
    for name in (OURS, DROP) if segments else ():
        mine, peer = (1e6 * more[each] / segments for each in (name, PEER))
        print(
            f"beside its block, a segment takes {mine:.0f} us by {name}, {peer:.0f} by PyTorch: ratio {mine / peer:.2f}"
        )
