"""`remat.replace_loops`: JAX's own loops, exchanged for ours where a function is traced."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat

pytestmark = pytest.mark.usefixtures("quick")


def scanned(w):
    carry, ys = jax.lax.scan(lambda c, x: (jnp.sin(c * w + x), c * x), 0.3, jnp.arange(4.0), reverse=True, unroll=2)
    return carry + jnp.sum(ys * jnp.arange(4.0))


def counted(w):
    return jax.lax.fori_loop(2, 7, lambda i, c: jnp.cos(c * w) + i * 0.1, 0.5)


def bounded(w):
    return jax.lax.fori_loop(0, jnp.int32(5), lambda i, c: jnp.cos(c * w) + i * 0.1, 0.5)


def repeated(w):
    return jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1] * w)), (0, 0.5))[1]


def recomputed(w):
    return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(w) + jax.remat(jnp.sin, prevent_cse=False)(w)


ORIGINALS = jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop, jax.checkpoint, jax.remat


def in_place():
    return (jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop, jax.checkpoint, jax.remat) == ORIGINALS


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (scanned, "scan of scanned.<locals>.<lambda>, 4 steps"),
        (counted, "fori_loop of counted.<locals>.<lambda>, 5 steps"),
        (bounded, "fori_loop of bounded.<locals>.<lambda>, length unknown"),
        (repeated, "while_loop of repeated.<locals>.<lambda>, length unknown"),
        (recomputed, "checkpoint of recomputed.<locals>.<lambda>"),
    ],
)
def test_loops_and_checkpoints_are_ours_inside(function, line):
    want = jax.jacfwd(function)(0.7)
    with remat.replace_loops(slots=3) as loops:
        np.testing.assert_allclose(jax.grad(function)(0.7), want, rtol=1e-12)
    assert loops.explain().splitlines() == ["1 exchanged, each with slots=3:", f"  {line}"]
    assert in_place()


def test_it_nests_and_is_undone_on_errors():
    met = []

    def fail():
        with remat.replace_loops(slots=3) as outer:
            with remat.replace_loops(memory="1 MiB") as inner:
                jax.grad(scanned)(0.7)
            assert not in_place()
            met.extend((outer, inner))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert in_place()
    outer, inner = met
    assert (len(outer.loops), len(inner.loops)) == (0, 1)
    assert "no loop was met" in outer.explain()
    assert "memory='1 MiB'" in inner.explain()


def test_other_threads_keep_their_loops():
    results = []
    with remat.replace_loops(slots=3) as loops:
        thread = threading.Thread(target=lambda: results.append(jax.grad(scanned)(0.7)))
        thread.start()
        thread.join()
    assert loops.loops == []
    assert len(results) == 1


def test_a_budget_that_makes_no_sense_is_refused_at_once():
    for budget in ({}, {"slots": 2, "memory": "1 MiB"}, {"slots": 0}, {"slots": 1.5}):
        with pytest.raises(remat.errors.ProblemError), remat.replace_loops(**budget):
            pass
    assert in_place()


def test_a_program_may_exchange_lax_scan_for_ours_itself(monkeypatch):
    want = jax.grad(scanned)(0.7)
    ours = lambda f, init, xs=None, length=None, **options: remat.scan(f, init, xs, length, slots=2, **options)  # noqa: E731
    monkeypatch.setattr(jax.lax, "scan", ours)
    np.testing.assert_allclose(jax.grad(scanned)(0.7), want, rtol=1e-12)


@pytest.mark.parametrize("init", [0.0, 1, np.float32(0.5), np.float64(0.5), np.int32(2), (1.0, np.float32(2))])
def test_numbers_are_carries_of_the_types_that_lax_scan_gives_them(init):
    def step(carry, x):
        return jax.tree.map(lambda leaf: leaf * 1, carry), x

    want, got = jax.lax.scan(step, init, jnp.ones(3)), remat.scan(step, init, jnp.ones(3), slots=2)
    for theirs, ours in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert (ours == theirs).all()
        assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)


def test_length_reverse_and_unroll_stand_where_lax_scan_has_them():
    args = lambda c, x: (c + x, c), 1.0, jnp.arange(5.0), 5, True, 2
    for theirs, ours in zip(jax.lax.scan(*args), remat.scan(*args, slots=2), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_elsewhere_reverse_is_refused_with_what_to_write():
    with pytest.raises(remat.errors.ProblemError, match=r"xs\[::-1\]"):
        remat.scan(lambda c, x: (c + x, c), np.zeros(2), np.ones((3, 2)), reverse=True, slots=2)
