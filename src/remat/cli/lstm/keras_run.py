"""`remat lstm --framework keras`: the LSTM of Keras on one of its backends, with save points or inside a budget."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remat.cli.agreement import agreement
from remat.cli.output import write_report
from remat.cli.progress_bars import Bars
from remat.cli.timing import Times, interleaved
from remat.errors import StepError
from remat.planners import Plan, plan
from remat.planners.chain.periodic_segments import PeriodicSegments
from remat.units import bytes_text, count_text, number_text

if TYPE_CHECKING:
    from remat.cli.lstm.keras_model import KerasLstm

__all__ = ["BACKENDS", "KerasRequest", "run_keras"]

BACKENDS = ("torch", "jax", "tensorflow")
FINE = 16  # sections between which the planner may choose
UNDOES = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
_COLUMN = 18


@dataclass(frozen=True)
class KerasRequest:
    """What the arguments ask for."""

    backend: str
    steps: int
    hidden: int
    batch: int
    rounds: int
    positions: list[int]
    memory: int | None
    compare: bool
    optimal: bool
    report: str | None


@dataclass(frozen=True)
class _Variant:
    name: str
    model: "KerasLstm"
    plan: Plan
    loss: float
    gradient: dict[str, Any]
    peak: int
    measured: bool
    times: Times | None = None


def run_keras(request: KerasRequest) -> int:
    """Run, print, and write the report."""
    new_model = _model_class(request.backend)
    variants: list[_Variant] = []
    with Bars() as bars:
        for name, bounds, memory in _ways(request):
            bars.say(name)
            variants.append(_run(name, new_model(request.steps, request.hidden, request.batch, bounds, memory)))
        if request.optimal:
            name, budget = "placed by the planner", variants[-1].plan.peak
            bars.say(name)
            model = new_model(request.steps, request.hidden, request.batch, _fine(request.steps), budget)
            variants.append(_run(name, model))
        times = interleaved([variant.model.run for variant in variants], request.rounds)
    variants = [replace(variant, times=each) for variant, each in zip(variants, times, strict=True)]
    first = variants[0] if len(variants) > 1 and not variants[0].plan.recomputed else None
    for variant in variants:
        print(f"{variant.name}, {count_text(request.steps)} steps, Keras on {request.backend}")
        for label, value in _numbers(variant, first):
            print(f"{label + ':':<{_COLUMN}}{value}")
    if request.optimal:
        even, best = variants[-2:]
        assert even.times is not None
        assert best.times is not None
        more = best.times.median / even.times.median - 1  # measured: plans of different sections count otherwise
        less = number_text(even.peak / max(1, best.peak))
        print(f"{'gain:':<{_COLUMN}}{less} times less memory than even save points, at {more:+.1%} of its time")
    if request.report:
        labels = [variant.name for variant in variants]
        title = f"An LSTM of Keras on {request.backend}"
        write_report([variant.plan for variant in variants], request.report, title=title, labels=labels)
    return 0


def _model_class(backend: str) -> "type[KerasLstm]":
    """The model; Keras is imported only now, for this backend, in double precision."""
    try:
        import_module(backend) if backend == "torch" else None
        if backend == "jax" and "jax" not in sys.modules:
            # XLA reads it once, and would undo recomputation on the CPU.
            os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), UNDOES])
        os.environ["KERAS_BACKEND"] = backend
        keras = import_module("keras")
        if backend == "jax":
            import_module("jax").config.update("jax_enable_x64", True)
    except ImportError as error:
        raise StepError(
            f"--framework keras --backend {backend} needs Keras and its backend: pip install 'remat[keras]' {backend} "
            f"({error})"
        ) from error
    if keras.backend.backend() != backend:
        raise StepError(f"Keras is loaded already, on {keras.backend.backend()}: run --backend {backend} by itself")
    keras.config.set_floatx("float64")
    model_class: type[KerasLstm] = import_module("remat.cli.lstm.keras_model").KerasLstm
    return model_class


def _ways(request: KerasRequest) -> Iterator[tuple[str, list[int], int | None]]:
    """What is run: a name, where sections end, and a budget."""
    count = len(request.positions)
    if request.compare or (not count and request.memory is None):
        yield "without checkpoints", [], None
    if request.memory is not None:
        yield f"inside {bytes_text(request.memory)}", _fine(request.steps), request.memory
    if count:
        yield f"{count} checkpoint{'s' * (count != 1)}", list(request.positions), None


def _fine(steps: int) -> list[int]:
    sections = min(FINE, steps)
    return [k * steps // sections for k in range(1, sections)]


def _run(name: str, model: "KerasLstm") -> _Variant:
    loss, gradient = model.gradient()
    graph = getattr(model.model, "remat_graph", None)
    if graph is not None and graph.plans:
        planned = graph.plans[0]
    else:
        chain = model.chain()
        planned = plan(chain, 10**18, planner=PeriodicSegments(chain.units) if model.has_save_points else "auto")
    peak = model.peak()
    return _Variant(name, model, planned, loss, gradient, planned.peak if peak is None else peak, peak is not None)


def _numbers(variant: _Variant, first: _Variant | None) -> Iterator[tuple[str, str]]:
    """What is printed of one variant, and how it compares with the first one."""
    yield "loss", f"{variant.loss:.15f}"
    how = "measured" if variant.measured else "estimated: TensorFlow has no meter on the CPU"
    yield "peak live memory", f"{bytes_text(variant.peak)}, {how}"
    assert variant.times is not None
    if first is not None and variant is not first:
        assert first.times is not None
        yield "ratio", f"{variant.peak / max(1, first.peak):.3f} of that without checkpoints"
        yield "gradients", agreement(variant.gradient, first.gradient)
        yield "time ratio", f"{variant.times.median / first.times.median:.2f} times that without checkpoints"
    elif not variant.plan.recomputed:
        yield "ratio", "1 (nothing is split)"
    yield "time", f"{variant.times} for a gradient"
    sections = variant.plan.problem.units
    yield "sections", f"{count_text(sections)}, {count_text(variant.plan.recomputed)} runs of them again"
