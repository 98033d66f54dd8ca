"""Operations that write in place are one with those that made the memory, where nobody sees it in between."""

from remat.measuring.merged_writes import merged_writes
from remat.problem import Graph
from remat.problem.operation import Operation, Storage

NORM = Operation("norm", 2.0, [0], [1, 2])
RELU = Operation("relu_", 1.0, [1], [], [1])


def names(operations):
    return [each.name for each in merged_writes(operations)]


def test_an_activation_after_a_norm():
    (both,) = merged_writes([NORM, RELU])
    assert (both.name, both.seconds, both.inputs, both.outputs, both.writes) == ("norm, relu_", 3.0, (0,), (1, 2), ())
    back = Operation("back", 1.0, [1, 2], backward=True)
    assert Graph([NORM, RELU, back], [Storage(8)] * 3).run_again == frozenset()
    assert Graph([both, back], [Storage(8)] * 3).run_again == {0}


def test_several_writes_and_other_inputs():
    other, add = Operation("other", 1.0, [0], [3]), Operation("add_", 1.0, [1, 3], [], [1])
    made = merged_writes([NORM, other, add, RELU])
    assert [each.name for each in made] == ["other", "norm, add_, relu_"]
    assert made[1].inputs == (0, 3)


def test_who_sees_the_memory_before_keeps_them_apart():
    reads = Operation("reads", 1.0, [1], [3])
    assert names([NORM, reads, RELU]) == ["norm", "reads", "relu_"]
    statistics = Operation("reads statistics", 1.0, [2], [3])
    assert names([NORM, statistics, RELU]) == ["norm", "reads statistics", "relu_"]
    writes_input = Operation("writes", 1.0, [0], [], [0])
    assert names([NORM, writes_input, RELU]) == ["norm", "writes", "relu_"]


def test_what_may_not_run_again_stays_as_it_is():
    random = Operation("bernoulli_", 1.0, [1], [], [1], repeatable=False)
    assert names([NORM, random]) == ["norm", "bernoulli_"]
    assert names([Operation("empty", 0.0, [], [1], repeatable=False), RELU]) == ["empty", "relu_"]
