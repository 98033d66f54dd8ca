"""The variants that `remat lstm` runs: without save points, with even ones, inside a budget."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remat.cli.progress_bars import Bars
from remat.cli.timing import Times, interleaved
from remat.errors import InfeasibleError, StepError
from remat.measuring import StepCost
from remat.planners import Plan, SavePoints, plan
from remat.planners.measured_budget import plan_within
from remat.problem import Loop, Memory
from remat.profiling import CallRecord, profile
from remat.schedule import Trace
from remat.units import bytes_text

if TYPE_CHECKING:
    from remat.cli.lstm.model import Lstm

__all__ = [
    "FRAMEWORKS",
    "Variant",
    "even_plan",
    "least_memory",
    "model_on",
    "run_variant",
    "step_cost_of",
    "too_little",
    "with_times",
]

FRAMEWORKS = {  # title, module, class
    "numpy": ("NumPy", "model", "Lstm"),
    "torch": ("PyTorch", "torch_model", "TorchLstm"),
    "jax": ("JAX", "jax_model", "JaxLstm"),
}


@dataclass(frozen=True)
class Variant:
    """One variant: its plan or its budget in bytes, the recorded call, and the results."""

    name: str
    budget: Plan | int
    call: CallRecord
    loss: float = 0.0
    gradient: Any = None
    allocated: int | None = None  # the peak bytes according to the framework's meter
    times: Times | None = None
    given: int | None = None  # the bytes in which the planner placed the save points of a plan

    @property
    def trace(self) -> Trace:
        """The recorded trace of the run."""
        trace = self.call.trace
        assert trace is not None
        return trace


def model_on(framework: str) -> "type[Lstm]":
    """The class of the model on that framework, which this imports."""
    title, module, model = FRAMEWORKS[framework]
    try:
        import_module(framework)
    except ImportError as error:
        raise StepError(f"--framework {framework} needs {title}: pip install {framework} ({error})") from error
    model_class: type[Lstm] = getattr(import_module(f"remat.cli.lstm.{module}"), model)
    return model_class


def even_plan(steps: int, positions: list[int]) -> Plan:
    """The plan with save points at these positions."""
    return plan(Loop(steps), Memory(slots=len(positions)), planner=SavePoints(tuple(positions)))


def run_variant(model: "Lstm", name: str, budget: Plan | int, interrupted: Callable[[Variant], None]) -> Variant:
    """Run the model with a plan or a budget; on Ctrl-C, pass the partial run to `interrupted` and re-raise."""
    with Bars() as bars, profile() as recorded:
        bars.say(name)
        try:
            loss, gradient = model.gradient(budget, bars)
        except KeyboardInterrupt:
            if recorded.calls and recorded.calls[0].trace is not None:
                interrupted(Variant(name, budget, recorded.calls[0]))
            raise
    variant = Variant(name, budget, recorded.calls[0], loss, gradient)
    if not model.metered:
        return variant
    with Bars() as bars, profile(memory=True) as metered:  # a separate run, since the meter slows down every op
        bars.say(f"{name}, memory")
        model.gradient(budget, bars)
    trace = metered.calls[0].trace
    return replace(variant, allocated=None if trace is None else trace.totals.allocated)


def with_times(model: "Lstm", variants: list[Variant], rounds: int) -> list[Variant]:
    """The variants with times, from gradients that are not profiled and run in turns."""
    with Bars() as bars:
        bars.say("timing, in turns", rounds * len(variants), part="this gradient")
        calls = [lambda budget=variant.budget: model.gradient(budget, bars) for variant in variants]
        times = interleaved(calls, rounds, bars.step)
    return [replace(variant, times=each) for variant, each in zip(variants, times, strict=True)]


def step_cost_of(model: "Lstm") -> StepCost:
    """The cost of a step of the model, as `remat.scan` measures it for a budget in bytes."""
    with profile() as recorded:
        model.gradient(2**40)
    cost = recorded.calls[0].step_cost
    assert cost is not None
    return cost


def least_memory(cost: StepCost, steps: int, most_forward_steps: int, enough: int) -> tuple[Plan, int]:
    """The plan that runs at most `most_forward_steps` in the least bytes, and these bytes, to within 2 %."""
    low, high = 0, enough
    best = plan_within(cost, steps, Memory(enough))
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        try:
            chosen = plan_within(cost, steps, Memory(middle))
        except InfeasibleError:
            low = middle
            continue
        if chosen.forward_steps <= most_forward_steps:
            best, high = chosen, middle
        else:
            low = middle
    return best, high


def too_little(memory: int, least: int, beside: int, what: str) -> InfeasibleError:
    """The error for a budget in which no plan fits; `beside` are the bytes of what is there in any plan."""
    return InfeasibleError(
        f"--memory {bytes_text(memory)} is too little: this LSTM takes {bytes_text(least + beside, up=True)} at least, "
        f"of which {bytes_text(beside)} are its {what}",
        least + beside,
        "bytes",
    )
