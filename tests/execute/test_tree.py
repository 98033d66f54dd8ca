"""Trees take containers apart, put them together again, and name what does not fit."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.pytree import LEAF, StructureMismatch, flatten

Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Frozen:
    a: object
    b: object = None
    c: object = field(default=0.0, init=False)

    def __post_init__(self):
        assert isinstance(self.a, float | tuple), "refuses what is no number"


VALUES = [
    1.0,
    None,
    (),
    [],
    {},
    (1.0, [2.0, (3.0,)], {"k": 4.0}),
    Point(1.0, Point(2.0, None)),
    OrderedDict(b=1.0, a=2.0),
    defaultdict(list, a=1.0),
    Frozen((1.0,), [2.0]),
    {1: 1.0, "1": 2.0, None: 3.0},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_is_taken_apart_is_put_together_again(value):
    leaves, tree = flatten(value)
    assert tree.unflatten(leaves) == value
    assert type(tree.unflatten(leaves)) is type(value)
    assert tree.flatten_like(value, "it") == leaves
    assert tree.size == len(leaves) == len(list(tree.paths("it")))


@given(
    st.recursive(
        st.floats(allow_nan=False),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        ),
    )
)
def test_random_nestings(value):
    leaves, tree = flatten(value)
    assert tree.unflatten(leaves) == value
    assert tree.flatten_like(value, "it") == leaves


def test_names_read_as_python():
    value = {"a": (Point(1.0, [2.0]), Frozen(3.0)), 7: 4.0}
    assert list(flatten(value)[1].paths("carry")) == [
        "carry['a'][0].x",
        "carry['a'][0].y[0]",
        "carry['a'][1].a",
        "carry['a'][1].c",
        "carry[7]",
    ]


def test_a_dict_keeps_the_order_of_the_first_one():
    _, tree = flatten({"a": 1, "b": 2})
    assert tree.flatten_like({"b": 20, "a": 10}, "it") == [10, 20]
    assert list(tree.unflatten([1, 2])) == ["a", "b"]


def test_a_dataclass_is_rebuilt_without_its_init():
    _, tree = flatten(Frozen(1.0))
    assert tree.unflatten(["traced", 0.0]).a == "traced"


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        ((1, 2), (1, 2, 3), "it was a tuple of 2 and became a tuple of 3"),
        ({"a": [1]}, {"a": [1, 2]}, r"it\['a'\] was a list of 1 and became a list of 2"),
        ((1, 2), [1, 2], "it was a tuple of 2 and became a list of 2"),
        (1, None, "it was an array or a number and became None"),
        (None, 1, "it was None and became a single int"),
        (Point(1, 2), (1, 2), "it was a Point with x, y and became a tuple of 2"),
        ({"a": 1}, {}, "it was a dict with a and became a dict with nothing"),
    ],
)
def test_another_structure_is_named(first, other, message):
    with pytest.raises(StructureMismatch, match=message):
        flatten(first)[1].flatten_like(other, "it")


def test_gaps():
    _, tree = flatten((1, {"a": 2, "b": [3]}))
    assert tree.flatten_like((None, None), "it", allow_none=True) == [None, None, None]
    assert tree.flatten_like((5, {"a": None, "b": [6]}), "it", allow_none=True) == [5, None, 6]
    assert tree.children[0] is not None
    assert flatten(3.0)[1] == LEAF
