"""The variants that `remat lstm --framework keras` runs: without save points, with even ones, inside a budget."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remat.cli.lstm.variants import too_little
from remat.cli.timing import Times
from remat.errors import InfeasibleError, StepError
from remat.execute.nested_ranges import Item, Range, nested_ranges
from remat.planners import Plan, plan
from remat.planners.chain.periodic_segments import PeriodicSegments
from remat.problem import Chain

if TYPE_CHECKING:
    from remat.cli.lstm.keras_model import KerasLstm

__all__ = ["BACKENDS", "KerasVariant", "fine_bounds", "least_budget", "model_class", "run_inside", "run_variant"]

BACKENDS = ("torch", "jax", "tensorflow")
FINE = 16  # sections that the planner may choose from, or twice those of even save points if that is more
UNDOES = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
EVERYTHING = 10**18


@dataclass(frozen=True)
class KerasVariant:
    """One variant: the model, the plan of its sections, and the results."""

    name: str
    model: "KerasLstm"
    budget: int | None
    plan: Plan
    loss: float
    gradient: dict[str, Any]
    measured: int | None  # the peak bytes, if the backend says
    times: Times | None = None

    @property
    def peak(self) -> int:
        """The peak bytes: measured, or those of the plan."""
        return self.plan.peak if self.measured is None else self.measured

    @property
    def planned(self) -> int:
        """The bytes that the plan and the gradients take."""
        return self.plan.peak + self.model.result_bytes

    @property
    def bytes_over(self) -> int:
        """The bytes that were measured above the budget."""
        return 0 if self.budget is None or self.measured is None else max(0, self.measured - self.budget)

    @property
    def forward_steps(self) -> int:
        """The forward steps of the LSTM in one gradient, including recomputed ones."""
        lengths = self.model.section_lengths
        if len(lengths) == 1:
            return lengths[0]
        runs = _runs_of_stages(nested_ranges(self.plan.schedule, len(lengths)), len(lengths))
        return sum(count * length for count, length in zip(runs, lengths, strict=True))


def model_class(backend: str) -> "type[KerasLstm]":
    """The class of the model; this imports Keras with the given backend, in double precision."""
    try:
        import_module(backend) if backend == "torch" else None
        if backend == "jax" and "jax" not in sys.modules:
            # XLA reads its flags only once, and by default undoes recomputation on the CPU.
            os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), UNDOES])
        os.environ["KERAS_BACKEND"] = backend
        keras = import_module("keras")
        if backend == "jax":
            import_module("jax").config.update("jax_enable_x64", True)
    except ImportError as error:
        raise StepError(
            f"--framework keras --backend {backend} needs Keras and its backend: pip install keras {backend} ({error})"
        ) from error
    if keras.backend.backend() != backend:
        raise StepError(
            f"Keras is already loaded, on {keras.backend.backend()}: run --backend {backend} in a new process"
        )
    keras.config.set_floatx("float64")
    found: type[KerasLstm] = import_module("remat.cli.lstm.keras_model").KerasLstm
    return found


def fine_bounds(steps: int, count: int = 0) -> list[int]:
    """The ends of the sections that the planner chooses from; there are more than with even save points."""
    sections = min(max(FINE, 2 * (count + 1)), steps)
    return [k * steps // sections for k in range(1, sections)]


def run_variant(name: str, model: "KerasLstm", budget: int | None) -> KerasVariant:
    """Run the model, and measure what it takes."""
    loss, gradient = model.gradient()
    if budget is not None and len(model.section_lengths) > 1:
        planned = model.model.remat_graph.plans[0]
    else:
        chain = model.chain()
        even = PeriodicSegments(chain.units) if len(model.section_lengths) > 1 else "auto"
        planned = plan(chain, EVERYTHING, planner=even)
    return KerasVariant(name, model, budget, planned, loss, gradient, model.peak())


def run_inside(name: str, new_model: "Callable[[int], KerasLstm]", budget: int) -> KerasVariant:
    """Run the model inside a budget, by tighter plans where the backend takes more than planned.

    XLA places buffers by itself: for 256 steps, a plan of 2.7 MiB took 9.6 on a CPU, and one of 1.3 MiB took 2.2.
    """
    model = new_model(budget)
    try:
        found = run_variant(name, model, budget)
    except InfeasibleError as error:
        raise too_little(budget, error.minimum, model.result_bytes, "gradients") from error
    tighter, planned = found, found.planned + 1
    while tighter.bytes_over and tighter.planned < planned:
        planned = tighter.planned
        try:
            tighter = run_variant(name, new_model(planned * budget // tighter.peak), budget)
        except InfeasibleError as error:
            least = error.minimum + model.result_bytes
            if least >= planned:
                break
            tighter = run_variant(name, new_model(least), budget)
        found = min(found, tighter, key=lambda variant: variant.peak)
    return found


def least_budget(chain: Chain, lengths: Sequence[int], most_steps: float) -> int:
    """The least bytes in which a plan runs at most `most_steps` forward steps, to within 2 %."""
    low, high = 0, plan(chain, EVERYTHING).peak
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        try:
            runs = _runs_of_stages(nested_ranges(plan(chain, middle).schedule, len(lengths)), len(lengths))
            fits = sum(count * length for count, length in zip(runs, lengths, strict=True)) <= most_steps
        except InfeasibleError:
            fits = False
        low, high = (low, middle) if fits else (middle, high)
    return high


def _runs_of_stages(items: Iterable[Item], stages: int) -> list[int]:
    """How often each stage runs: once, and once more for each range that it is in."""
    runs = [0] * stages
    for item in items:
        if isinstance(item, Range):
            inside = _runs_of_stages(item.items, stages)
            for stage in range(item.start, item.stop):
                runs[stage] += 1 + inside[stage]
        else:
            runs[item] += 1
    return runs
