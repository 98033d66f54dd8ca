"""A model's forward whose backward follows the plan of a graph: what is made again, when, and until when it is held.

In: the plan of a step's joint graph (step_trace.py). While the model runs, lineage remembers how the results were made
that the plan has made again (lineage.py). In the backward each node asks for its saved tensors, which have numbers: so
it is known where in the plan the backward is, and what stands there is done first: operators run again, and results are
let go, which later ones may make once more.

Rule. The plan decides when, never what: a tensor is asked of the result that it was. If a forward or a backward takes
another way than the one that was traced, numbers of saved tensors are others: then results are made when they are asked
for, or earlier, and held longer. That takes more memory, and gives the same gradient.

Rule. A result whose first copy the plan has until some time in the backward is held as that until then, and made again
for later uses, as in a second backward.

What it can miss: as lineage.py.

The cost: that of lineage, for each saved tensor some microseconds more.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from remat.frameworks.compilers import not_compiled
from remat.frameworks.torch.dispatch import without_autocast
from remat.frameworks.torch.functorch import outside_transforms
from remat.frameworks.torch.graph import call_after_backward, current_backward
from remat.frameworks.torch.lineage import Dropped, Lineage, dropped_results, unpack
from remat.frameworks.torch.lineage_results import Kept, Result, View
from remat.ops import Free, Run
from remat.planners import Plan
from remat.problem import Graph
from remat.schedule import Schedule

__all__ = ["StepScript", "run_by_script", "script_of"]


class Moment(NamedTuple):
    """What a backward does before one of its operations, and what it lets go once that has its saved tensors."""

    before: tuple[tuple[bool, str], ...]  # results by name: made again, or let go
    after: frozenset[str]


class StepScript(NamedTuple):
    """A plan of a step as what happens to results of operators, by their names."""

    dropped: Dropped
    held: frozenset[str]  # results whose first copy is there when the backward begins
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
    # A moment for each operation that asks for something; what the others do is part of the next one's.
    moments, moment_of = list[Moment](), dict[int, int]()
    before, after, is_after = list[tuple[bool, str]](), set[str](), False
    for op in ops[turn:]:
        if isinstance(op, Free) and op.storage in names:
            if is_after:
                after.add(names[op.storage])
            else:
                before.append((False, names[op.storage]))
        elif isinstance(op, Run) and op.operation < graph.turn:
            is_after = False
            before += [(True, names[storage]) for storage in graph.operations[op.operation].outputs]
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
    """What a function returns; its backward follows the script."""
    with _PlannedLineage(script).recording():
        return fn()


class _PlannedLineage(Lineage):  # type: ignore[no-untyped-call]
    """Remembers how results were made, and by which names the script knows them."""

    def __init__(self, script: StepScript) -> None:
        super().__init__(script.dropped)
        self._script, self._replay = script, _Replay(script)
        self._made: dict[str, Result] = {}
        self._packs = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """A forward that is recorded; afterwards only its graph refers to what is kept."""
        try:
            with saved_tensors_hooks(self.pack, _unpack), self:
                yield
        finally:
            self._replay.begin(self._made)
            self._made.clear()
            self.forget()

    def note(self, result: Result, tensor: Tensor, name: str) -> None:
        """Know a result by its name; the tensor is what it is now."""
        self._made[name] = result
        result.hold_first(tensor.detach() if name in self._script.held else None)

    @not_compiled
    def pack(self, tensor: Tensor) -> Any:
        """What the graph saves for a tensor, and when it is going to be asked for."""
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
    """What is saved for a tensor, with its place in the script."""

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
    """Where the backwards of one forward are in the script."""

    def __init__(self, script: StepScript) -> None:
        self._script = script
        self._results: dict[str, ReferenceType[Result]] = {}  # held by who may ask for them
        self._expected: dict[tuple[int, str], int] = {}  # how often a result is asked for at a moment
        self._left: dict[tuple[int, str], int] = {}
        self._task, self._at = -1, -1

    def expect(self, moment: int, name: str) -> None:
        """Count one time that a result is asked for."""
        self._expected[moment, name] = self._expected.get((moment, name), 0) + 1

    def begin(self, results: Mapping[str, Result]) -> None:
        """The forward is over, and has made these results; from now on the script says how long they are held."""
        for name, result in results.items():
            result.retain()
            self._results[name] = ref(result)

    def reach(self, moment: int, task: int) -> None:
        """Do what stands before a moment; of moments that are left out, let go what they would have."""
        if task != self._task:
            self._task, self._at, self._left = task, -1, dict(self._expected)
            call_after_backward(partial(_end, ref(self), task))
        if moment <= self._at:
            return
        moments, first = self._script.moments, max(self._at, 0)
        self._at = moment
        for left_out in moments[first:moment]:
            self._let_go(left_out.after)
        self._let_go(name for each in moments[first + 1 : moment] for is_made, name in each.before if not is_made)
        for is_made, name in moments[moment].before:
            result = self._result(name)
            if result is not None and is_made:
                result.take(task)
            elif result is not None:
                result.drop()

    def taken(self, moment: int, name: str) -> None:
        """Let go of a result that was asked for as often as it is at a moment, if that is its last use."""
        if not name:
            return
        left = self._left.get((moment, name), 0) - 1
        self._left[moment, name] = left
        if left <= 0 and name in self._script.moments[moment].after:
            self._let_go([name])

    def end(self, task: int) -> None:
        """A backward is over."""
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
