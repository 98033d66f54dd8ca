"""Plain loops on JAX: compiled as one where that means the same, else run one by one, or refused in their line."""

import random

import numpy as np
import pytest

import remat
from remat.errors import DeterminismError, SourceError
from tests.source.corpus import INPUTS
from tests.source.test_programs import REFUSED, RIGHT

jax = pytest.importorskip("jax")
jnp = jax.numpy


def gradients(fn, *inputs):
    np.random.seed(0)
    random.seed(0)
    value, slopes = jax.value_and_grad(fn, tuple(range(len(inputs))))(*inputs)
    return [np.asarray(each, np.float64) for each in (value, *slopes)]


def check(program, slots=3):
    """The checkpointed program has the value and the gradient of the plain one, and of the plain one alone."""
    with jax.enable_x64(True):
        x = jnp.array([0.4, -0.3, 0.8])
        marked = remat.checkpointed(slots=slots)(program)
        for ours, plain in zip(gradients(marked, x), gradients(program, x), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)
    return marked


def compiled(x):
    for i in range(20):
        x = jnp.tanh(1.1 * x + i / 20)
    return jnp.sum(x)


def branches(x):
    for _ in range(9):
        x = jnp.sin(x) if x[0] > 0.3 else jnp.cos(x)
    return jnp.sum(x)


def breaks(x):
    for i in range(50):
        x = 1.1 * x + 0.05
        if jnp.sum(x) > 3.0:
            break
    else:
        x = x * 100
    return jnp.sum(x) * i


def returns(x):
    n = 0
    while (size := jnp.sum(x**2)) > 0.1:
        x, n = 0.9 * x, n + 1
        if n > 30:
            return jnp.sum(x)
    return jnp.sum(x) + size * n


def helper_branches(x):
    def double(v):
        return v * 2 if v[0] > 0.3 else v + 0.4

    for _ in range(8):
        x = jnp.sin(double(x))
    return jnp.sum(x)


def captured(x):
    w = jnp.cos(x)
    parts = {"w": [w * 2]}
    for i in range(8):
        if jnp.sum(x) > 0.5:
            x = jnp.tanh(x * w - parts["w"][0])
        else:
            x = x + 0.3 * w
    return jnp.sum(x)


def handlers(x):
    for _ in range(6):
        try:
            if jnp.sum(x) > 0.5:
                raise ValueError
            x = x + 0.3
        except Exception:
            x = jnp.sin(x)
    return jnp.sum(x)


def handler_in_a_helper(x):
    def safe(v):
        try:
            return v * 2 if v[0] > 0.2 else v * 3
        except Exception:
            return v * 1000

    for _ in range(5):
        x = jnp.sin(safe(x))
    return jnp.sum(x)


def draws(x):
    own = np.random.RandomState(0)
    for _ in range(6):
        x = jnp.sin(x) + own.randn() * 0.1 + np.random.randn() * 0.1 + random.random() * 0.1
    return jnp.sum(x) + own.randn() + np.random.randn()


def draws_of_numpy(x):
    for _ in range(6):
        x = jnp.sin(x) + np.random.randn() * 0.1
    return jnp.sum(x) + np.random.randn()


def draws_and_ends(x):
    for _ in range(50):
        x = jnp.sin(x) + 0.1 * np.random.randn()
        if np.random.rand() < 0.2 and jnp.sum(x) > -5.0:
            break
    return jnp.sum(x) + np.random.rand()


def draws_in_a_test(x):
    for _ in range(3):
        while np.random.rand() < 0.7:
            x = jnp.sin(x) + 0.1 * np.random.randn()
    return jnp.sum(x)


def counts(x):
    calls = {"n": 0}

    def scaled(v):
        calls["n"] += 1
        return jnp.sin(v) * (calls["n"] if v[0] < 9.0 else 0.0)

    for _ in range(5):
        x = scaled(x)
    return jnp.sum(x) + calls["n"]


def texts(x):
    def length(k):
        return len(f"{k}")

    for i in range(8, 13):
        x = jnp.sin(x) + 0.1 * length(i) + (0.2 if isinstance(i, int) else 100.0)
    return jnp.sum(x)


def keys_of_random_numbers(x):
    key, place = jax.random.key(0), jnp.argmax(x)
    for _ in range(6):
        key, part = jax.random.split(key)
        x = jnp.sin(x) + 0.1 * jax.random.normal(part, x.shape)
        if x[place] > 0.2:
            x, place = x * 0.9, (place + 1) % 3
    return jnp.sum(x) * place


def rows(x):
    total = 0.0
    for row in jnp.outer(x, x):
        total = total + jnp.sum(row) if total < 0.1 else total * row[0]
    return total


def functions_without_variables(x):
    steps = []
    for i in range(4):
        steps.append(lambda v, i=i: v * (i + 1))
    for step in steps:
        x = jnp.tanh(step(x))
    return jnp.sum(x)


@pytest.mark.parametrize(
    "program", [breaks, captured, handler_in_a_helper, draws, draws_of_numpy, keys_of_random_numbers, texts]
)
def test_outside_of_jit_a_loop_means_what_python_means(program):
    check(program)


@pytest.mark.full
@pytest.mark.parametrize(
    "program",
    [returns, helper_branches, handlers, draws_and_ends, draws_in_a_test, counts, rows, functions_without_variables],
)
def test_outside_of_jit_other_loops_mean_what_python_means(program):
    check(program)


def test_a_loop_of_arrays_alone_is_compiled_as_one():
    assert "20 iterations" in check(compiled).explain()
    assert "one by one" not in check(compiled).explain()
    assert "one by one, in segments of 3 iterations" in check(branches).explain()


def test_turns_are_run_twice_and_no_more():
    calls = []

    def counted(x):
        for _ in range(12):
            calls.append(remat.is_recomputing())
            x = jnp.sin(x) if x > 0.3 else jnp.cos(x)
        return x

    with pytest.raises(SourceError, match=r"call of append\(\) changes calls in place"):
        remat.checkpointed(slots=3)(counted)

    def note():
        calls.append(remat.is_recomputing())

    def counted(x):
        for _ in range(12):
            note()
            x = jnp.sin(x) if x > 0.3 else jnp.cos(x)
        return x

    jax.grad(remat.checkpointed(slots=3)(counted))(0.5)
    assert calls == [False] * 12  # what the second runs noted is taken back


@pytest.mark.full
def test_second_derivatives_and_forward_mode():
    def wave(x):
        for _ in range(6):
            x = jnp.sin(1.3 * x) if x > 0.1 else x + 0.7
        return x

    marked = remat.checkpointed(slots=2)(wave)
    with jax.enable_x64(True):
        for transform in (
            lambda f: jax.grad(jax.grad(f))(0.4),
            lambda f: jax.hessian(f)(0.4),
            lambda f: jax.jvp(f, (0.4,), (1.0,))[1],
            lambda f: jax.jacrev(lambda x: jnp.stack([f(x), f(x * 2)]))(0.4),
        ):
            np.testing.assert_allclose(transform(marked), transform(wave), rtol=1e-12)


def test_inside_of_jit_the_error_is_that_of_jax_with_the_line_and_advice():
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.jit(jax.grad(remat.checkpointed(slots=3)(branches)))(jnp.ones(3))
    note, first = caught.value.__notes__[0], branches.__code__.co_firstlineno
    assert f"{__file__}, line {first + 2}, in the loop of line {first + 1} (`for _ in range(9):`)" in note
    assert "x = jnp.sin(x) if x[0] > 0.3 else jnp.cos(x)" in note
    assert "jnp.where" in note
    assert f"tracing the function branches at {__file__}:{first + 1}" in str(caught.value)


def test_a_while_loop_that_ends_on_data_runs_inside_of_jit():
    def root(a):
        r, turns = a, 0
        while abs(r * r - a) > 1e-12:
            r = 0.5 * (r + a / r)
            turns += 1
        else:
            r = r * 1.0
        return r

    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(jax.grad(remat.checkpointed(slots=3)(root)))(2.0), 0.125**0.5, rtol=1e-10)


def test_functions_that_see_the_loop_variable_late_are_refused():
    def late(x):
        steps = []
        for i in range(3):
            steps.append(lambda v: v * i)
        for step in steps:
            x = x + 0.1 * step(x)
        return jnp.sum(x)

    with pytest.raises(SourceError, match="passes on a function that reads its variables") as caught:
        jax.grad(remat.checkpointed(slots=2)(late))(jnp.ones(3))
    assert caught.value.line == late.__code__.co_firstlineno + 2


def test_an_array_that_leaves_a_turn_in_a_cache_is_refused():
    cache = {}

    def cached(v):
        cache["last"] = jnp.sin(v)
        return cache["last"]

    def hidden(x):
        for _ in range(4):
            x = cached(x) if x > 0.0 else x
        return x + cache["last"]

    with pytest.raises(SourceError, match="puts an array into a container outside the loop"):
        jax.grad(remat.checkpointed(slots=2)(hidden))(0.5)


def test_what_a_second_run_cannot_repeat_is_an_error():
    numbers = iter(range(100))

    def moving(x):
        def take():
            return numbers.__next__() * 0.1

        for _ in range(4):
            x = jnp.sin(x) + (take() if x > -10.0 else 0.0)
        return x

    line = f"{__file__}, line {moving.__code__.co_firstlineno + 4}: "
    with pytest.raises(DeterminismError, match=line + r"the backward .* cannot be set back \(range_iterator\)"):
        jax.grad(remat.checkpointed(slots=2)(moving))(0.5)


@pytest.mark.full
@pytest.mark.parametrize("name", RIGHT | REFUSED)
@pytest.mark.parametrize("jit", [False, True])
def test_no_program_of_the_corpus_is_wrong(name, jit, monkeypatch):
    """Right, refused in a line of the program, or an error that plain JAX has, too."""
    program = (RIGHT | REFUSED)[name]
    names = {each: getattr(jnp, each) for each in dir(jnp) if not each.startswith("_")}
    both = type("both", (), {**{k: staticmethod(v) if callable(v) else v for k, v in names.items()}})
    both.errstate, both.random = np.errstate, np.random
    monkeypatch.setitem(program.__globals__, "np", both)
    transform = jax.jit if jit else (lambda fn: fn)

    def run(fn):
        np.random.seed(0)
        return jax.tree.leaves(transform(jax.value_and_grad(lambda *a: fn(*a), (0, 1, 2)))(*map(jnp.asarray, INPUTS)))

    with jax.enable_x64(True):
        try:
            plain = run(program)
        except Exception as error:
            plain = error
        try:
            ours = run(remat.checkpointed(slots=3)(program))
        except SourceError as error:
            assert error.file == program.__code__.co_filename
            return
        except Exception as error:
            assert type(error) is type(plain) or isinstance(plain, TypeError)
            return
    if isinstance(plain, Exception):  # item assignment, which is made functional
        assert isinstance(plain, TypeError)
        return
    size = max(np.abs(each).max() for each in plain)
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * size)
