"""A model as a chain of stages, for a budget: the state between two stages is all values that are still needed.

The rule: with save points, a stage is what lies between two levels of them. Without, a stage ends after each node
behind which only one value is still needed, and after every LONG nodes if there is no such place. States are lists of
values with their masks; new values of variables and losses travel with them. The model's inputs are live anyway: stages
after the first take them besides the state, so that they count in no state and get no gradient. The plan (`remat.plan`)
says which stages keep their tape, and which ranges are recomputed, some several times, as segments inside segments.

PyTorch measures a stage that returns a view of its input, such as Flatten, together with the one before; plans are for
these measured stages.

What it can miss: a value that crosses several stages counts in the state of each, so a plan overestimates. The cost:
stages are measured in the first training call with inputs of new shapes; smaller batches share a plan.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import keras

from remat.execute.nested_ranges import Item, Range, nested_ranges
from remat.frameworks.framework_registry import load_framework
from remat.layers.keras import tensorflow_costs
from remat.layers.keras.keras_internals import (
    GraphNode,
    Values,
    current_scope,
    errors_as_they_are,
    mask_of,
    seed_variables,
    set_mask,
    training_call,
)
from remat.layers.keras.model_segments import Segment, is_save_point, merged, segments_of, split_at_save_points
from remat.layers.keras.pure_segment import (
    Call,
    Surroundings,
    checkpoint,
    distinct,
    given_value,
    loss_owner,
    run_with_all_variables,
    segment_function,
)
from remat.planners import Plan, plan
from remat.problem import Chain, Stage

__all__ = ["BudgetedGraph", "chain_segments", "measured_segments"]

LONG = 4  # a stage has at most this many nodes where more than one value always crosses
State = tuple[list[Any], list[Any], dict[tuple[int, int], Any], list[tuple[int, int, Any]]]
# For one stage: the values of its variables, and of the model's inputs that are not in its state, with their masks.
Given = tuple[list[Any], list[Any], list[Any]]
StageFunction = Callable[["Contexts", State, list[Given]], State]
NOTHING: Given = ([], [], [])
R = TypeVar("R")


def chain_segments(nodes: Sequence[GraphNode], inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Segment]:
    """The stages of a graph."""
    if any(map(is_save_point, nodes)):
        levels: dict[int, list[GraphNode]] = {}
        for segment in split_at_save_points(nodes, inputs, outputs):
            levels.setdefault(segment.level, []).extend(segment.nodes)
        order = {id(node): place for place, node in enumerate(nodes)}
        groups = [sorted(level, key=lambda node: order[id(node)]) for level in levels.values()]
    else:
        groups = _cut_where_little_crosses(nodes, outputs)
    return segments_of(list(enumerate(groups)), outputs, len(groups) - 1)


def _cut_where_little_crosses(nodes: Sequence[GraphNode], outputs: Sequence[Any]) -> list[list[GraphNode]]:
    """Groups of nodes, cut where a single value crosses, or after LONG nodes."""
    last_use = {id(x): len(nodes) for x in outputs}
    for place, node in reversed([*enumerate(nodes)]):
        for x in node.inputs:
            last_use.setdefault(id(x), place)
    crossing: set[int] = set()
    groups: list[list[GraphNode]] = [[]]
    for place, node in enumerate(nodes):
        groups[-1].append(node)
        made = {id(x) for x in node.outputs}
        crossing = {key for key in crossing | made if last_use.get(key, -1) > place}
        if place < len(nodes) - 1 and (len(crossing) == 1 or len(groups[-1]) >= LONG):
            groups.append([])
    return groups


def measured_segments(segments: Sequence[Segment], chain: Chain) -> list[Segment]:
    """The segments of a measured chain's stages, of which some stand for several segments."""
    rest = iter(segments)
    return [merged([next(rest) for _ in range(stage.functions)]) for stage in chain.stages]


class Contexts:
    """The surroundings of each stage; opaque to remat."""

    def __init__(self, call: Call, segments: Sequence[Segment], others: Sequence[Any]) -> None:
        seeds = seed_variables()
        self.of_stage = [Surroundings(call, distinct([*each.variables(), *others, *seeds])) for each in segments]


class BudgetedGraph:
    """Runs a functional model as a chain of stages within a budget."""

    def __init__(self, nodes: Sequence[GraphNode], inputs: Sequence[Any], outputs: Sequence[Any], memory: int | str):
        self.memory = memory
        self.segments = chain_segments(nodes, inputs, outputs)
        self._inputs, self._outputs = list(inputs), list(outputs)
        states = _states(self.segments, self._inputs, self._outputs)
        around = zip(self.segments, states, states[1:], strict=False)
        self._stages = [_stage(k, *each, self._inputs_beside(k)) for k, each in enumerate(around)]
        self._runs: dict[Hashable, tuple[Plan, StageFunction]] = {}
        self._written: set[int] = set()
        self._others: list[Any] = []  # variables that stages assign, and that Keras does not count among their layers'

    @property
    def plans(self) -> list[Plan]:
        """The plans made so far, the latest first."""
        return [found for found, _ in reversed(self._runs.values())]

    def run(self, inputs: Sequence[Any], call: Call) -> Values:
        """The outputs of the model, by the ids of the symbolic ones."""
        scope = current_scope()
        while True:
            value_of = partial(given_value, scope=scope, written=self._written)
            contexts, given, run = self._with_all_variables(inputs, call, value_of, self._run)
            state: State = list(inputs), [mask_of(x) for x in inputs], {}, []
            values, masks, assigned, losses = run(contexts, state, given)
            written = {id(contexts.of_stage[stage].variables[place]) for stage, place in assigned}
            if keras.backend.backend() == "jax" or scope is not None or written <= self._written:
                break
            self._written |= written
        for (stage, place), value in assigned.items():
            contexts.of_stage[stage].variables[place].assign(value)
        for stage, place, loss in losses:
            loss_owner(self.segments[stage].nodes[place].operation).add_loss(loss)
        for value, mask in zip(values, masks, strict=True):
            set_mask(value, mask)
        return dict(zip(map(id, self._outputs), values, strict=True))

    def measured(self, inputs: Sequence[Any], value_of: Callable[[Any], Any]) -> Chain:
        """The stages as they cost in training on inputs like these; variables have the values that are told."""
        return self._with_all_variables(inputs, training_call, value_of, self._chain)[2]

    def _with_all_variables(
        self,
        inputs: Sequence[Any],
        call: Call,
        value_of: Callable[[Any], Any],
        result_of: Callable[[Sequence[Any], Contexts, list[Given]], R],
    ) -> tuple[Contexts, list[Given], R]:
        """Surroundings, what stages take beside states, and what is made of these; again where variables are found."""

        def run() -> tuple[Contexts, list[Given], R]:
            contexts = Contexts(call, self.segments, self._others)
            given = self._given(inputs, contexts, value_of)
            return contexts, given, result_of(inputs, contexts, given)

        return run_with_all_variables(self._others, run)

    def _given(self, inputs: Sequence[Any], contexts: Contexts, value_of: Callable[[Any], Any]) -> list[Given]:
        """What the stages take beside their states."""
        values = dict(zip(map(id, self._inputs), inputs, strict=True))
        found: list[Given] = []
        for number, each in enumerate(contexts.of_stage):
            beside = [values[key] for key in self._inputs_beside(number)]
            found.append(([value_of(v) for v in each.variables], beside, [mask_of(x) for x in beside]))
        return found

    def _inputs_beside(self, number: int) -> list[int]:
        """The ids of the model's inputs that a stage takes besides its state; the first stage has them in its state."""
        if number == 0:
            return []
        segment = self.segments[number]
        read = {id(x) for x in segment.inputs} | ({id(x) for x in self._outputs} if segment.is_last else set())
        return [id(x) for x in self._inputs if id(x) in read]

    def _chain(self, inputs: Sequence[Any], contexts: Contexts, given: list[Given]) -> Chain:
        """The stages as they cost on inputs like these."""
        state: State = list(inputs), [mask_of(x) for x in inputs], {}, []
        functions = [_bound(stage, contexts, given) for stage in self._stages]
        backend = keras.backend.backend()
        if backend == "tensorflow":
            symbolic = {id(x): x for x in self._inputs}
            beside = [[symbolic[key] for key in self._inputs_beside(k)] for k in range(len(self.segments))]
            measured = tensorflow_costs.measure_chain(self._stages, contexts, state, given, self._inputs, beside)
        else:
            measured = load_framework(backend).measure_chain(functions, state)
        names = [f"{number} {each.name}" for number, each in enumerate(measured_segments(self.segments, measured))]
        stages = [Stage.from_dict({**s.to_dict(), "name": n}) for s, n in zip(measured.stages, names, strict=True)]
        return Chain(stages, measured.input)

    def _run(self, inputs: Sequence[Any], contexts: Contexts, given: list[Given]) -> StageFunction:
        """The stages, run by a plan that was made for inputs of these shapes or larger ones."""
        shapes = tuple((str(x.dtype), tuple(x.shape)) for x in inputs)
        for known, (_, run) in self._runs.items():
            if _no_larger(shapes, known):
                return run
        with errors_as_they_are():
            chain = self._chain(inputs, contexts, given)
            found = plan(chain, self.memory)
        starts = [0, *accumulate(stage.functions for stage in chain.stages)]
        items = _of_functions(nested_ranges(found.schedule, len(chain.stages)), starts)
        self._runs[shapes] = found, _run_items(self._stages, items)
        return self._runs[shapes][1]


def _no_larger(shapes: Any, known: Any) -> bool:
    """Whether shapes are equal to the known ones, except for smaller batches."""
    return len(shapes) == len(known) and all(
        dtype == other and a[1:] == b[1:] and len(a) == len(b) and (a[:1] == b[:1] or (None not in (*a, *b) and a <= b))
        for (dtype, a), (other, b) in zip(shapes, known, strict=True)
    )


def _states(segments: Sequence[Segment], inputs: Sequence[Any], outputs: Sequence[Any]) -> list[list[int]]:
    """The ids of the values before each stage, and after the last one."""
    states = [list(map(id, outputs))]
    given = set(map(id, inputs))
    for segment in reversed(segments):
        made = given | {id(x) for node in segment.nodes for x in node.outputs}
        before = [key for key in dict.fromkeys(states[0]) if key not in made]
        read = [id(x) for x in segment.inputs if id(x) not in given]
        states.insert(0, list(dict.fromkeys([*before, *read])))
    states[0] = list(map(id, inputs))
    return states


def _stage(number: int, segment: Segment, before: list[int], after: list[int], beside: list[int]) -> StageFunction:
    """A stage as a function of the state before it."""
    function = segment_function(segment)

    def run(contexts: Contexts, state: State, given: list[Given]) -> State:
        values, masks, assigned, losses = state
        of_variables, inputs, input_masks = given[number]
        found = dict(zip(before, zip(values, masks, strict=True), strict=True))
        found |= dict(zip(beside, zip(inputs, input_masks, strict=True), strict=True))
        variables = contexts.of_stage[number].variables
        # A variable that several stages use has the value that an earlier stage gave it.
        current = {id(contexts.of_stage[stage].variables[place]): value for (stage, place), value in assigned.items()}
        own = [current.get(id(v), value) for v, value in zip(variables, of_variables, strict=True)]
        ins = [found[id(x)] for x in segment.inputs]
        results = function(contexts.of_stage[number], [x for x, _ in ins], [mask for _, mask in ins], own)
        outputs, out_masks, new, new_losses = results
        found |= dict(zip(map(id, segment.outputs), zip(outputs, out_masks, strict=True), strict=True))
        after_values = [found[key] for key in after]
        return (
            [x for x, _ in after_values],
            [mask for _, mask in after_values],
            {**assigned, **{(number, place): value for place, value in new.items()}},
            [*losses, *((number, place, loss) for place, loss in new_losses)],
        )

    run.__qualname__ = f"stage {number}, {segment.name}"
    return run


def _bound(stage: StageFunction, contexts: Contexts, given: list[Given]) -> Callable[[State], State]:
    """The stage as a function of its state only, for measuring."""

    def run(state: State) -> State:
        return stage(contexts, state, given)

    return run


def _of_functions(items: Sequence[Item], starts: Sequence[int]) -> list[Item]:
    """Items of measured stages as items of their functions; a stage's functions begin at its number in `starts`."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Range):
            inside = tuple(_of_functions(item.items, starts))
            found.append(Range(starts[item.start], starts[item.stop], inside))
        else:
            found += range(starts[item], starts[item + 1])
    return found


def _run_items(stages: Sequence[StageFunction], items: Sequence[Item]) -> StageFunction:
    """The stages, recorded or recomputed as a plan's items say."""
    parts = [_recomputed(stages, item) if isinstance(item, Range) else stages[item] for item in items]

    def run(contexts: Contexts, state: State, given: list[Given]) -> State:
        for part in parts:
            state = part(contexts, state, given)
        return state

    return run


def _recomputed(stages: Sequence[StageFunction], item: Range) -> StageFunction:
    inside = _run_items(stages, item.items)
    inside.__qualname__ = f"stages {item.start} to {item.stop - 1}"

    def run(contexts: Contexts, state: State, given: list[Given]) -> State:
        own = [each if item.start <= number < item.stop else NOTHING for number, each in enumerate(given)]
        result: State = checkpoint(inside, (contexts, state, own))
        return result

    return run
