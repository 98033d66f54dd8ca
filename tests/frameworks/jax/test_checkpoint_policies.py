"""Policies of checkpoints on JAX: what is kept all the same."""

import jax
import jax.numpy as jnp
import numpy
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat
from tests.frameworks.jax.checkpoint_programs import A, assert_equal, held, segments_of


def test_a_policy_says_what_is_kept(x):
    w = jnp.outer(x, x)

    def fn(x):
        return jnp.sin(checkpoint_name(jnp.cos(w @ x), "cosine"))

    policies = jax.checkpoint_policies
    for policy, theirs in [
        ("dots_saveable", policies.dots_saveable),
        ("everything_saveable", policies.everything_saveable),
        (policies.save_only_these_names("cosine"), policies.save_only_these_names("cosine")),
        (None, None),
    ]:
        ours, expected = remat.drop(fn, policy=policy), jax.checkpoint(fn, policy=theirs)
        assert held(ours, x) == held(expected, x)
        assert_equal(jax.grad(lambda x: jnp.sum(ours(x)))(x), jax.grad(lambda x: jnp.sum(fn(x)))(x), 1e-15)  # noqa: B023

    @remat.drop(policy="dots_saveable")
    def decorated(x):
        return jnp.sin(w @ x)

    assert segments_of(decorated, x) == 1
    assert "policy=None" not in str(jax.make_jaxpr(decorated)(x))


def test_policies_that_there_are_not(x):
    with pytest.raises(remat.ProblemError, match=r"JAX has no policy 'dots'; it has .*dots_saveable"):
        remat.drop(jnp.sin, policy="dots")(x)
    for maker in ("save_only_these_names", jax.checkpoint_policies.save_only_these_names):
        with pytest.raises(remat.ProblemError, match="makes policies and is not one"):
            remat.drop(jnp.sin, policy=maker)(x)
    with pytest.raises(remat.ProblemError, match="policy must be a function or its name, not 3"):
        remat.drop(jnp.sin, policy=3)
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on numpy"):
        remat.drop(numpy.sin, policy="dots_saveable")(A)


def test_policies_on_pytorch_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on torch"):
        remat.drop(torch.sin, policy="dots_saveable")(torch.ones(2))
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on torch"):
        remat.drop(torch.nn.Linear(2, 2), policy="dots_saveable")
