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


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda c, _: ({"h": c["h"]}, None), r"carry\['c'\] is gone"),
        (lambda c, _: ({**c, "d": c["h"]}, None), r"carry\['d'\] came new"),
        (lambda c, _: ((c["h"], c["c"]), None), "structure"),
        (lambda c, _: ({**c, "h": c["h"][:2]}, None), r"carry\['h'\] was float64\[3\] and became float64\[2\]"),
        (
            lambda c, _: ({**c, "c": c["c"].astype(jnp.float32)}, None),
            r"carry\['c'\] was float64\[3\] and became float32",
        ),
        (lambda c, _: ({**c, "c": jnp.ones(3, jnp.int32)}, None), r"carry\['c'\] .* became int32"),
        (lambda c, _: c, "must return"),
        (lambda c, _: None, "returned None"),
        (lambda c, _: (c, None, None), "a tuple of 3"),
    ],
)
def test_a_carry_that_changes(step, words):
    with pytest.raises(remat.StepError, match=words):
        run(step, {"h": jnp.ones(3), "c": jnp.ones(3)})


def test_lengths_that_differ():
    with pytest.raises(remat.ProblemError, match="length says 4, xs says 5"):
        remat.scan(lambda c, x: (c + x, None), 0.0, jnp.ones(5), length=4, slots=2)
    with pytest.raises(remat.ProblemError, match=r"xs\[0\] says 5, xs\[1\] says 6"):
        remat.scan(lambda c, x: (c + x[0], None), 0.0, (jnp.ones(5), jnp.ones(6)), slots=2)
    with pytest.raises(remat.ProblemError, match="not known"):
        remat.scan(lambda c, x: (c, None), jnp.ones(2), slots=2)
    with pytest.raises(remat.StepError, match="single number"):
        remat.scan(lambda c, x: (c, None), jnp.ones(2), jnp.float64(3.0), slots=2)


def test_budgets_that_cannot_be():
    with pytest.raises(remat.InfeasibleError, match="slot"):
        run(lambda c, _: (jnp.sin(c), None), jnp.ones(3), slots=0)
    with pytest.raises(remat.ProblemError):
        run(lambda c, _: (jnp.sin(c), None), jnp.ones(3), slots=2, memory="1 MiB")
    with pytest.raises(remat.InfeasibleError, match=r"the smallest that works is (\S+ \S+)\. A state") as found:
        run(lambda c, _: (jnp.sin(c), None), jnp.ones(300), memory=1000)
    run(lambda c, _: (jnp.sin(c), None), jnp.ones(300), memory=found.value.minimum)
    with pytest.raises(remat.InfeasibleError):
        run(lambda c, _: (jnp.sin(c), None), jnp.ones(300), memory=found.value.minimum - 1)
    with pytest.raises(remat.ProblemError, match="the plan is for 7 steps"):
        run(lambda c, _: (jnp.sin(c), None), jnp.ones(3), plan=remat.plan(remat.Loop(7), slots=2))
    with pytest.raises(remat.InfeasibleError, match="slot"):
        remat.while_loop(lambda c: c < 3, lambda c: c + 1, jnp.float64(0.0), slots=0)


def test_options_of_other_frameworks():
    with pytest.raises(remat.StepError, match="custom_vjp"):
        remat.scan(lambda c, _: (c, None), jnp.ones(2), length=3, slots=1, vjp=lambda *_: None)

    class Heard:
        def update(self, done, total): ...

    with pytest.raises(remat.ProblemError, match="driven=True"):
        remat.scan(lambda c, _: (c, None), jnp.ones(2), length=3, slots=1, progress=Heard())
    with pytest.raises(remat.ProblemError, match="progress"):
        remat.while_loop(lambda c: c < 3, lambda c: c + 1, jnp.float64(0.0), slots=1, progress=Heard())


def test_a_leaf_that_is_no_array():
    with pytest.raises(remat.StepError, match=r"init\['name'\] is a str"):
        remat.scan(lambda c, _: (c, None), {"h": jnp.ones(2), "name": "x"}, length=3, slots=1)


def test_a_condition_that_is_no_truth():
    with pytest.raises(remat.StepError, match="one truth value"):
        remat.while_loop(lambda c: c < 3, lambda c: c + 1, jnp.ones(2), slots=1)


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


def test_errors_of_the_step_come_through():
    def step(c, x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(step, jnp.ones(2))
