"""Frees the nodes of a graph that Python has seen one by one, from the last to the first.

The rule: whoever walks through the graph of a tape adds the nodes to a `SeenNodes`, which outlives all other references
to that graph. PyTorch frees long graphs iteratively, except nodes that have a Python object (from `grad_fn`,
`next_functions`, or a gradient edge), which it frees recursively: 30,000 of them in a row overflow a stack of 8 MiB and
end the process. A plain loop in which each step reads `h.grad_fn` ends so, too (seen with 2.13).

What it can miss: a graph that the user keeps alive, and nodes that only the user's code has looked at. The cost is one
reference per node, which has a Python object anyway, and a sort when the graph is freed.
"""

from torch.autograd.graph import Node

from remat.frameworks.torch.internals.graph import sequence_nr

__all__ = ["SeenNodes"]


class SeenNodes:
    """Holds nodes, and releases each one before those that it depends on; nothing else refers to the last of them."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: set[Node] = set()

    def alive(self) -> list[Node]:
        """The nodes that still exist; those of a result that nobody holds any more may not."""
        return [node for node in self.nodes if _number(node) >= 0]

    def __del__(self) -> None:
        # A node has a higher number than those that it depends on, so these are still held when it is freed.
        nodes = sorted(self.nodes, key=_number)
        self.nodes.clear()
        while nodes:
            nodes.pop()


def _number(node: Node) -> int:
    try:
        return sequence_nr(node)
    except RuntimeError:  # PyTorch 2.11: the object of a user's Function outlives its node, which is already freed
        return -1
