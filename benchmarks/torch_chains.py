"""A model under budgets in bytes, beside torch.utils.checkpoint in its forms: time, peak, and what was predicted.

    python benchmarks/torch_chains.py gpt                                 small, on this machine's CPU, one thread
    python benchmarks/torch_chains.py gpt --device cuda --picture gpt.svg        large, a few minutes on an H200
    python benchmarks/torch_chains.py gpt --device cuda --compile       blocks as compiled code, beside torch.compile
    python benchmarks/torch_chains.py deep-resnet --device cuda --set each=111           ResNet-1001
    python benchmarks/torch_chains.py vit --budgets 0.5 0.3 2GiB --no-quick --rounds 9

Models: gpt, vit, resnet50, resnet101, deep-resnet, unet, llama (with transformers). All ways run in one process on the
same parameters, one after the other and several times round; `time` is the median of ratios to the plain step of the
same round, in wall time on CUDA and in CPU seconds on a CPU; predicted seconds are always wall time, so on a busy CPU
they are too long. A peak is of one training step, from the call of the model until the backward has ended, above the
level at the call (with gradients present): by the CUDA allocator, on a CPU by the events of PyTorch's own one. Budgets
below 1 are shares of plain's peak; the peaks of the best baselines are budgets too, so that times can be compared at
equal memory.
"""

import argparse
import gc
import time
import warnings
from functools import partial

import torch
from models import MODELS
from torch_chains_table import checks, markdown, picture
from torch_chains_ways import baselines, by_remat, compiled_baselines

from remat.units import bytes_text, to_bytes

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.06)


class Bench:
    """Runs training steps of one case."""

    def __init__(self, case, device, compiled=False):
        self.case, self.cuda, self.compiled = case, device == "cuda", compiled
        self.parameters = [parameter for parameter in case.model.parameters() if parameter.requires_grad]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.expected, self.statistics, self.noise = None, None, 0.0

    def step(self, way):
        torch.manual_seed(0)  # of dropout
        with way.context():
            self.case.step(way.model)

    def prepare(self):
        torch._foreach_zero_([parameter.grad for parameter in self.parameters])
        gc.collect()
        self.finish()

    def finish(self):
        if self.cuda:
            torch.cuda.synchronize()

    def compare(self, way):
        """Run a step, which also warms up, and compare it with the first way's, which is plain."""
        self.prepare()
        self.step(way)
        if self.expected is None:
            self.expected = [parameter.grad.clone() for parameter in self.parameters]
            self.statistics = [buffer.clone() for buffer in way.model.buffers()]
            self.prepare()
            self.step(way)
            self.noise = self.distance()
            way.gradients = "repeat" if self.noise == 0 else f"repeat within {self.noise:.0e}"
            return
        distance = self.distance()
        allowed = 4 * self.noise + 8 * torch.finfo(self.expected[0].dtype).eps
        way.gradients = "bitwise" if distance == 0 else f"{'' if distance <= allowed else 'WRONG '}{distance:.0e}"
        pairs = zip(way.model.buffers(), self.statistics, strict=True)
        way.buffers = all(torch.allclose(a, b, rtol=allowed if a.is_floating_point() else 0) for a, b in pairs)

    def distance(self):
        """The largest difference of a parameter's gradient, relative to the norm."""
        pairs = zip(self.parameters, self.expected, strict=True)
        scale = max(float(b.float().norm()) for b in self.expected) * 1e-3  # gradients that are zero but for rounding
        errors = [(a.grad - b).float().norm() / b.float().norm().clamp(min=scale) for a, b in pairs if a.numel()]
        return float(torch.stack(errors).max())

    def memory(self, way):
        """The bytes at the peak of a step, above the level before."""
        self.prepare()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.step(way)
            self.finish()
            return torch.cuda.max_memory_allocated() - before
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as profiler:
            self.step(way)
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        now = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            peak = max(peak, now)
        return peak

    def seconds(self, way):
        self.prepare()
        clock = time.perf_counter if self.cuda else time.process_time
        began = clock()
        self.step(way)
        self.finish()
        return clock() - began

    def check(self, way):
        """Compare a way and measure its peak; whatever it raises is its error."""
        if way.error:
            return way
        try:
            self.compare(way)
            way.peak = self.memory(way)
        except Exception as error:
            way.error = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return way


def budgets(args, ways):
    """Names and bytes of budgets, the largest first, with the way that one belongs to."""
    plain = ways[0].peak
    found = []
    for text in SHARES if args.budgets is None else args.budgets:
        share = float(text) if str(text).replace(".", "", 1).isdigit() else None
        if share is None or share > 2:
            found.append((f"remat, {text}", to_bytes(text, "budget"), ""))
        else:
            found.append((f"remat, {share:.0%}", int(share * plain), ""))
    if args.budgets is None:
        found += [(f"remat at {peer.name}", peer.peak, peer.name) for peer in frontier(ways, 6 if args.quick else 12)]
    return sorted(found, key=lambda budget: -budget[1])


def frontier(ways, most):
    """Baselines than which none has a lower peak and takes less time; spread over peaks."""
    peers = sorted((way for way in ways[1:] if not way.error), key=lambda way: way.peak)
    best = [way for i, way in enumerate(peers) if all(way.times[0] < other.times[0] for other in peers[:i])]
    return best[:: max(1, -(-len(best) // most))]


def under_budgets(bench, budgets):
    """Ways of remat; instead of those with too little, one with the smallest budget that works."""
    least = 0
    for name, budget, beside in budgets:
        if budget < least:
            continue
        way = bench.check(by_remat(bench.case, budget, name, beside, bench.compiled))
        say(f"  {name} ({bytes_text(budget)}): {way.error or bytes_text(way.peak)}, planned in {way.planning:.1f} s")
        yield way
        if way.least:
            least = way.least
            way = bench.check(by_remat(bench.case, least, "remat, the smallest budget", compiled=bench.compiled))
            if way.least:  # plans differ from call to call, as measured times do, and so do small things around them
                name = "remat, the smallest budget + 1%"
                way = bench.check(by_remat(bench.case, int(1.01 * way.least), name, compiled=bench.compiled))
            yield way


def measure(bench, args):
    """All ways, checked, with their peaks and times."""
    ways = []
    for way in (compiled_baselines if args.compile else baselines)(bench.case, args.quick):
        ways.append(bench.check(way))
        if not way.error:
            way.times = [bench.seconds(way)]  # to choose the best ones, and thrown away
        say(f"  {way.name}: {way.error or bytes_text(way.peak)}")
    ways += under_budgets(bench, budgets(args, ways))
    running = [way for way in ways if not way.error]
    for way in running:
        way.times = []
    for _ in range(args.rounds):
        for way in running:
            way.times.append(bench.seconds(way))
    return ways


def say(text):
    print(text, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", choices=["tiny", "small", "large"], help="small on a CPU, large on CUDA unless given")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=N", help="numbers of the size, as blocks=12")
    parser.add_argument("--dtype", help="of parameters, as float64")
    parser.add_argument("--budgets", nargs="*", help="shares of plain's peak, or bytes as 2GiB; none: only PyTorch")
    parser.add_argument("--rounds", type=int, help="3 unless given, 9 without --quick")
    parser.add_argument("--quick", action=argparse.BooleanOptionalAction, default=True, help="few baselines")
    parser.add_argument("--compile", action="store_true", help="compiled code, beside what torch.compile does itself")
    parser.add_argument("--picture", help="a file to draw: .svg, or .png with resvg_py")
    args = parser.parse_args()
    args.size = args.size or ("small" if args.device == "cpu" else "large")
    args.rounds = args.rounds or (3 if args.quick else 9)
    return args


def main():
    args = arguments()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torch")
    changes = {name: int(number) for name, _, number in (text.partition("=") for text in args.set)}
    make = partial(MODELS[args.model], args.size, args.device, **changes)
    case = make(dtype=getattr(torch, args.dtype)) if args.dtype else make()
    dtype = str(next(case.model.parameters()).dtype).removeprefix("torch.")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "one thread of a CPU"
    title = f"{case.title}, {dtype}, on {where}"
    say(f"{title}, torch {torch.__version__}")
    gc.collect()
    gc.freeze()  # what was imported is not looked at in every collection
    ways = measure(Bench(case, args.device, args.compile), args)
    say(f"\n{markdown(ways)}\n")
    for line in checks(ways):
        say(line)
    if args.picture:
        picture(ways, title, args.picture)


if __name__ == "__main__":
    main()
