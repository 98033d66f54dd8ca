"""A second kind of problem with a planner of its own: all that is done with plans works for it, remat unchanged."""

from dataclasses import asdict, dataclass
from typing import ClassVar

import pytest

import remat
from remat import InfeasibleError, Memory, Plan, PlannerError, ProblemError, Schedule, plan, sweep
from remat.planners import PLANNERS, Claim, Planner, Prediction
from remat.planners.planner import infeasible
from remat.problem import PROBLEM_KINDS
from remat.problem.serialization import Serializable
from remat.schedule import simulate
from remat.testing import check_plan


@dataclass(frozen=True)
class Pipeline(Serializable):
    """Two unequal stages, an encoder and a decoder, with a small state between them."""

    tapes: tuple[int, int]
    states: tuple[int, int, int] = (8, 2, 8)
    restartable: bool = False

    kind: ClassVar[str] = "pipeline"
    unit: ClassVar[str] = "half"
    units: ClassVar[int] = 2
    timed: ClassVar[bool] = False
    title: ClassVar[str] = "an encoder and a decoder"

    def describe(self, *, times=False):
        return [("halves", f"tapes {self.tapes[0]} and {self.tapes[1]}")] + [("times", "all one")] * times

    def shrink_advice(self):
        return "make the code smaller"

    def unit_name(self, unit):
        return ("encoder", "decoder")[unit]

    def state_size(self, state):
        return self.states[state]

    def tape_size(self, start, stop):
        return sum(self.tapes[start:stop])

    def running_size(self, start, stop, *, record):
        return max(self.states[i] + self.states[i + 1] for i in range(start, stop))

    def pulling_size(self, start, stop):
        return self.running_size(start, stop, record=False)

    def advance_time(self, start, stop, option=0):
        return float(stop - start)

    record_time = pullback_time = advance_time

    def to_dict(self):
        return asdict(self)

    @classmethod
    def from_dict(cls, data):
        return cls(tuple(data["tapes"]), tuple(data["states"]), data["restartable"])


@dataclass(frozen=True)
class EncoderTwice(Planner[Pipeline]):
    """Records both halves at once where that fits, and otherwise runs the encoder a second time."""

    name: ClassVar[str] = "encoder-twice"
    summary: ClassVar[str] = "run the encoder once or twice"
    problem_type: ClassVar[type] = Pipeline

    def plan(self, problem, memory):
        once = "record 0 2; turn; pullback 2 0"
        twice = (
            "keep 0 {0}; advance 0 1; record 1 2; turn; pullback 2 1; fetch 0 {0}; drop 0 {0}; record 0 1; pullback 1 0"
        )
        least = None
        for text in (once, twice.format(memory.device.name)):
            schedule = Schedule.parse(text)
            cost = Prediction.of(simulate(schedule, problem, memory))
            if memory.device.capacity is None or cost.peak <= memory.device.capacity:
                return Plan(problem, memory, self.name, Claim(1.0), cost, schedule)
            least = cost.peak if least is None else min(least, cost.peak)
        raise infeasible(problem, memory.device, least, "one half at a time")


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(PROBLEM_KINDS, Pipeline.kind, Pipeline)
    monkeypatch.setitem(PLANNERS, EncoderTwice.name, EncoderTwice)


PIPELINE = Pipeline((100, 50))


@pytest.mark.parametrize("planner", ["auto", "encoder-twice", EncoderTwice()])
def test_it_is_planned_by_the_planner_of_its_type(planner):
    roomy, tight = plan(PIPELINE, 170, planner=planner), plan(PIPELINE, 120, planner=planner)
    assert (roomy.forward_steps, tight.forward_steps) == (2, 3)
    assert (roomy.planner, tight.recomputed) == ("encoder-twice", 1)
    assert check_plan(tight).peak == tight.peak
    assert tight.verify()


def test_a_plan_for_it_is_printed_in_its_own_words():
    assert str(plan(PIPELINE, 120)).splitlines()[:3] == [
        "plan     an encoder and a decoder in ram 120 B",
        "halves   tapes 100 and 50",
        "planner  encoder-twice",
    ]
    assert "3 half evaluations (1.50 a half)" in str(plan(PIPELINE, 120))
    assert "encoder" in str(plan(PIPELINE, 120).simulate())


def test_a_plan_for_it_comes_back_from_its_file(tmp_path):
    made = plan(PIPELINE, 120)
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    assert Plan.from_json(made.to_json()).problem == PIPELINE


def test_its_plans_are_swept_from_the_least_memory_to_the_most():
    curve = sweep(PIPELINE)
    assert [curve.points[0].forward_steps, curve.points[-1].forward_steps] == [3, 2]
    assert "a half" in str(curve)
    with pytest.raises(InfeasibleError, match="or make the code smaller"):
        sweep(PIPELINE, 10)


def test_a_report_shows_its_rows(tmp_path):
    text = plan(PIPELINE, 120).report(tmp_path / "plan.txt").read_text()
    assert "an encoder and a decoder" in text
    assert "tapes 100 and 50" in text
    assert "all one" in text
    assert plan(PIPELINE, 120).report(tmp_path / "plan.html").exists()


def test_planners_of_loops_do_not_take_it_nor_its_planner_loops():
    with pytest.raises(PlannerError, match="it plans loops, and this is a pipeline"):
        plan(PIPELINE, 120, planner="binomial")
    with pytest.raises(PlannerError, match="it plans pipelines, and this is a loop"):
        plan(remat.Loop(9), 120, planner="encoder-twice")
    with pytest.raises(PlannerError, match="it plans loops, and this is a chain"):
        plan(remat.Chain([remat.Stage()]), 120, planner="chunks")
    with pytest.raises(ProblemError, match="the plan is for a pipeline"):
        remat.scan(lambda carry, _: (carry, None), 1.0, length=2, plan=plan(PIPELINE, Memory(120)))
