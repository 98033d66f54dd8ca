"""Which expressions change an object in place, and which make a new one: decided by name, the only way in Python.

The rule: the methods and functions listed below change their object or their first argument; so do methods that end in
one underscore (PyTorch's convention) and `out=`. What it can miss: the user's own functions that change their argument.
Those that a step calls are replayed as far as remat finds their objects (`execute/python_state.py`); the comparison of
recomputed states detects the rest. The cost: none at run time.
"""

import ast
from collections.abc import Collection, Iterator

from remat.source.syntax import is_hidden, words

__all__ = ["change_of_call", "is_fresh", "is_view", "root_name"]

_METHODS = words(
    "append extend insert pop remove clear update setdefault add discard sort reverse popitem appendleft "
    "popleft extendleft rotate fill put resize itemset partition byteswap setfield setflags __setitem__ "
    "__delitem__ __setattr__ move_to_end subtract intersection_update difference_update "
    "symmetric_difference_update"
)
_FUNCTIONS = words(
    "shuffle copyto fill_diagonal putmask place put at heappush heappop heapify heapreplace heappushpop setattr "
    "delattr setitem delitem insort insort_left insort_right next"
)
_NEW = words("list dict set tuple bytearray deque defaultdict Counter OrderedDict sorted copy deepcopy")
_COPIES = words(
    "copy clone tolist astype sum mean max min dot item new_zeros new_ones zeros ones empty full array arange linspace "
    "eye zeros_like ones_like empty_like full_like outer stack concatenate tanh exp sin cos"
)
# Functions and methods of arrays whose result may share memory with their argument.
_VIEWS = words(
    "asarray asanyarray ascontiguousarray asfortranarray require reshape ravel transpose squeeze atleast_1d "
    "atleast_2d atleast_3d swapaxes moveaxis rollaxis broadcast_to broadcast_arrays real imag diagonal split "
    "array_split hsplit vsplit dsplit expand_dims flip fliplr flipud rot90 nan_to_num view view_as expand "
    "expand_as narrow select unbind chunk unsqueeze permute movedim as_strided as_tensor from_numpy detach "
    "numpy flatten contiguous to cpu cuda t meshgrid nditer flatiter T mT H"
)


def root_name(node: ast.AST) -> str | None:
    """The name at the start of `a.b[c].d`; None if it starts with something else."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def change_of_call(node: ast.Call, modules: Collection[str]) -> Iterator[tuple[str | None, str]]:
    """The names of objects that a call changes in place, and how."""
    called = node.func
    if isinstance(called, ast.Attribute):
        root, method = root_name(called), called.attr
        on_module = root in modules
        in_place = method in _METHODS or (method.endswith("_") and not method.endswith("__"))
        if in_place and not on_module and isinstance(called.value, ast.Name | ast.Attribute | ast.Subscript):
            yield root, f"call of {method}()"
        if on_module and method in _FUNCTIONS and node.args and not is_hidden(root or ""):
            yield root_name(node.args[0]), f"call of {ast.unparse(called)}()"
    elif isinstance(called, ast.Name) and called.id in _FUNCTIONS and node.args:
        yield root_name(node.args[0]), f"call of {called.id}()"
    for keyword in node.keywords:
        if keyword.arg == "out" and not isinstance(keyword.value, ast.Constant):
            yield root_name(keyword.value), "out="


def is_fresh(node: ast.expr, modules: Collection[str], fresh: Collection[str]) -> bool:
    """Whether an expression makes a new object, to which no other name leads."""
    if isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.JoinedStr):
        return True
    if isinstance(node, ast.Constant | ast.UnaryOp):
        return True
    if isinstance(node, ast.BinOp):
        return True
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name):
            return called.id in _NEW
        if isinstance(called, ast.Attribute):
            if called.attr in _COPIES:
                return True
            return root_name(called) in modules and called.attr not in _VIEWS
    return False


def is_view(node: ast.Call, modules: Collection[str]) -> bool:
    """Whether the result of a call may be, share memory with, or hold one of its arguments or its object."""
    called = node.func
    if isinstance(called, ast.Attribute):
        if root_name(called) in modules:
            return called.attr in _VIEWS
        return called.attr not in _COPIES
    return not (isinstance(called, ast.Name) and called.id in {"float", "int", "bool", "len", "abs", "sum", "str"})
