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
