"""No example, but what several of them share: ways to compute one gradient in PyTorch, measured side by side.

Each way runs once to warm up and once for its peak: what PyTorch's allocator hands out beyond what there was before.
Then the ways take turns, so that what slows the machine down slows all of them. Times are medians, with their range: of
the CPU on a CPU, where other programs may run, and by the clock on a GPU.
"""

import statistics
import time

import torch

from remat.frameworks.torch.meter import allocator_of


def compare(ways, parameters, rounds=5):
    """Print peak and time of each way, the first of which is plain, and how far gradients are from plain's."""
    parameters = list(parameters)
    gradients = {name: gradient(way, parameters) for name, way in ways.items()}
    peaks = {name: peak(way, parameters) for name, way in ways.items()}
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(1e3 * seconds(way, parameters))
    first, *_ = ways
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times[first], strict=True))
        spread = f"{statistics.median(found):6.1f} ms ({min(found):.1f} to {max(found):.1f})"
        print(f"{name:<34} {peaks[name] / 2**20:6.2f} MiB  {spread:<28} {ratio:5.2f} times plain's time")
    pairs = [pair for name in ways for pair in zip(gradients[name], gradients[first], strict=True)]
    worst = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)
    print(f"all gradients agree to {worst:.1e}")
    assert worst < 1e-5
    return peaks


def backward(way):
    """One gradient by a way, a function that returns a loss; dropout draws the same each time."""
    torch.manual_seed(0)
    way().backward()


def zero(parameters):
    """Gradients of zeros, which are there in any training and so are no part of a peak."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)


def gradient(way, parameters):
    """The gradients by a way."""
    zero(parameters)
    backward(way)
    return [parameter.grad for parameter in parameters]


def seconds(way, parameters):
    """What one gradient takes."""
    zero(parameters)
    on_gpu = parameters[0].is_cuda
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    backward(way)
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - began


def peak(way, parameters):
    """The most bytes that are allocated at once during a run, beyond those at its start, as the allocator says."""
    zero(parameters)
    meter = allocator_of([parameters[0].device])
    with meter.counting():
        before = meter.now()
        meter.reset_peak()
        backward(way)
        return meter.peak() - before
