"""Plans for chains with a budget: the first call measures and plans, later calls find the plan in a cache.

The rule: the costs of a chain are the same if its stages are the same objects, its inputs have equal specs, and the
framework's `chain_key` (training flags, shapes of parameters, autocast) is the same. What it can miss: a function whose
cost depends on something else that has changed, such as a size in a global. The plan of its first call is then reused:
gradients are still right, but the peak may be higher. Functions created in each call, such as lambdas in a training
loop, are measured each time.

The cache refers to stages weakly, and drops an entry as soon as one of its stages dies. The cost: 1 us per stage, plus
`chain_key`.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any
from weakref import ref

from remat.errors import InfeasibleError
from remat.execute.nested_ranges import nested_ranges
from remat.execute.retained_peak import retained_peak
from remat.planners import Plan, plan
from remat.planners.chain.periodic_segments import PeriodicSegments
from remat.planners.planner import infeasible
from remat.problem import Chain, Memory

__all__ = ["chain_plan", "plan_with_retention"]

MOST_CHAINS = 32  # the least recently used chain is dropped first
MOST_PLANS = 16  # per chain


@dataclass
class _Measured:
    chain: Chain
    stages: list[ref[Any]]
    plans: OrderedDict[int, Plan] = field(default_factory=OrderedDict)


_measured: OrderedDict[tuple[Hashable, ...], _Measured] = OrderedDict()


def chain_plan(
    stages: Sequence[Callable[[Any], Any]],
    key: Hashable,
    memory: int,
    measure: Callable[[], Chain],
    make: Callable[[Chain, int], Plan] = plan,
) -> Plan:
    """The plan for these stages in `memory` bytes; `key` is what else their costs depend on."""
    objects = [each for stage in stages for each in _objects(stage)]
    ids = (key, *map(id, objects))
    entry = _measured.get(ids)
    if entry is None or any(stage() is not each for stage, each in zip(entry.stages, objects, strict=True)):
        entry = _Measured(measure(), [])
        try:
            entry.stages.extend(ref(each, lambda _: _measured.pop(ids, None)) for each in objects)
        except TypeError:  # one of them allows no weak references
            return make(entry.chain, memory)
        _measured[ids] = entry
    _measured.move_to_end(ids)
    _trim(_measured, MOST_CHAINS)
    if memory not in entry.plans:
        entry.plans[memory] = make(entry.chain, memory)
    entry.plans.move_to_end(memory)
    _trim(entry.plans, MOST_PLANS)
    return entry.plans[memory]


def plan_with_retention(chain: Chain, memory: int) -> Plan:
    """The fastest plan that fits if inputs of segments are freed only at the end (retained_peak.py).

    Planners assume that they are freed one by one. So the candidates are plans for this budget and smaller ones, and
    plans with equal segments; the fastest one whose actual peak fits is returned.
    """
    plans = [*_plans_up_to(chain, memory), *_equal_segments(chain)]
    peaks = [retained_peak(chain, nested_ranges(each.schedule, chain.units)) for each in plans]
    fitting = [each for each, peak in zip(plans, peaks, strict=True) if peak <= memory]
    if not fitting:
        why = "since this framework frees no graph before its backward has ended"
        raise infeasible(chain, Memory(memory).device, min(peaks), why)
    return min(fitting, key=lambda each: each.seconds)


def _plans_up_to(chain: Chain, memory: int) -> Iterator[Plan]:
    budget = memory
    try:
        while True:
            yield (found := plan(chain, budget))
            budget = min(found.peak - 1, int(0.93 * budget))
    except InfeasibleError:
        return


def _equal_segments(chain: Chain) -> Iterator[Plan]:
    counts = sorted({max(1, round(chain.units * 0.8**i)) for i in range(30)}) if chain.units else []
    return (plan(chain, 10**18, planner=PeriodicSegments(k)) for k in counts)


def _objects(stage: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The objects that identify a stage: two for a bound method, which is a new object at each access."""
    return (stage.__self__, stage.__func__) if isinstance(stage, MethodType) else (stage,)


def _trim(entries: "OrderedDict[Any, Any]", most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
