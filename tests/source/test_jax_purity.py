"""Plain loops on JAX whose helpers have state, or ask for the type, text or identity of a number: never traced once."""

import contextvars
import dataclasses
import functools
import itertools
import os
import re
import time
import typing

import numpy as np
import pytest

import remat
from remat.errors import DeterminismError, SourceError
from tests.source.test_jax_turns import check

jax = pytest.importorskip("jax")
jnp = jax.numpy


class OfClass:
    calls = 0

    @classmethod
    def bump(cls):
        cls.calls += 1
        return cls.calls


class Slots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def bump(self):
        self.calls += 1
        return self.calls


def bump_function():
    bump_function.calls = getattr(bump_function, "calls", 0) + 1
    return bump_function.calls


BUFFER = np.zeros(1)
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
SLOTS = Slots()


def bump_array():
    BUFFER[0] += 1
    return float(BUFFER[0])


def bump_context():
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def bump_slots():
    return SLOTS.bump()


def counted(bump):
    def program(x):
        OfClass.calls = SLOTS.calls = bump_function.calls = 0
        BUFFER[0] = 0
        VARIABLE.set(0)
        for _ in range(5):
            x = jnp.tanh(1.1 * x) * bump()
        return jnp.sum(x) * 0.1 + bump()

    return program


COUNTERS = [OfClass.bump, bump_slots, bump_function, bump_array, bump_context]


@pytest.mark.parametrize("bump", COUNTERS, ids=lambda bump: bump.__qualname__)
def test_attributes_that_a_function_sets_are_counted_and_replayed(bump):
    assert "one by one" in check(counted(bump)).explain()


def test_a_second_run_is_not_judged_by_values_alone():
    """All values are zero, whatever the count, and the gradient is 5!."""

    def program(x):
        OfClass.calls = 0
        for _ in range(5):
            x = x * OfClass.bump()
        return x

    assert jax.grad(remat.checkpointed(slots=2)(program))(0.0) == 120.0


class Holder:
    def __init__(self, numbers):
        self.numbers = numbers

    def take(self):
        return next(self.numbers)


def bump_environment():
    os.environ["REMAT_COUNT"] = str(int(os.environ["REMAT_COUNT"]) + 1)
    return float(os.environ["REMAT_COUNT"])


def make_take(numbers):
    return Holder(numbers).take


ITERATORS = {
    "list": lambda: make_take(iter([1.0, 2.0, 0.25, 0.7, 0.9, 3.0])),
    "generator": lambda: make_take(k / 4 for k in range(1, 9)),
    "itertools": lambda: make_take(itertools.count(1)),
    "environment": lambda: os.environ.__setitem__("REMAT_COUNT", "0") or bump_environment,
}


def taking(x, take):
    for _ in range(5):
        x = jnp.tanh(1.1 * x) * take()
    return jnp.sum(x) * 0.1 + take()


@pytest.mark.parametrize("name", ITERATORS)
def test_what_cannot_be_set_back_gives_the_value_and_refuses_the_gradient(name):
    make, x = ITERATORS[name], jnp.array([0.4, -0.3, 0.8])
    marked = remat.checkpointed(slots=2)(taking)
    np.testing.assert_allclose(marked(x, make()), taking(x, make()), rtol=1e-6)
    take, place = make(), f"{__file__}, line {taking.__code__.co_firstlineno + 1}: "
    with pytest.raises(DeterminismError, match=re.escape(place)):
        jax.grad(lambda x: marked(x, take))(x)
    take = make()  # inside jit, Python runs each turn once
    ours = jax.jit(jax.grad(lambda x: marked(x, take)))(x)
    take = make()
    np.testing.assert_allclose(ours, jax.grad(lambda x: taking(x, take))(x), rtol=1e-3)
    with pytest.raises(SourceError, match="a budget in bytes"):
        jax.grad(lambda x: remat.checkpointed(memory="1 MiB")(taking)(x, make()))(x)


def match_int(x):
    for i in range(6):
        match i:
            case int():
                x = jnp.tanh(1.1 * x)
            case _:
                x = x * 100.0
    return jnp.sum(x)


def match_float(x):
    t = 0.5
    for _ in range(6):
        match t:
            case float():
                x = jnp.tanh(1.1 * x) * t
            case _:
                x = x * 100.0
        t = t + 0.1
    return jnp.sum(x)


is_a = isinstance


def alias(x):
    for i in range(6):
        x = jnp.tanh(1.1 * x) * (1.0 if is_a(i, int) else 100.0)
    return jnp.sum(x)


def alias_in_a_dict(x):
    kinds = {"t": type}
    for i in range(6):
        x = jnp.tanh(1.1 * x) * (1.0 if kinds["t"](i) is int else 100.0)
    return jnp.sum(x)


def own_class(x):
    for i in range(6):
        x = jnp.tanh(1.1 * x) * (1.0 if i.__class__ is int else 100.0)
    return jnp.sum(x)


def identity(x):
    marks = [1, 3]
    for i in range(6):
        x = jnp.tanh(1.1 * x) * (1.5 if any(i is m for m in marks) else 1.0)
    return jnp.sum(x)


def joined_texts(x):
    table = {"1": 2.0, "3": 0.5}
    for i in range(6):
        x = jnp.tanh(1.1 * x) * table.get("".join(map(str, [i])), 1.5)
    return jnp.sum(x)


def test_identity_of_carried_arrays_is_refused():
    def program(x):
        start = x
        for _ in range(4):
            x = jnp.tanh(1.1 * x) * (2.0 if x is start else 1.0)
        return jnp.sum(x)

    with pytest.raises(SourceError, match="arrays are compared by `is`") as caught:
        jax.grad(remat.checkpointed(slots=2)(program))(jnp.ones(3))
    assert caught.value.line == program.__code__.co_firstlineno + 3


def test_identity_of_items_is_refused():
    def program(weights):
        x = jnp.ones(3)
        for w in weights:
            x = jnp.tanh(x * w) * (1.0 if w is weights[-1] else 2.0)
        return jnp.sum(x)

    with pytest.raises(SourceError, match="arrays are compared by `is`") as caught:
        jax.grad(remat.checkpointed(slots=2)(program))([jnp.full(3, k + 1.0) for k in range(4)])
    assert caught.value.line == program.__code__.co_firstlineno + 3


def test_identity_of_captured_arrays_is_kept():
    def program(weights):
        x, first, other, again = jnp.ones(3), weights[0], weights[1], weights[0]
        for _ in range(4):
            x = jnp.tanh(x * first) * (2.0 if first is other else 1.0) * (1.5 if first is again else 1.0)
        return jnp.sum(x)

    weights = [jnp.full(3, 0.5), jnp.full(3, 0.5)]
    kept, plain = jax.grad(remat.checkpointed(slots=2)(program))(weights), jax.grad(program)(weights)
    np.testing.assert_allclose(kept[0], plain[0], rtol=1e-6)


TEMPLATE = "%s"


def template(x):
    table = {"1": 2.0, "3": 0.5}
    for i in range(6):
        x = jnp.tanh(1.1 * x) * table.get(TEMPLATE % i, 1.5)
    return jnp.sum(x)


@functools.singledispatch
def weight(k):
    return 100.0


weight.register(int, lambda k: 1.0)


def dispatched(x):
    for i in range(6):
        x = jnp.tanh(1.1 * x) * weight(i)
    return jnp.sum(x)


class Table:
    def __getitem__(self, k):
        return 1.0 if isinstance(k, int) else 100.0


def item_of_an_object(x):
    table = Table()
    for i in range(6):
        x = jnp.tanh(1.1 * x) * table[i]
    return jnp.sum(x)


def added_comparisons(x):
    for i in range(6):
        x = jnp.tanh(1.1 * x) * ((i > 1) + (i > 2))
    return jnp.sum(x) + jnp.sum(jnp.sin(x))


ASKING = [match_int, match_float, alias, alias_in_a_dict, own_class, identity, joined_texts]


@pytest.mark.parametrize("program", [*ASKING, template, dispatched, item_of_an_object, added_comparisons])
def test_numbers_whose_type_text_or_identity_is_used_are_not_traced(program):
    assert "one by one" in check(program).explain()


@dataclasses.dataclass(frozen=True)
class Cell:
    weight: float
    name: str = "cell"

    def __call__(self, x, k):
        if x.ndim > 2:
            raise ValueError(f"{self.name} takes vectors, not {x.shape}")
        return self.scaled(jnp.tanh(self.weight * x), k)

    def scaled(self, x, k=1, mode=None):
        parts = {"x": x}
        parts["y"] = x * k / 7 if mode is None else x
        return sum(parts.values())

    def show(self):
        print(type(self), self.name)


def pure_objects(x):
    cells, first = [Cell(1.1), functools.partial(Cell(0.9))], jax.jit(lambda v: jnp.sin(v))
    for i in range(6):
        for cell in cells:
            x = cell(first(x), i)
        x = x + max(abs(p) for p in (0.1, -0.2)) + Cell(0.5).scaled(x)
    return jnp.sum(x)


def test_pure_functions_and_objects_are_still_compiled():
    assert "step evaluations" in check(pure_objects).explain()


def test_modules_of_equinox_are_still_compiled():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0))

    class Block(eqx.Module):
        inner: eqx.nn.MLP

        def __call__(self, x):
            return x + 0.1 * self.inner(x)

        def show(self):
            print(self.inner)

    def program(x, block=Block(mlp)):
        for i in range(4):
            x = block(x) + 0.1 * i
        return jnp.sum(x)

    marked = remat.checkpointed(slots=2)(program)
    x = jnp.array([0.4, -0.3, 0.8])
    np.testing.assert_allclose(jax.grad(marked)(x), jax.grad(program)(x), rtol=1e-5)
    assert "step evaluations" in marked.explain()


@pytest.mark.parametrize("settings", [{"slots": 3}, {"memory": "1 MiB"}])
@pytest.mark.parametrize("jit", [False, True])
def test_functions_that_print_do_so_once_per_turn(settings, jit, capsys):
    def told(k):
        print("turn", k)
        return 1.0 + k

    def program(x):
        for i in range(6):
            x = jnp.tanh(x) * told(i)
        return jnp.sum(x)

    if jit and "memory" in settings:
        settings = {"slots": 2}
    gradient = jax.grad(remat.checkpointed(**settings)(program))
    (jax.jit(gradient) if jit else gradient)(jnp.ones(3))
    assert capsys.readouterr().out.split("\n") == [*(f"turn {k}" for k in range(6)), ""]


@pytest.mark.parametrize("count", [10**15, 10**30])
def test_numbers_are_taken_lazily(count):
    def program(x):
        for i in range(count):
            x = jnp.sin(x)
            if i == 12:
                break
        return x

    marked = remat.checkpointed(slots=3)(program)
    np.testing.assert_allclose(marked(0.3), program(0.3), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(marked)(0.3), jax.grad(program)(0.3), rtol=1e-5)


def test_an_error_of_recomputed_values_names_the_line():
    def program(x):
        for i in range(6):
            x = jnp.sin(x) * (1 + time.perf_counter_ns() % 1000)
        return x

    place = f"{__file__}, line {program.__code__.co_firstlineno + 1}: iterations that ran again"
    with pytest.raises(DeterminismError, match=re.escape(place)):
        jax.grad(remat.checkpointed(slots=2)(program))(0.3)


def test_objects_that_write_in_their_own_way_are_replayed():
    class Log:
        def __init__(self):
            self.count = 0

        def write(self, text):
            self.count += 1

    def program(x, log):
        for i in range(6):
            log.write(i)
            x = jnp.sin(x) * (1 + log.count)
        return x

    want, got = (jax.grad(fn)(0.3, Log()) for fn in (program, remat.checkpointed(slots=2)(program)))
    np.testing.assert_allclose(got, want, rtol=1e-6)


class State(typing.NamedTuple):
    position: jax.Array
    speed: jax.Array


def test_plain_numpy_and_named_tuples_are_still_compiled():
    def program(x):
        state, weights = State(x, x * 0.1), np.array([1.0, 0.5, 0.2])
        for i in range(6):
            speed = state.speed - 0.1 * jnp.sin(state.position) * weights * np.pi
            state = State(state.position + 0.1 * speed, speed + 0.01 * i)
        return jnp.sum(state.position)

    assert "step evaluations" in check(program).explain()


@pytest.mark.parametrize("jit", [False, True])
def test_items_of_a_memoryview_are_not_assigned_in_a_copy(jit):
    def program(x):
        numbers = np.zeros(3)
        view = memoryview(numbers)
        view[0] = 2.0
        first = numbers[0]
        for i in range(7):
            view[i % 3] = float(i)
            x = jnp.tanh(x) + numbers.sum()
        return jnp.sum(x) * first

    gradient = jax.grad(remat.checkpointed(slots=3)(program))
    with pytest.raises((SourceError, DeterminismError), match="memoryview"):
        (jax.jit(gradient) if jit else gradient)(jnp.ones(3))
