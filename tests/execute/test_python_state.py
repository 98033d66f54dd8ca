"""The contents of containers: copied, compared by identity, put back."""

from collections import OrderedDict, deque

import pytest

from remat.execute.python_state import LONG, PythonState


class Owner:
    """Its attributes are contents of its `__dict__`."""

    def __init__(self):
        self.count = 0


def test_contents_come_back_however_they_changed():
    owner, table, log, names, queue = Owner(), OrderedDict(a=1, b=2), [1, 2], {1}, deque([1])
    state = PythonState([owner.__dict__, table, log, names, queue, log])
    before = state.get()
    owner.count, owner.other = 5, 6
    table.move_to_end("a")
    log[0] = "first"
    names.add(2)
    queue.clear()
    after = state.get()
    assert len(before.changed().pairs) == 5
    assert state.version() != before
    before.restore()
    assert state.version() == before
    assert (vars(owner), list(table), log, names, list(queue)) == ({"count": 0}, ["a", "b"], [1, 2], {1}, [1])
    after.restore()
    assert (owner.other, list(table), log, names, list(queue)) == (6, ["b", "a"], ["first", 2], {1, 2}, [])


def test_items_are_compared_by_identity():
    class Strange:
        def __eq__(self, other):
            raise AssertionError("compared by value")

        __hash__ = object.__hash__

    items = [Strange()]
    before = PythonState([items]).get()
    assert not before.changed()
    items[0] = Strange()
    assert before.changed()


def test_what_did_not_change_is_not_held():
    log, others = [], [[] for _ in range(5)]
    before = PythonState([log, *others]).get()
    log.append(1)
    assert [container is log for container in before.changed().containers()] == [True]


@pytest.mark.parametrize("make", [list, lambda items: dict.fromkeys(items, 0), deque], ids=["list", "dict", "deque"])
def test_long_containers_are_cut_to_their_length_and_filled_again(make):
    container = make(range(LONG + 5))
    state = PythonState([container])
    before = state.get()
    grown = make([*range(LONG + 5), "x", "y"])
    container.update(grown) if isinstance(container, dict) else container.extend("xy")
    after = state.get()
    before.restore()
    assert container == make(range(LONG + 5))
    after.restore()
    assert container == grown
