"""A model's forward whose backward follows the plan of a graph: what is recomputed, when, and how long it is held.

In: the plan of a step's joint graph (step_trace.py). While the model runs, lineage (lineage.py) records how the results
were made that the plan recomputes. In the backward each node unpacks its saved tensors, which are numbered: the numbers
show where in the plan the backward is, and what the plan has at that point is done first: operators are rerun, and
results are dropped, possibly to be recomputed again later.

Rule 1. The plan decides when, never what: a saved tensor is always taken from its own result. If a forward or backward
takes another path than the traced one, the numbers of saved tensors differ: then results are recomputed when they are
needed, or earlier, and held longer. That takes more memory, and gives the same gradient.

Rule 2. A result whose first copy the plan keeps until some time in the backward is held until then, and recomputed for
later uses, as in a second backward.

Rule 3. A result that is recomputed for the last time is held by its remaining users, and its inputs are freed. If a
backward retains its graph, the next one must recompute it, so its inputs stay.

What it can miss: what lineage.py can miss.

The cost: that of lineage, and some microseconds more for each saved tensor.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from remat.frameworks.compilers import not_compiled
from remat.frameworks.torch.internals.dispatch import keeps_graph, without_autocast
from remat.frameworks.torch.internals.functorch import outside_transforms
from remat.frameworks.torch.internals.graph import call_after_backward, current_backward
from remat.frameworks.torch.lineage.lineage import Dropped, Lineage, dropped_results, unpack
from remat.frameworks.torch.lineage.lineage_results import Kept, Result, View
from remat.ops import Free, Run
from remat.planners import Plan
from remat.problem import Graph
from remat.schedule import Schedule

__all__ = ["StepScript", "run_by_script", "script_of"]


class Step(Enum):
    """An action on a result."""

    MAKE = "made again"
    MAKE_LAST = "made again for the last time: nobody needs what it is made from"
    LET_GO = "let go"


class Moment(NamedTuple):
    """The actions before an operation of a backward, and the results to drop once it has its saved tensors."""

    before: tuple[tuple["Step", str], ...]  # results by name
    after: frozenset[str]


class StepScript(NamedTuple):
    """A plan of a step as actions on results of operators, by their names."""

    dropped: Dropped
    held: frozenset[str]  # results whose first copy is live when the backward begins
    moments: tuple[Moment, ...]
    moment_of: Mapping[int, int]  # for saved tensors, by number


def script_of(plan: Plan) -> StepScript:
    """The script of a plan for the graph of a step."""
    assert isinstance(plan.problem, Graph)
    return _script(plan.problem, plan.schedule)


@lru_cache(maxsize=64)
def _script(graph: Graph, schedule: Schedule) -> StepScript:
    ops = list(schedule)
    turn = next(at for at, op in enumerate(ops) if isinstance(op, Run) and op.operation == graph.turn)
    again = {op.operation for op in ops[turn:] if isinstance(op, Run) and op.operation < graph.turn}
    storages = {storage for operation in again for storage in graph.operations[operation].outputs}
    names = {storage: graph.storages[storage].name for storage in storages}
    freed = {op.storage for op in ops[:turn] if isinstance(op, Free)}
    # One moment per operation that unpacks something; the actions of other operations go to the next one's.
    moments, moment_of = list[Moment](), dict[int, int]()
    before, after, is_after = list[tuple[Step, str]](), set[str](), False
    last = {op.operation: at for at, op in enumerate(ops) if isinstance(op, Run)}
    for at, op in enumerate(ops[turn:], turn):
        if isinstance(op, Free) and op.storage in names:
            if is_after:
                after.add(names[op.storage])
            else:
                before.append((Step.LET_GO, names[op.storage]))
        elif isinstance(op, Run) and op.operation < graph.turn:
            is_after = False
            step = Step.MAKE_LAST if last[op.operation] == at else Step.MAKE
            before += [(step, names[storage]) for storage in graph.operations[op.operation].outputs]
        elif isinstance(op, Run) and graph.operations[op.operation].unpacks:
            if moments:
                moments[-1] = moments[-1]._replace(after=frozenset(after))
            moment_of.update(dict.fromkeys(graph.operations[op.operation].unpacks, len(moments)))
            moments.append(Moment(tuple(before), frozenset()))
            before, after, is_after = [], set(), True
    if moments:
        moments[-1] = moments[-1]._replace(after=frozenset(after))
    held = frozenset(name for storage, name in names.items() if storage not in freed)
    return StepScript(dropped_results(tuple(names.values())), held, tuple(moments), moment_of)


def run_by_script(fn: Callable[[], Any], script: StepScript) -> Any:
    """Call a function such that its backward follows the script."""
    with _PlannedLineage(script).recording():
        return fn()


class _PlannedLineage(Lineage):  # type: ignore[no-untyped-call]
    """Records how results were made, and by which names the script knows them."""

    def __init__(self, script: StepScript) -> None:
        super().__init__(script.dropped)
        self._script, self._replay = script, _Replay(script)
        self._made: dict[str, Result] = {}
        self._packs = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which a forward is recorded; afterwards only its graph refers to what is kept."""
        try:
            with saved_tensors_hooks(self.pack, _unpack), self:
                yield
        finally:
            self._replay.begin(self._made)
            self._made.clear()
            self.forget()

    def note(self, result: Result, tensor: Tensor, name: str) -> None:
        """Register a result by its name, and hold its first tensor if the script says so."""
        self._made[name] = result
        result.hold_first(tensor.detach() if name in self._script.held else None)

    @not_compiled
    def pack(self, tensor: Tensor) -> Any:
        """The object that the graph saves in place of a tensor, with the moment at which it will be unpacked."""
        saved, number = super().pack(tensor), self._packs
        self._packs += 1
        moment = self._script.moment_of.get(number)
        if moment is None:
            return saved
        name = saved.name if isinstance(saved, View) else ""
        if name:
            self._replay.expect(moment, name)
        return _Saved(saved, self._replay, moment, name)


class _Saved(NamedTuple):
    """A saved object, with its moment in the script."""

    saved: Kept | View
    replay: "_Replay"
    moment: int
    name: str


@not_compiled
def _unpack(saved: Any) -> Tensor:
    if not isinstance(saved, _Saved):
        return unpack(saved)
    task = current_backward()
    with outside_transforms(), torch.no_grad(), without_autocast():
        if task == -1:
            return saved.saved.take(task)
        saved.replay.reach(saved.moment, task)
        tensor = saved.saved.take(task)
        saved.replay.taken(saved.moment, saved.name)
    return tensor


class _Replay:
    """The position of a forward's backwards in the script."""

    def __init__(self, script: StepScript) -> None:
        self._script = script
        self._results: dict[str, ReferenceType[Result]] = {}  # weak: their users hold them
        self._expected: dict[tuple[int, str], int] = {}  # how often a result is unpacked at a moment
        self._left: dict[tuple[int, str], int] = {}
        self._task, self._at = -1, -1

    def expect(self, moment: int, name: str) -> None:
        """Count one more unpacking of a result at a moment."""
        self._expected[moment, name] = self._expected.get((moment, name), 0) + 1

    def begin(self, results: Mapping[str, Result]) -> None:
        """Called after the forward, with its results; from now on the script decides how long they are held."""
        for name, result in results.items():
            result.retain()
            self._results[name] = ref(result)

    def reach(self, moment: int, task: int) -> None:
        """Do the actions before a moment; of skipped moments, only drop the results that they would drop."""
        if task != self._task:
            self._task, self._at, self._left = task, -1, dict(self._expected)
            call_after_backward(partial(_end, ref(self), task))
        if moment <= self._at:
            return
        moments, first = self._script.moments, max(self._at, 0)
        self._at = moment
        for left_out in moments[first:moment]:
            self._let_go(left_out.after)
        self._let_go(name for each in moments[first + 1 : moment] for step, name in each.before if step is Step.LET_GO)
        is_last = not keeps_graph()
        for step, name in moments[moment].before:
            result = self._result(name)
            if result is not None and step is Step.LET_GO:
                result.drop()
            elif result is not None:
                value = result.take(task)
                if step is Step.MAKE_LAST and is_last:
                    result.keep(value)

    def taken(self, moment: int, name: str) -> None:
        """Count an unpacking; after the last one at this moment, drop the result if the script says so."""
        if not name:
            return
        left = self._left.get((moment, name), 0) - 1
        self._left[moment, name] = left
        if left <= 0 and name in self._script.moments[moment].after:
            self._let_go([name])

    def end(self, task: int) -> None:
        """Called when a backward has ended."""
        if task == self._task:
            self._task = -1

    def _let_go(self, names: Any) -> None:
        for name in names:
            result = self._result(name)
            if result is not None:
                result.drop()

    def _result(self, name: str) -> Result | None:
        reference = self._results.get(name)
        return None if reference is None else reference()


def _end(reference: ReferenceType[_Replay], task: int) -> None:
    replay = reference()
    if replay is not None:
        replay.end(task)
