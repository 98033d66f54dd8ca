"""`remat lstm --framework keras`: Keras's LSTM on one of its backends, with save points or inside a budget."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from remat.cli.agreement import agreement
from remat.cli.lstm.keras_variants import (
    BACKENDS,
    EVERYTHING,
    KerasVariant,
    fine_bounds,
    least_budget,
    model_class,
    run_inside,
    run_variant,
)
from remat.cli.output import write_report
from remat.cli.progress_bars import Bars
from remat.cli.timing import interleaved
from remat.cli.words import show, tell
from remat.planners import plan
from remat.units import bytes_text, count_text, number_text

__all__ = ["BACKENDS", "KerasRequest", "run_keras"]

MOST_EXTRA = 1.1  # --optimal may run this many times the forward steps of even save points
_COLUMN = 18  # the column in which values begin


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

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of the model: steps, hidden, batch."""
        return self.steps, self.hidden, self.batch


def run_keras(request: KerasRequest) -> int:
    """Run, print, and write the report; Ctrl-C leaves a report of what was done so far."""
    variants: list[KerasVariant] = []
    try:
        with Bars() as bars:
            _run_variants(request, bars, variants)
            bars.say("timing, in turns", request.rounds * len(variants), part="this gradient")
            times = interleaved([variant.model.run for variant in variants], request.rounds, bars.step)
            variants[:] = [replace(variant, times=each) for variant, each in zip(variants, times, strict=True)]
    except KeyboardInterrupt:
        _report(variants, request)
        raise
    _print_all(variants, request)
    _report(variants, request)
    if not request.report:
        tell("next: --report lstm.html draws what is live when")
    over = [variant for variant in variants if variant.budget == request.memory and variant.bytes_over]
    for variant in over:
        tell(
            f"remat: --memory {bytes_text(request.memory or 0)} does not hold: a gradient takes "
            f"{bytes_text(variant.peak, up=True)} on {request.backend}, which places buffers by itself, in the best of "
            "the plans that were tried; give that much, or --backend torch, which keeps to the plan"
        )
    return 1 if over else 0


def _run_variants(request: KerasRequest, bars: Bars, variants: list[KerasVariant]) -> None:
    new_model = model_class(request.backend)
    for name, bounds, memory in _ways(request):
        bars.say(name)
        if memory is None:
            variants.append(run_variant(name, new_model(*request.sizes, bounds), None))
        else:
            variants.append(run_inside(name, partial(new_model, *request.sizes, bounds), memory))
    if not request.optimal:
        return
    name, bounds = "placed by the planner", fine_bounds(request.steps, len(request.positions))
    bars.say(name)
    fine = new_model(*request.sizes, bounds)  # only its sections are measured
    most = MOST_EXTRA * variants[-1].forward_steps
    budget = least_budget(fine.chain(), fine.section_lengths, most) + fine.result_bytes
    variants.append(run_variant(name, new_model(*request.sizes, bounds, budget), budget))


def _ways(request: KerasRequest) -> Iterator[tuple[str, list[int], int | None]]:
    """The requested variants: a name, the ends of sections, and a budget."""
    count = len(request.positions)
    if request.compare or (not count and request.memory is None):
        yield "without checkpoints", [], None
    if request.memory is not None:
        yield f"inside {bytes_text(request.memory)}", fine_bounds(request.steps), request.memory
    if count:
        yield f"{count} checkpoint{'s' * (count != 1)}", list(request.positions), None


def _print_all(variants: list[KerasVariant], request: KerasRequest) -> None:
    """Print the numbers of all variants; ratios are relative to the first, if it has no save points."""
    first = variants[0] if len(variants) > 1 and not variants[0].plan.recomputed else None
    for variant in variants:
        print(f"{variant.name}, {count_text(request.steps)} steps, Keras on {request.backend}")
        for label, value in _numbers(variant, first):
            show(f"{label + ':':<{_COLUMN}}{value}", indent=_COLUMN)
    if request.optimal:
        even, best = variants[-2:]
        more = best.forward_steps / even.forward_steps - 1
        less = even.peak / max(1, best.peak)
        memory = f"{number_text(less)} times less" if less >= 1 else f"none: {number_text(1 / less)} times the"
        gain = f"{memory} memory {'than' if less >= 1 else 'of'} even save points, for {more:+.1%} forward steps"
        show(f"{'gain:':<{_COLUMN}}{gain}", indent=_COLUMN)


def _numbers(variant: KerasVariant, first: KerasVariant | None) -> Iterator[tuple[str, str]]:
    """The numbers to print for one variant, compared with the first."""
    yield "loss", f"{variant.loss:.15f}"
    if variant.budget is not None:
        yield "budget", f"{bytes_text(variant.budget)}, which the planner was given"
    how = "measured" if variant.measured is not None else "estimated: TensorFlow has no meter on the CPU"
    yield "peak live memory", f"{bytes_text(variant.peak)}, {how}"
    if variant.bytes_over:
        planned = bytes_text(variant.planned)
        yield "over budget", f"by {bytes_text(variant.bytes_over, up=True)}: the plan and gradients take {planned}"
    assert variant.times is not None
    if first is not None and variant is not first:
        assert first.times is not None
        yield "ratio", f"{variant.peak / max(1, first.peak):.3f} of that without checkpoints"
        yield "gradients", agreement(variant.gradient, first.gradient)
        yield "time ratio", f"{variant.times.median / first.times.median:.2f} times that without checkpoints"
    elif variant.plan.recomputed:
        all_tapes = plan(variant.plan.problem, EVERYTHING).peak
        yield "ratio", f"{variant.plan.peak / max(1, all_tapes):.3f} of the {bytes_text(all_tapes)} without, predicted"
    else:
        yield "ratio", "1 (nothing is split)"
    yield "time", f"{variant.times} for a gradient"
    again = variant.forward_steps - sum(variant.model.section_lengths)
    yield "forward steps", f"{count_text(variant.forward_steps)}, {count_text(again)} of them recomputed"


def _report(variants: list[KerasVariant], request: KerasRequest) -> None:
    if request.report and variants:
        labels = [variant.name for variant in variants]
        title = f"An LSTM of Keras on {request.backend}"
        plans = [variant.plan for variant in variants]
        write_report(plans, request.report, title=title, labels=labels, limit=request.memory)
