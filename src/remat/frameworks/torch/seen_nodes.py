"""Nodes of a graph that Python has seen are freed one after the other, from the last to the first.

The rule: whoever walks through the graph of a tape gives the nodes to a `SeenNodes`, which outlives all other
references to that graph. PyTorch frees long graphs in a loop of its own, but not nodes that have a Python object (from
`grad_fn`, `next_functions`, or a gradient edge), which it frees by recursion: 30,000 of them in a row overflow a stack
of 8 MiB and end the process. A plain loop in which each step reads `h.grad_fn` ends so, too (seen with 2.13).

What it can miss: a graph that the user keeps alive, and nodes that only the user's code has looked at. The cost is one
reference a node, which has a Python object anyway, and a sort when the graph is freed.
"""

from collections.abc import Iterable

from torch.autograd.graph import Node

from remat.frameworks.torch.graph import sequence_nr

__all__ = ["SeenNodes"]


class SeenNodes:
    """Holds nodes until it is freed or `release` is called; then frees each before those that it depends on."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: set[Node] = set()

    def add(self, nodes: Iterable[Node]) -> None:
        """Hold more nodes."""
        self._nodes.update(nodes)

    def release(self) -> None:
        """Let go of all nodes; nothing else refers to the last of them."""
        # A node has a higher number than those that it depends on, which therefore are still held when it is freed.
        nodes = sorted(self._nodes, key=sequence_nr)
        self._nodes.clear()
        while nodes:
            nodes.pop()

    def __del__(self) -> None:
        self.release()
