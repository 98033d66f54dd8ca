"""The autograd graph: edges, leaves, hooks and versions of tensors, and the running backward.

Only this file uses private names of autograd. Each helper says why; all were checked with PyTorch 2.11 and 2.13.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward, get_gradient_edge

__all__ = [
    "Edge",
    "backward_hooks",
    "base_of",
    "call_after_backward",
    "current_backward",
    "edge_of",
    "edges_behind",
    "engine_gradients",
    "external_edges",
    "gradient_edge",
    "gradients_blocked",
    "gradients_put_back",
    "gradients_set_aside",
    "has_function_modes",
    "has_hooks",
    "has_no_numbers",
    "hooks_suspended",
    "is_forgotten_leaf",
    "is_leaf_node",
    "is_wanted",
    "leaf_itself",
    "leaf_of",
    "next_sequence_nr",
    "own_hooks_suspended",
    "post_accumulate_hooks",
    "quick_version",
    "reachable_leaves",
    "restored_leaf_state",
    "sequence_nr",
    "set_backward_hooks",
    "set_gradients",
    "torch_function_disabled",
    "version",
    "version_preserved",
    "view_base",
    "will_get_gradient",
]

# The node that adds to `.grad` of a leaf; its type has no public name. A node of a user's Function may have any
# attribute, even `variable`, so the type is compared.
_AccumulateGrad: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

MOST_NODES = 1_000  # to visit when searching behind a tensor
_NO_HOOKS: Mapping[int, Any] = MappingProxyType({})


Edge: TypeAlias = tuple[Node, int]  # a node and its output number: a GradientEdge without the name


def gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge by which the gradient of a tensor enters its graph: `get_gradient_edge`, for subclasses too."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return get_gradient_edge(tensor)
    with torch_function_disabled():  # get_gradient_edge calls view_as, which a subclass may override
        return get_gradient_edge(tensor)


def edge_of(tensor: Tensor) -> Edge:
    """The gradient edge as a pair."""
    node, output, *_ = gradient_edge(tensor)
    return node, output


def torch_function_disabled() -> AbstractContextManager[None]:
    """A context in which PyTorch treats a subclass as a plain tensor; `torch.overrides` has no public name for it."""
    block: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return block


def has_function_modes() -> bool:
    """Whether function modes are active in this thread; there is no public query."""
    return bool(torch._C._len_torch_function_stack())


def sequence_nr(node: Any) -> int:
    """The number of a node: each thread counts up, so the nodes of a step have higher numbers than all earlier ones."""
    return int(node._sequence_nr())  # no public name


def next_sequence_nr() -> int:
    """The sequence number that the next node of this thread will get, above those of all nodes so far."""
    return int(torch._C._autograd._get_sequence_nr())  # no public name


def is_leaf_node(node: Any) -> bool:
    """Whether a node accumulates the gradient of a leaf."""
    return isinstance(node, _AccumulateGrad)


def leaf_of(node: Any) -> Tensor:
    """The leaf tensor whose gradient a node accumulates."""
    tensor: Tensor = node.variable  # there is no public way from a node to its leaf
    return tensor


def is_forgotten_leaf(node: Any) -> bool:
    """Whether only graphs refer to the leaf of a node, so that nobody can ask for its gradient.

    Sequence numbers do not tell whether a leaf is older than a step, since all accumulators have the same one.
    """
    return _references(node) <= _references_of_forgotten() and not has_hooks(leaf_of(node))


def _references(node: Any) -> int:
    return sys.getrefcount(leaf_of(node))


@cache
def _references_of_forgotten() -> int:
    """The reference count of a leaf that only its graph refers to; it varies with PyTorch's and Python's versions."""
    with torch.enable_grad():
        graph: Any = torch.zeros((), requires_grad=True).view(()).grad_fn
    return _references(graph.next_functions[0][0])


def external_edges(
    edges: Iterable[Edge], first: int, seen: set[Node] | None = None, stops: Collection[Edge] = ()
) -> dict[Edge, bool]:
    """The edges at which the graph of these edges reaches older tensors and leaves; True for leaves.

    Nodes are older if their sequence number is below `first`. All other visited nodes are added to `seen`; if there are
    many, they must be freed one by one (seen_nodes.py). The graph also ends at the edges in `stops`.
    """
    outside = _boundary(edges, lambda node: is_leaf_node(node) or node._sequence_nr() < first, seen, stops)
    return {edge: is_leaf_node(edge[0]) for edge in outside}


def reachable_leaves(tensors: Sequence[Tensor]) -> dict[int, Tensor]:
    """All leaves that these tensors depend on, by id."""
    nodes = _boundary([(tensor.grad_fn, 0) for tensor in tensors], is_leaf_node)
    leaves = (*(tensor for tensor in tensors if tensor.is_leaf), *(leaf_of(node) for node, _ in nodes))
    return {id(leaf): leaf for leaf in leaves}


def edges_behind(node: Node, most_nodes: int = MOST_NODES) -> set[Edge] | None:
    """The edges in the graph behind a node; None if it has more than `most_nodes` nodes."""
    stack, seen, edges = [node], {node}, set[Edge]()
    while stack and len(seen) <= most_nodes:
        behind = [(each, output) for each, output in stack.pop().next_functions if each is not None]
        edges.update(behind)
        stack += {each for each, _ in behind if each not in seen}
        seen.update(each for each, _ in behind)
    return edges if len(seen) <= most_nodes else None


def _boundary(
    edges: Iterable[tuple[Node | None, int]],
    is_outside: Callable[[Any], bool],
    seen: set[Node] | None = None,
    stops: Collection[Edge] = (),
) -> Iterator[Edge]:
    """The edges by which the graph of these edges first reaches nodes outside; nodes inside are added to `seen`."""
    stack: list[Iterable[tuple[Node | None, int]]] = [edges]
    seen = set() if seen is None else seen
    while stack:
        for node, output in stack.pop():
            if node is None:
                continue
            if is_outside(node) or (stops and (node, output) in stops):
                yield node, output
            elif node not in seen:
                seen.add(node)
                stack.append(node.next_functions)


def leaf_itself(tensor: Tensor) -> Tensor:
    """The user's object for a leaf, which has its hooks; any other tensor is returned as it is.

    A leaf saved for the backward inside a `saved_tensors_hooks` block, as in every checkpoint, is unpacked as another
    tensor, which shares its accumulator but not its hooks.
    """
    return leaf_of(gradient_edge(tensor).node) if tensor.requires_grad and tensor.is_leaf else tensor


def backward_hooks(tensor: Tensor) -> Mapping[int, Any]:
    """The hooks registered on a tensor by `register_hook`, by id."""
    hooks = tensor._backward_hooks  # hooks can be added and removed publicly, but not listed
    return dict(hooks) if hooks else _NO_HOOKS


def has_hooks(tensor: Tensor) -> bool:
    """Whether hooks wait for the gradient of a tensor, or for its accumulation."""
    tensor = leaf_itself(tensor)
    return bool(tensor._backward_hooks) or bool(tensor._post_accumulate_grad_hooks)  # neither has a public name


def post_accumulate_hooks(leaf: Tensor) -> Mapping[int, Any]:
    """The hooks registered on a leaf by `register_post_accumulate_grad_hook`, by id."""
    return dict(leaf._post_accumulate_grad_hooks or ())


def set_backward_hooks(tensor: Tensor, hooks: Mapping[int, Any], *, after: bool = False) -> None:
    """Set the hooks, or post-accumulate hooks, of a tensor; one that never had any stays without."""
    # The engine reads this very dict, so it is changed in place.
    registered = tensor._post_accumulate_grad_hooks if after else tensor._backward_hooks
    if registered is not None and (registered or hooks):
        registered.clear()
        registered.update(hooks)


@contextmanager
def restored_leaf_state(before: Sequence[tuple[Tensor, bool, Mapping[int, Any]]]) -> Iterator[None]:
    """A context in which tensors have these hooks and, if they are leaves, these requires_grad flags."""
    toggled = [tensor for tensor, required, _ in before if tensor.requires_grad != required and tensor.is_leaf]
    hooked = [(tensor, hooks) for tensor, required, hooks in before if required]
    hooks_now = [backward_hooks(tensor) for tensor, _ in hooked]
    try:
        for tensor in toggled:
            tensor.requires_grad_(not tensor.requires_grad)
        for tensor, hooks in hooked:
            set_backward_hooks(tensor, hooks)
        yield
    finally:
        for (tensor, _), hooks in zip(hooked, hooks_now, strict=True):
            set_backward_hooks(tensor, hooks)
        for tensor in toggled:
            tensor.requires_grad_(not tensor.requires_grad)


def hooks_suspended(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """A context in which the hooks of these tensors do not run; a hook registered inside stays."""
    return own_hooks_suspended([*map(leaf_itself, tensors)])


def own_hooks_suspended(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """`hooks_suspended` for tensors each of which is the user's object (`leaf_itself`).

    A range of steps computes one term of a captured tensor's gradient. Hooks see the whole gradient, once, when the
    loop's node passes it on.
    """
    suspended = [(tensor, backward_hooks(tensor)) for tensor in tensors if tensor._backward_hooks]
    # A non-leaf tensor with `retain_grad` adds the term to its `.grad`, by a hook of autograd's own that cannot be
    # removed.
    retained = [(tensor, tensor.grad) for tensor in tensors if tensor.retains_grad and not tensor.is_leaf]
    return _suspended(suspended, retained) if suspended or retained else nullcontext()


@contextmanager
def _suspended(
    suspended: Sequence[tuple[Tensor, Mapping[int, Any]]], retained: Sequence[tuple[Tensor, Tensor | None]]
) -> Iterator[None]:
    for tensor, _ in suspended:
        set_backward_hooks(tensor, {})
    try:
        yield
    finally:
        set_gradients(retained)
        for tensor, hooks in suspended:
            set_backward_hooks(tensor, {**backward_hooks(tensor), **hooks})


def set_gradients(pairs: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    """Set the `.grad` of tensors."""
    for tensor, gradient in pairs:
        tensor.grad = gradient


@contextmanager
def gradients_put_back(leaves: Iterable[Tensor]) -> Iterator[None]:
    """A context after which the leaves have the `.grad` that they have now."""
    own = [(leaf, leaf.grad) for leaf in leaves]
    try:
        yield
    finally:
        set_gradients(own)


@contextmanager
def gradients_set_aside(leaves: Sequence[Tensor]) -> Iterator[None]:
    """A context that begins with no `.grad` of the leaves, and after which they have that of before, unchanged."""
    with gradients_put_back(leaves):
        set_gradients((leaf, None) for leaf in leaves)
        yield


@contextmanager
def gradients_blocked(edges: Iterable[Edge]) -> Iterator[None]:
    """A context in which no gradient flows on from these edges, although the engine visits their nodes."""
    outputs: dict[Node, set[int]] = {}
    for node, output in edges:
        outputs.setdefault(node, set()).add(output)

    def blocking(stopped: set[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        return lambda gradients: tuple(None if k in stopped else gradient for k, gradient in enumerate(gradients))

    handles = [node.register_prehook(blocking(stopped)) for node, stopped in outputs.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def version(tensor: Tensor) -> int:
    """How often a tensor, or another in the same memory, was modified in place; 0 for inference tensors."""
    try:
        return tensor._version  # no public name, although autograd's error messages mention it
    except RuntimeError:
        if not tensor.is_inference():
            raise
        return 0


# `version`, except for inference tensors, and the base of a view; in C, since every saved tensor is asked.
quick_version: Callable[[Tensor], int] = attrgetter("_version")
base_of: Callable[[Tensor], Tensor | None] = attrgetter("_base")


def version_preserved(tensor: Tensor) -> AbstractContextManager[None]:
    """A context in which the number of writes into a tensor stays; there is no public name for it."""
    preserved: AbstractContextManager[None] = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
    return preserved


def view_base(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of, or itself."""
    return tensor if (base := base_of(tensor)) is None else base


def current_backward() -> int:
    """The id of the backward that this thread runs; -1 outside of one."""
    return int(torch._C._current_graph_task_id())  # as in torch.utils.checkpoint


def call_after_backward(callback: Callable[[], None]) -> None:
    """Call a function when the running backward ends."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # as DDP and FSDP do


def engine_gradients(
    outputs: Sequence[GradientEdge], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], *, keep: bool, create: bool
) -> tuple[Tensor | None, ...]:
    """`torch.autograd.grad` for edges, without its checks, which take as long as the pullback of a small step.

    It does not consult active modes either.
    """
    return _engine_run_backward(
        tuple(outputs), tuple(cotangents), keep, create, tuple(inputs), True, accumulate_grad=False
    )


def is_wanted(tensor: Any) -> bool:
    """Whether the running backward continues from a tensor, or was asked for its gradient; True if unknown."""
    if not isinstance(tensor, Tensor) or not tensor.requires_grad:
        return True
    try:
        return bool(torch._C._will_engine_execute_node(gradient_edge(tensor).node))
    except RuntimeError:  # a leaf that torch.autograd.grad was asked for, or there is no backward
        return True


def will_get_gradient(leaf: Tensor) -> bool:
    """Whether the running backward adds to `.grad` of a leaf; `torch.autograd.grad` for other tensors does not."""
    return bool(torch._C._will_engine_execute_node(gradient_edge(leaf).node))  # as in register_multi_grad_hook


def has_no_numbers(leaf: Any) -> bool:
    """Whether a leaf is a tensor without data: on the meta device, or in a FakeTensorMode."""
    return isinstance(leaf, Tensor) and (leaf.is_meta or isinstance(leaf, torch._subclasses.FakeTensor))
