"""Segments with a loop inside, as they run on GPUs: derivatives of plain JAX; and the warning on the CPU."""

import importlib
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat
from remat.frameworks.jax.segments import cpu_scheduler

SEGMENTS = importlib.import_module("remat.frameworks.jax.segments.checkpoint")


@pytest.fixture(autouse=True)
def on_another_device(monkeypatch):
    monkeypatch.setattr(SEGMENTS, "is_for_cpu", lambda: False)
    with jax.enable_x64(True):
        yield


def section(w, h, xs, scale):
    def step(h, x):
        return jnp.tanh(h @ w + scale["x"] * x), h.sum()

    h, sums = lax.scan(step, h, xs)
    return {"h": h, "count": jnp.int32(len(xs)), "sums": sums}


def loss(w, h, xs, wrap=remat.checkpoint):
    scale = {"x": h[0, 0]}  # closed over by nobody, but an input with a gradient
    total = 0.0
    for k in range(4):
        out = wrap(section, w, h, xs[3 * k : 3 * k + 3], scale)
        h, total = out["h"], total + out["sums"].sum()
    return (h**2).sum() + total


def plain(function, *args):
    return function(*args)


W = np.linspace(-0.5, 0.7, 9).reshape(3, 3)
H = np.linspace(0.1, 0.6, 6).reshape(2, 3)
XS = np.sin(np.arange(72.0)).reshape(12, 2, 3)
DERIVATIVES = {
    "gradients": lambda f: jax.grad(f, (0, 1, 2))(W, H, XS),
    "forward mode": lambda f: jax.jvp(lambda w: f(w, H, XS), (W,), (W,)),
    "forward over reverse": lambda f: jax.jvp(jax.grad(lambda w: f(w, H, XS)), (W,), (W,)),
    "reverse over reverse": lambda f: jax.grad(lambda w: (jax.grad(f, (0, 1))(w, H, XS)[0] * W).sum())(W),
    "a batch": lambda f: jax.vmap(jax.grad(f), (None, 0, None))(W, np.stack([H, 2 * H]), XS),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] * (name in ("forward mode", "a batch"))) for name in DERIVATIVES],
)
def test_derivatives_are_those_of_plain_calls(name):
    want, got = (
        jax.jit(lambda wrap=wrap: DERIVATIVES[name](lambda *args: loss(*args, wrap=wrap)))()
        for wrap in (plain, remat.checkpoint)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), want, got)


def text_of(f):
    return jax.jit(jax.grad(f)).lower(W).as_text()


def test_the_second_run_waits_inside_a_loop_of_one_turn():
    """Segments without a loop, with a policy or with rules of their own are left to jax.checkpoint."""
    assert "while" not in text_of(lambda w: remat.checkpoint(lambda w: jnp.sin(jnp.sin(w)), w).sum())
    scan = text_of(lambda w: remat.checkpoint(lambda w: lax.scan(lambda h, x: (jnp.sin(h @ w), h), w, XS)[0], w).sum())
    by_jax = text_of(lambda w: jax.checkpoint(lambda w: lax.scan(lambda h, x: (jnp.sin(h @ w), h), w, XS)[0])(w).sum())
    assert scan.count("stablehlo.while") == by_jax.count("stablehlo.while") + 1


def test_rules_of_the_users_own_are_kept():
    @jax.custom_vjp
    def doubled(h):
        return h

    doubled.defvjp(lambda h: (h, None), lambda _, bar: (2 * bar,))

    def segment(w):
        return lax.scan(lambda h, x: (doubled(jnp.sin(h @ w)), None), w, XS)[0].sum()

    np.testing.assert_allclose(
        jax.jit(jax.grad(lambda w: remat.checkpoint(segment, w)))(W), jax.jit(jax.grad(segment))(W), rtol=1e-12
    )


def test_the_warning_comes_once_and_names_the_flag(monkeypatch):
    monkeypatch.setattr(SEGMENTS, "is_for_cpu", lambda: True)
    monkeypatch.setattr(cpu_scheduler, "_said", set())
    monkeypatch.setenv("XLA_FLAGS", "")

    def segment(w):
        return remat.checkpoint(lambda w: jnp.sin(jnp.sin(w)), w).sum()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        jax.grad(segment)(W)  # operation by operation: nothing is undone
        assert not said
        jax.jit(jax.grad(segment))(W)
        jax.jit(jax.grad(lambda w: 2 * segment(w)))(W)
    assert len(said) == 1
    assert cpu_scheduler.FLAG in str(said[0].message)


def test_the_flag_silences_it(monkeypatch):
    monkeypatch.setattr(cpu_scheduler, "_said", set())
    monkeypatch.setenv("XLA_FLAGS", cpu_scheduler.FLAG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpu_scheduler.warn_once()


MEMORY = """
import jax, jax.numpy as jnp, remat
def block(w, x):
    for each in w:
        x = jnp.tanh(jnp.sin(x @ each))
    return x
def bytes_of(wrap):
    def loss(w, x):
        for k in range(4):
            x = wrap(block, w[4 * k : 4 * k + 4], x)
        return x.sum()
    shapes = jax.ShapeDtypeStruct((16, 8, 8), "float32"), jax.ShapeDtypeStruct((8192, 8), "float32")
    return jax.jit(jax.grad(loss)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
print(bytes_of(remat.checkpoint) / bytes_of(lambda f, *args: f(*args)))
"""


@pytest.mark.full
def test_with_the_flag_segments_save_memory_on_the_cpu():
    environment = {**os.environ, "XLA_FLAGS": cpu_scheduler.FLAG}
    ratio = subprocess.run([sys.executable, "-c", MEMORY], env=environment, capture_output=True, text=True, check=True)
    assert float(ratio.stdout) < 0.6
