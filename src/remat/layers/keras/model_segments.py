"""The segments of a model: what lies between its save points.

The rule: the level of a node is the largest number of save points on any path to it. Nodes of one level that are
connected other than through a save point form one segment, so that towers with their own save points are separate.
Values that cross levels are inputs of the later segment, so they are kept. The segments of the last level are not
recomputed, since the backward begins there.

A node that reads only what is stored anyway (inputs of the model, save points), and is only needed later, moves to the
first level that needs it, so that its results are not kept. Calls of one layer with state, such as the seed of a
dropout, are in one segment if they have the same level, so that its draws keep their order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from remat.layers.keras.checkpoint_layer import RecomputationCheckpoint
from remat.layers.keras.keras_internals import GraphNode

__all__ = ["Segment", "is_save_point", "merged", "segments_of", "split_at_save_points"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes that run together; `inputs` come from outside, and `outputs` are used there."""

    level: int
    is_last: bool
    nodes: tuple[GraphNode, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Its first and its last layer."""
        names = [node.operation.name for node in self.nodes]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

    def variables(self) -> list[Any]:
        """The variables of its layers as they are now; layers may gain some, as by `enable_lora`."""
        return variables_of(self.nodes)


def variables_of(nodes: Iterable[GraphNode]) -> list[Any]:
    """The variables of the nodes' layers, each once."""
    return list({id(v): v for node in nodes for v in getattr(node.operation, "variables", ())}.values())


def split_at_save_points(nodes: Sequence[GraphNode], inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Segment]:
    """The segments of a graph, in an order in which they can run."""
    levels = _levels(nodes, inputs, outputs)
    last = max(levels, default=0)
    groups: list[tuple[int, list[GraphNode]]] = []
    for level in range(last + 1):
        of_level = [node for node, its_level in zip(nodes, levels, strict=True) if its_level == level]
        groups += [(level, group) for group in _connected(of_level)]
    return segments_of(groups, outputs, last)


def segments_of(groups: Sequence[tuple[int, Sequence[GraphNode]]], outputs: Sequence[Any], last: int) -> list[Segment]:
    """Segments made of groups of nodes with their levels: what each reads from before it, and what is used after it."""
    segments: list[Segment] = []
    wanted = {id(x) for x in outputs}
    for level, nodes in reversed(groups):
        own = {id(x): x for node in nodes for x in node.outputs}
        inputs = {id(x): x for node in nodes for x in node.inputs if id(x) not in own}
        used = tuple(x for key, x in own.items() if key in wanted)
        wanted |= inputs.keys()
        segments.append(Segment(level, level == last, tuple(nodes), tuple(inputs.values()), used))
    return segments[::-1]


def merged(segments: Sequence[Segment]) -> Segment:
    """Consecutive segments as one."""
    own = {id(x) for segment in segments for node in segment.nodes for x in node.outputs}
    inputs = {id(x): x for segment in segments for x in segment.inputs if id(x) not in own}
    nodes = tuple(node for segment in segments for node in segment.nodes)
    outputs = tuple(x for segment in segments for x in segment.outputs)
    return Segment(segments[-1].level, segments[-1].is_last, nodes, tuple(inputs.values()), outputs)


def is_save_point(node: GraphNode) -> bool:
    """Whether the outputs of a node are stored."""
    return isinstance(node.operation, RecomputationCheckpoint)


def _levels(nodes: Sequence[GraphNode], inputs: Sequence[Any], outputs: Sequence[Any]) -> list[int]:
    """The level of each node; a save point is the last node of its level, and its outputs belong to the next."""
    of_tensor = {id(x): 0 for x in inputs}
    levels: list[int] = []
    for node in nodes:
        level = max((of_tensor[id(x)] for x in node.inputs), default=0)
        levels.append(level)
        of_tensor |= {id(x): level + is_save_point(node) for x in node.outputs}
    stored = {id(x) for x in inputs} | {id(x) for node in nodes if is_save_point(node) for x in node.outputs}
    results = {id(x) for x in outputs}
    first_use: dict[int, int] = {}  # by tensor id: the first level that reads it
    for place in reversed(range(len(nodes))):
        node = nodes[place]
        movable = not is_save_point(node) and not getattr(node.operation, "variables", ())
        made = {id(x) for x in node.outputs}
        if movable and made.isdisjoint(results) and all(id(x) in stored for x in node.inputs):
            levels[place] = min((first_use[key] for key in made if key in first_use), default=levels[place])
        for x in node.inputs:
            first_use[id(x)] = min(first_use.get(id(x), levels[place]), levels[place])
    return levels


def _connected(nodes: Sequence[GraphNode]) -> list[list[GraphNode]]:
    """Groups of nodes connected by values that are not stored, or by a layer with state, in order."""
    parent = list(range(len(nodes)))

    def root(place: int) -> int:
        while parent[place] != place:
            place = parent[place]
        return place

    maker: dict[int, int] = {}  # by the ids of tensors, and of layers with state
    for place, node in enumerate(nodes):
        state = [id(v) for v in getattr(node.operation, "variables", ()) if not v.trainable]
        for key in [*map(id, node.inputs), *state]:
            if key in maker:
                parent[root(place)] = root(maker[key])
        maker |= dict.fromkeys(state, place)
        if not is_save_point(node):
            maker |= {id(x): place for x in node.outputs}
    groups: dict[int, list[GraphNode]] = {}
    for place, node in enumerate(nodes):
        groups.setdefault(root(place), []).append(node)
    return list(groups.values())
