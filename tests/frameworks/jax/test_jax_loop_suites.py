r"""Tests of JAX's own suite of loops, and of equinox's, adapted: what those found that ours did not ask.

`lax_control_flow_test.py` of JAX 0.10.2 was run inside of `remat.replace_loops(slots=3)`, without what is about `cond`
and `switch`, and with one of nine of the 405 cases of forwarded and constant carries: of 578 tests 560 pass, in 466 of
which loops were exchanged, two are skipped by JAX itself, and 16 do not. Of equinox's `test_while_loop.py`, with its
loops run by `remat.layers.diffrax`, 38 of 42 pass, and so do the gradients of 39 cases run of
`test_backward_checkpointed`. optax's tests of line searches and projections: 278 of 278, in which 240 loops were
exchanged. The first 39 tests of dynamax: all, in which 218 were. A program each of haiku's `dynamic_unroll`,
`layer_stack` and `scan`, linen's `RNN` and `scan`, nnx's `RNN`, a scan and NUTS of numpyro, NUTS and HMC of blackjax:
results and gradients are those without.

What does not pass:

| test | why |
|---|---|
| `testWhileGradError` (3) | it asks that a loop of unknown length has no gradient; ours has |
| `testScanBodyOutputError`, `testScanLengthError`, `testScanMetadataError`, `testWhileTypeErrors`, \
  `testScanBodyCarryPytreeMismatchErrors`, `testScanBodyCarryTypeMismatchErrors`, \
  `test_scan_length_concrete_error` | refused as well, in words of our own |
| `testCaching` | JAX does not call a body again that it knows; ours is traced at each call, compiled once |
| `testForiLoopBatchedIssue1190`, `testIssue810`, `test_scan_diff_of_print`, `test_scan_typecheck_param`, \
  `test_scan_input_to_output_forwarding` | they read the jaxpr, or count operations of JAX's own loop |
| `test_backward_checkpointed` | the order of steps is our own. In 13 of its 17 cases no more run than in equinox, in \
  4 up to four more of 33; with 31 slots and 1000 steps 3475 against 4250, where 3439 are the least |
| `test_speed_*` | timings |
| `test_symbolic_zero`, `test_nondifferentiable_body2`, `test_body_fun_grads`, `test_trivial_vjp` | its own prints |
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat
from remat.errors import ProblemError

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("lower", "upper", "dtype"),
    [
        (0, 4, jnp.int8),
        (0, np.int16(4), jnp.int16),
        (np.int16(0), 4, jnp.int16),
        (0, jnp.int16(4), jnp.int16),
        (jnp.int32(0), jnp.int32(4), jnp.int32),
    ],
)
def test_the_count_of_a_fori_loop_has_the_dtype_that_jax_gives_it(lower, upper, dtype):
    def last(value):
        return jax.lax.fori_loop(lower, upper, lambda i, c: (c + i).astype(jnp.result_type(c, i)), value)

    value = jnp.ones((), dtype)
    want = last(value)
    with remat.replace_loops(slots=2):
        found = last(value)
    assert (found.dtype, found.weak_type, int(found)) == (want.dtype, want.weak_type, int(want))
    assert found.dtype == dtype


def test_a_count_of_python_numbers_is_weakly_typed_where_promotion_is_strict():
    with jax.numpy_dtype_promotion("strict"), remat.replace_loops(slots=2):
        assert jax.lax.fori_loop(0, 0, lambda i, c: c + i, 1.0) == 1.0
        assert jax.lax.fori_loop(0, 3, lambda i, c: c + i, jnp.float32(1.0)) == 4.0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: jax.lax.fori_loop(0, 1, 42, 0), TypeError, "fori_loop.*callable"),
        (lambda: jax.lax.while_loop(42, 42, 0), TypeError, "while_loop.*callable"),
        (lambda: jax.lax.scan(42, 0, jnp.ones(1)), TypeError, "scan.*callable"),
        (lambda: jax.lax.fori_loop(np.int16(0), jnp.int32(9), lambda i, c: c, 0), TypeError, "equal types"),
        (lambda: jax.lax.scan(lambda c, x: (c, x), 0, list(range(5))), ValueError, "leading axis"),
        (lambda: jax.jit(lambda n: jax.lax.scan(lambda c, x: (c, x), 0, None, 3, unroll=n))(2), TypeError, "`unroll`"),
        (
            lambda: jax.jit(lambda n: jax.lax.fori_loop(np.int16(0), n, max, 0, unroll=2))(3),
            ValueError,
            "`unroll`",
        ),
        (
            lambda: jax.jit(lambda n: remat.scan(lambda c, x: (c, x), 0, length=3, slots=1, unroll=n))(2),
            ProblemError,
            "static",
        ),
    ],
)
def test_arguments_that_are_no_loop_are_refused_by_jax(call, error, words):
    with remat.replace_loops(slots=2), pytest.raises(error, match=words):
        call()


def test_a_loop_whose_weakly_typed_end_is_traced_is_exchanged():
    def last(end, x):
        return jax.lax.fori_loop(np.int16(0), end, lambda i, c: jnp.sin(c) * i.astype(c.dtype), x, unroll=False)

    with remat.replace_loops(slots=2) as met:
        found = jax.jit(jax.value_and_grad(last, 1))(5, 0.3)
    assert len(met.loops) == 1
    np.testing.assert_allclose(found, jax.value_and_grad(last, 1)(5, 0.3), rtol=1e-12)


def test_a_loop_of_no_steps_has_the_gradient_of_the_identity():
    with remat.replace_loops(slots=2):
        assert jax.grad(lambda x: jax.lax.fori_loop(0, 0, lambda i, c: jnp.sin(c), x))(0.3) == 1.0
        with jax.disable_jit():
            assert jax.lax.fori_loop(0, 0, lambda i, c: c + i, 1.0) == 1.0
        assert jax.grad(lambda x: jax.lax.fori_loop(3, 1, lambda i, c: jnp.sin(c), x))(0.3) == 1.0
        assert jax.grad(lambda x: jax.lax.scan(lambda c, x: (c * x, x), x, jnp.zeros(0))[0])(0.3) == 1.0
