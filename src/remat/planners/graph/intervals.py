"""Which forward operations to recompute, and when, by retention intervals in OR-Tools' CP-SAT.

The order is fixed: the forward runs once, then the backward; before each backward operation, some forward operations
may be recomputed, in forward order. Every copy of a storage is an interval from when it is made to its last use, each
use is served by one copy, and a cumulative constraint bounds the bytes of all copies at any time (MOCCASIN, Bartan et
al. 2023). Times are integers, called slots: forward operation i first runs at i, and the stage of each backward
operation has one slot for each forward operation and a last one for the backward operation itself. So only what is live
at the same time counts together, and the model has a handful of integers per operation.

The cumulative constraint alone gives a weak bound on the cost. So what is live at the turn is added as plain linear
constraints: the bytes kept there are within the budget, and what is not kept is recomputed, with its inputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from remat.planners.graph.exact_choice import cp_model
from remat.planners.graph.run_order import last_uses, live_bytes
from remat.problem import Graph

__all__ = ["IntervalModel", "Solution", "Times", "last_stages"]

MOST = 2**58  # the most units of memory × slots, summed over all copies: the solver counts in 64 bits
TICKS = 2**30  # the total time of all forward operations in ticks, if times are not integers


@dataclass(frozen=True)
class Times:
    """The slots of the timeline: the forward operations, then a stage for each backward operation."""

    turn: int
    units: int

    def first(self, operation: int) -> int:
        """The slot of an operation's first run."""
        return operation if operation < self.turn else self.again(operation, self.turn)

    def again(self, stage: Any, slot: int) -> Any:
        """The slot in which forward operation `slot` is recomputed in `stage`, a number or a solver variable."""
        return self.turn + (stage - self.turn) * (self.turn + 1) + slot

    @property
    def end(self) -> int:
        """The last slot."""
        return self.first(self.units - 1)


@dataclass(frozen=True)
class Solution:
    """What a solver found in its time: the runs in order, and what is proved about them."""

    runs: tuple[int, ...] | None  # None: nothing found
    proved: bool  # whether these runs are proved to be the best of the class, or that there are none
    bound: float  # a lower bound on the seconds of recomputation, for all solutions of the class


@dataclass
class _Copy:
    """One recomputation of an operation: whether it happens, in which stage, and until when each output is held."""

    happens: Any
    stage: Any
    time: Any
    until: dict[int, Any]
    length: dict[int, Any]


@dataclass
class IntervalModel:
    """The model of a graph, to be solved once: for the least seconds in a budget, or for the least memory.

    `copies` is how often an operation may be recomputed.
    """

    graph: Graph
    copies: int
    held: frozenset[int]  # storages that are held until nothing can need them any more
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        self.times = Times(graph.turn, graph.units)
        self.model = cp_model().CpModel()
        self.needed = last_stages(graph)
        self.until: dict[int, Any] = {}  # storage → last slot of its first copy, a number or a variable
        self.again: dict[int, list[_Copy]] = {}
        self.uses: list[tuple[int | _Copy, int, list[Any]]] = []  # (slot or copy that reads, storage, copy that serves)
        self.kept: list[tuple[int, Any]] = []  # (storage, whether it is live at the turn)
        self.intervals: list[Any] = []
        self.sizes: list[int] = []
        for operation in range(graph.units):
            self._first_run(operation)
        for operation in sorted(self.needed):
            self.again[operation] = self._copies(operation)
        for operation in range(graph.turn, graph.units):
            self._serve(self.times.first(operation), None, graph.operations[operation].reads)
        for operation, copies in self.again.items():
            for copy in copies:
                self._serve(copy.time, copy, graph.operations[operation].inputs)

    def fastest(
        self, budget: int, seconds: float, workers: int, hint: Sequence[int] | None = None, bound: float = 0.0
    ) -> Solution:
        """The runs of least time in the budget; `hint` are runs that fit, `bound` is a known lower bound in seconds."""
        ticks, scale = _ticks(self.graph, self.again)
        unit = self._unit(budget)
        self.model.add_cumulative(self.intervals, [-(-size // unit) for size in self.sizes], budget // unit)
        self._cut_at_turn(budget // unit, unit)
        cost = sum(ticks[i] * copy.happens for i, copies in self.again.items() for copy in copies)
        self.model.add(cost >= int(bound / scale * (1 - 1e-9)))
        self.model.minimize(cost)
        if hint is not None:
            self._hint(hint)
        status, solver = self._solve(seconds, workers)
        least = max(solver.best_objective_bound * scale, bound)
        known = cp_model()
        if status in (known.OPTIMAL, known.FEASIBLE):
            return Solution(self._runs(solver), status == known.OPTIMAL, least)
        return Solution(None, status == known.INFEASIBLE, least)

    def smallest(self, enough: int, seconds: float, workers: int, hint: Sequence[int]) -> Solution:
        """Runs that need at most `enough` bytes, or the least memory; `hint` are runs that need more."""
        most = max(live_bytes(self.graph, hint))
        unit = self._unit(most)
        capacity = self.model.new_int_var(min(enough, most) // unit, -(-most // unit), "memory")
        self.model.add_cumulative(self.intervals, [-(-size // unit) for size in self.sizes], capacity)
        self.model.minimize(capacity)
        self.model.add_hint(capacity, -(-most // unit))
        self._hint(hint)
        status, solver = self._solve(seconds, workers)
        known = cp_model()
        if status in (known.OPTIMAL, known.FEASIBLE):
            return Solution(self._runs(solver), status == known.OPTIMAL, 0.0)
        return Solution(None, status == known.INFEASIBLE, 0.0)

    def rounding(self, budget: int) -> int:
        """The unit of bytes to which sizes are rounded up in this budget; 0 if they are counted exactly."""
        unit = self._unit(budget)
        return 0 if unit == self._common else unit

    # What runs, and what is live.

    def _first_run(self, operation: int) -> None:
        graph, time = self.graph, self.times.first(operation)
        each = graph.operations[operation]
        self._fixed(time, time, each.workspace)
        for storage in each.outputs:
            size, users = graph.storages[storage].bytes, graph.users[storage]
            if operation >= graph.turn:
                last = self.times.end if storage in graph.results else self.times.first(max(users, default=operation))
                self.until[storage] = last
                self._fixed(time, last, size)
                continue
            least = max((user for user in users if user < graph.turn), default=operation)
            if storage in graph.outputs:
                least = max(least, graph.turn - 1)
            backward = [user for user in users if user >= graph.turn]
            most = max([least, *map(self.times.first, backward), *self._slots_of_users(storage)])
            if storage in self.held or operation not in self.needed:
                # There is only the first copy, which is held until the last operation that may need it.
                self.until[storage] = most
                self._fixed(time, most, size)
            elif most == least:
                self.until[storage] = least
                self._fixed(time, least, size)
            else:
                until = self.model.new_int_var(least, most, f"until{storage}")
                self.until[storage] = until
                self._interval(self.model.new_interval_var(time, until + 1 - time, until + 1, ""), size)

    def _slots_of_users(self, storage: int) -> Iterator[int]:
        """The last slots in which forward operations that read the storage may be recomputed."""
        for user in self.graph.users[storage]:
            if user in self.needed:
                yield self.times.again(self.needed[user], user)

    def _copies(self, operation: int) -> list[_Copy]:
        graph, model, last = self.graph, self.model, self.needed[operation]
        each, copies = graph.operations[operation], list[_Copy]()
        for _ in range(min(self.copies, last - graph.turn + 1)):
            happens = model.new_bool_var(f"again{operation}")
            stage = model.new_int_var(graph.turn, last, f"stage{operation}")
            if len(graph.pauses) < graph.units - graph.turn:
                pauses = cp_model().Domain.from_values(graph.pauses)
                model.add_linear_expression_in_domain(stage, pauses).only_enforce_if(happens)
            time = self.times.again(stage, operation)
            copy = _Copy(happens, stage, time, {}, {})
            for storage in each.outputs:
                self._copy_interval(copy, operation, storage)
            if each.workspace:
                slot = model.new_optional_fixed_size_interval_var(time, 1, happens, "")
                self._interval(slot, each.workspace)
            model.add(stage == graph.turn).only_enforce_if(happens.negated())
            if copies:  # a copy comes after the previous one, and happens only if that one does
                model.add_implication(happens, copies[-1].happens)
                model.add(stage > copies[-1].stage).only_enforce_if(happens)
            copies.append(copy)
        return copies

    def _copy_interval(self, copy: _Copy, operation: int, storage: int) -> None:
        """Add the interval of one output of a copy."""
        model, size = self.model, self.graph.storages[storage].bytes
        first, users = self.times.again(self.graph.turn, operation), self.graph.users[storage]
        slots = [self.times.first(user) for user in users if user >= self.graph.turn]
        last = max([*slots, *self._slots_of_users(storage), self.times.again(self.needed[operation], operation)])
        until = model.new_int_var(first, last, "")
        length = model.new_int_var(1, last - first + 1, "")
        self._interval(model.new_optional_interval_var(copy.time, length, until + 1, copy.happens, ""), size)
        model.add(until == first).only_enforce_if(copy.happens.negated())
        copy.until[storage], copy.length[storage] = until, length

    def _serve(self, time: Any, copy: _Copy | None, storages: Sequence[int]) -> None:
        """Require that each storage a run reads is live then: its first copy, or one recomputed before."""
        unless = [] if copy is None else [copy.happens.negated()]
        when = [] if copy is None else [copy.happens]
        for storage in storages:
            maker = self.graph.maker.get(storage)
            if maker is None or maker >= self.graph.turn:
                continue
            until = self.until[storage]
            if isinstance(until, int):
                continue  # held until the last operation that may need it
            first = self.model.new_bool_var("")
            self.model.add(until >= time).only_enforce_if([first, *when])
            served = [first]
            for other in self.again[maker]:
                by = self.model.new_bool_var("")
                self.model.add_implication(by, other.happens)
                self.model.add(other.time <= time).only_enforce_if([by, *when])
                self.model.add(other.until[storage] >= time).only_enforce_if([by, *when])
                served.append(by)
            self.model.add_bool_or([*served, *unless])
            self.uses.append((time if copy is None else copy, storage, served))

    def _cut_at_turn(self, capacity: int, unit: int) -> None:
        """Add what is live when the backward starts as linear constraints, which strengthen the bound."""
        graph, model, size = self.graph, self.model, []
        kept: dict[int, Any] = {}
        for storage, until in self.until.items():
            if graph.maker[storage] >= graph.turn:
                continue
            demand = -(-graph.storages[storage].bytes // unit)
            if isinstance(until, int):
                size.append(demand * (until >= graph.turn))
                continue
            kept[storage] = keep = model.new_bool_var("")
            self.kept.append((storage, keep))
            model.add(until >= graph.turn).only_enforce_if(keep)
            model.add(until < graph.turn).only_enforce_if(keep.negated())
            size.append(demand * keep)
        model.add(sum(size) <= capacity)
        for storage, keep in kept.items():
            maker = self.again[graph.maker[storage]][0].happens
            for user in graph.users[storage]:
                if user >= graph.turn:
                    model.add_bool_or([keep, maker])
                elif user in self.again:
                    model.add_bool_or([keep, maker, self.again[user][0].happens.negated()])

    # Numbers in, runs out.

    @property
    def _common(self) -> int:
        return gcd(*self.sizes) or 1

    def _unit(self, budget: int) -> int:
        """Bytes per unit of memory: the greatest common divisor of all sizes, or a multiple if that is too fine."""
        common, finest = self._common, max(1, MOST // ((self.times.end + 1) * max(1, len(self.sizes))))
        return common * max(1, -(-budget // (common * finest)))

    def _fixed(self, first: int, last: int, size: int) -> None:
        if size:
            self._interval(self.model.new_fixed_size_interval_var(first, last - first + 1, ""), size)

    def _interval(self, interval: Any, size: int) -> None:
        if size:
            self.intervals.append(interval)
            self.sizes.append(size)

    def _hint(self, runs: Sequence[int]) -> None:
        """Give the solver known runs as a hint, with a value for every variable."""
        hint, graph, turn = self.model.add_hint, self.graph, self.graph.turn
        slots = _slots(graph, self.times, runs)
        made: dict[tuple[int, int], int] = {}  # storage and slot in which a copy is made → slot of its last use
        for (storage, place), last in last_uses(graph, runs).items():
            made[storage, slots[place]] = slots[last] if last < len(runs) else self.times.end
        ran = {i: [slot for slot, each in zip(slots, runs, strict=True) if each == i][1:] for i in self.again}
        when: dict[int, int] = {}  # a copy, by its identity → its slot
        for operation, copies in self.again.items():
            for number, copy in enumerate(copies):
                happens = number < len(ran[operation])
                slot = ran[operation][number] if happens else self.times.again(turn, operation)
                hint(copy.happens, happens)
                hint(copy.stage, (slot - turn) // (turn + 1) + turn)
                when[id(copy)] = slot if happens else -1
                for storage, until in copy.until.items():
                    last = made[storage, slot] if happens else slot
                    hint(until, last)
                    hint(copy.length[storage], last - slot + 1)
        for storage, until in self.until.items():
            if not isinstance(until, int):
                hint(until, made[storage, graph.maker[storage]])
        for storage, keep in self.kept:
            hint(keep, made[storage, graph.maker[storage]] >= turn)
        for user, storage, served in self.uses:
            time = user if isinstance(user, int) else when[id(user)]
            before = sum(slot <= time for slot in ran[graph.maker[storage]])
            for number, by in enumerate(served):
                hint(by, number == before and time >= 0)

    def _solve(self, seconds: float, workers: int) -> tuple[Any, Any]:
        solver = cp_model().CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        return solver.solve(self.model), solver

    def _runs(self, solver: Any) -> tuple[int, ...]:
        """The runs of the solution that was found, in order."""
        placed: dict[int, list[int]] = {}
        for operation, copies in self.again.items():
            for copy in copies:
                if solver.boolean_value(copy.happens):
                    placed.setdefault(solver.value(copy.stage), []).append(operation)
        runs = list(range(self.graph.turn))
        for stage in range(self.graph.turn, self.graph.units):
            runs += [*sorted(placed.get(stage, [])), stage]
        return tuple(runs)


def _slots(graph: Graph, times: Times, runs: Sequence[int]) -> list[int]:
    """The slot of each run."""
    slots, stage = list(range(graph.turn)), graph.units
    for operation in reversed(runs[graph.turn :]):
        stage = operation if operation >= graph.turn else stage
        slots.append(times.again(stage, min(operation, graph.turn)))
    return [*slots[: graph.turn], *reversed(slots[graph.turn :])]


def last_stages(graph: Graph) -> dict[int, int]:
    """For each forward operation that may be worth recomputing, the last pause before something can need it."""
    last: dict[int, int] = {}
    for operation in range(graph.turn - 1, -1, -1):
        if operation not in graph.run_again:
            continue
        users = [user for storage in graph.operations[operation].outputs for user in graph.users[storage]]
        stages = [graph.pause_before(user) if user >= graph.turn else last.get(user, -1) for user in users]
        if (stage := max(stages, default=-1)) >= 0:
            last[operation] = stage
    return last


def _ticks(graph: Graph, operations: Mapping[int, object]) -> tuple[dict[int, int], float]:
    """The time of each operation in whole ticks, and the seconds per tick."""
    seconds = {i: graph.operations[i].seconds for i in operations}
    if all(value == int(value) < 2**24 for value in seconds.values()):
        return {i: int(value) for i, value in seconds.items()}, 1.0
    scale = sum(seconds.values()) / TICKS
    return {i: round(value / scale) for i, value in seconds.items()}, scale
