"""What is wrong with a loop on JAX is said clearly, with the leaf and the numbers, and before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat


def run(step, init, xs=None, **budget):
    budget = budget or {"slots": 2}
    length = None if xs is not None else 5
    return jax.grad(
        lambda init: sum(map(jnp.sum, jax.tree.leaves(remat.scan(step, init, xs, length=length, **budget)[0])))
    )(init)


def test_options_of_other_frameworks():
    with pytest.raises(remat.StepError, match="custom_vjp"):
        remat.scan(lambda c, _: (c, None), jnp.ones(2), length=3, slots=1, vjp=lambda *_: None)

    class Heard:
        def update(self, done, total): ...

    with pytest.raises(remat.ProblemError, match="driven=True"):
        remat.scan(lambda c, _: (c, None), jnp.ones(2), length=3, slots=1, progress=Heard())
    with pytest.raises(remat.ProblemError, match="progress"):
        remat.while_loop(lambda c: c < 3, lambda c: c + 1, jnp.float64(0.0), slots=1, progress=Heard())


def test_a_step_without_a_derivative():
    def callback(c):
        return jax.pure_callback(np.sin, c, c)

    def shape(c):
        return jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c * 2, c)

    close = jnp.linspace(0.1, 0.2, 3)
    for step, words in ((callback, "callback"), (shape, "remat.while_loop")):
        assert remat.scan(lambda c, _, step=step: (step(c), None), close, length=2, slots=1)[0].shape == (3,)
        with pytest.raises(remat.StepError, match=words):
            run(lambda c, _, step=step: (step(c), None), close)


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_a_budget_in_bytes_for_a_size_that_is_left_open(loop):
    def last(h, **budget):
        if loop == "scan":
            return jnp.sum(remat.scan(lambda h, _: (jnp.sin(h), None), h, length=5, **budget)[0])
        return jnp.sum(remat.while_loop(lambda c: c[1] < 5, lambda c: (jnp.sin(c[0]), c[1] + 1), (h, 0), **budget)[0])

    def exported(**budget):
        h = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.float32)
        return jax.export.export(jax.jit(jax.grad(lambda h: last(h, **budget))))(h)

    with pytest.raises(remat.ProblemError, match=r"depend on b, which jax.export leaves open. Give slots="):
        exported(memory="1 MiB")
    h = jnp.linspace(0.1, 1.0, 3, dtype=jnp.float32)
    np.testing.assert_allclose(exported(slots=2).call(h), jax.grad(lambda h: last(h, slots=2))(h), rtol=1e-6)


def test_inputs_whose_lengths_differ_are_no_list_of_steps():
    for xs in ((jnp.ones((6, 2)), jnp.ones((3, 2))), (np.ones((6, 2)), np.ones((3, 2)))):
        with pytest.raises(remat.ProblemError, match=r"xs\[0\] says 6, xs\[1\] says 3") as found:
            remat.scan(lambda c, x: (c, None), xs[0][0], xs, slots=2)
        assert "stack" not in str(found.value)
    with pytest.raises(remat.ProblemError, match=r"jax\.numpy\.stack"):
        remat.scan(lambda c, x: (c, None), jnp.ones(2), [jnp.ones(2)] * 5, 5, slots=2)


def test_a_length_that_is_no_whole_number():
    with pytest.raises(remat.ProblemError, match=r"length must be a whole number, not 2\.5"):
        remat.scan(lambda c, _: (c, None), jnp.ones(2), length=2.5, slots=2)
    with pytest.raises(remat.ProblemError, match=r"did you mean memory=0\.5"):
        remat.scan(lambda c, _: (c, None), jnp.ones(2), length=0.5, slots=2)


def sine(x):
    return jnp.sin(x)


def test_arrays_of_jax_from_a_number_outside_a_trace():
    """If the step itself names no module of JAX, only its result shows that it is a loop of JAX."""
    with pytest.raises(remat.StepError, match="Give init as arrays of JAX") as found:
        remat.scan(lambda c, _: (sine(c), c), 1.0, length=3, slots=2)
    assert "(y, carry)" not in str(found.value)
