"""Run with 8 host devices: gradients of loops on sharded arrays are those of one device. Writes what failed as JSON."""

import functools
import json
import re
import sys
import traceback
import warnings

import jax
import jax.numpy as jnp
import numpy
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import remat

STEPS, BATCH, WIDTH = 11, 8, 8


def scan(step, h, xs):
    return remat.scan(step, h, xs, slots=3)


def scan_by_memory(step, h, xs):
    return remat.scan(step, h, xs, memory="40 KiB")


def scan_by_while(step, h, xs):
    """A loop that does not know its length, over the same steps."""
    outs = 0.0 * xs

    def body(carry):
        i, h, outs = carry
        h, y = step(h, lax.dynamic_index_in_dim(xs, i, keepdims=False))
        return i + 1, h, lax.dynamic_update_index_in_dim(outs, y, i, 0)

    _, h, outs = remat.while_loop(lambda carry: carry[0] < len(xs), body, (0, h, outs), slots=3)
    return h, outs


LOOPS = {"scan": scan, "scan in bytes": scan_by_memory, "while": scan_by_while}


def loss(loop, params, h, xs):
    W, b = params

    def step(h, x):
        h = jnp.tanh(h @ W + x * b)
        return h, jnp.cos(h)

    h, ys = loop(step, h, xs)
    return jnp.sum(h**2) + jnp.sum(ys)


def values():
    rng = numpy.random.default_rng(0)
    W, b = rng.normal(size=(WIDTH, WIDTH)) * 0.4, rng.normal(size=WIDTH)
    return (W, b), rng.normal(size=(BATCH, WIDTH)), rng.normal(size=(STEPS, BATCH, WIDTH))


@functools.cache
def expected(of=loss):
    return jax.jit(jax.grad(lambda *args: of(lax.scan, *args), (0, 1, 2)))(*values())


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def placed(mesh, params, h, xs):
    """The values on a mesh, by the specs for params, state and inputs."""
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), (params, h, xs), is_leaf=lambda s: isinstance(s, P)
    )
    return jax.device_put(values(), shardings)


def under_jit(loop, shape, params, h, xs):
    mesh = jax.make_mesh(shape, ("batch", "model"), axis_types=(AxisType.Auto,) * 2)
    args = placed(mesh, params, h, xs)
    compiled = jax.jit(jax.grad(lambda *args: loss(LOOPS[loop], *args), (0, 1, 2))).lower(*args).compile()
    assert_same(compiled(*args), expected())


def without_jit(loop):
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    args = placed(mesh, (P(), P()), P("batch"), P(None, "batch"))
    assert_same(jax.grad(lambda *args: loss(LOOPS[loop], *args), (0, 1, 2))(*args), expected())


def explicit(loop, shape, params, h, xs):
    mesh = jax.make_mesh(shape, ("batch", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        args = placed(mesh, params, h, xs)
        grads = [
            jax.jit(jax.grad(lambda *args, run=run: loss(run, *args), (0, 1, 2)))(*args)
            for run in (LOOPS[loop], lax.scan)
        ]
    assert_same(*grads)
    for a, b in zip(*map(jax.tree.leaves, grads), strict=True):
        assert a.sharding == b.sharding, (a.sharding, b.sharding)


def mapped(loop, check):
    """Each device has a part of the batch; the loss is summed over all of them."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    specs = (P(), P("batch"), P(None, "batch"))

    def total(params, h, xs):
        return lax.psum(loss(LOOPS[loop], params, h, xs), "batch")

    run = jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check)
    assert_same(jax.jit(jax.grad(run, (0, 1, 2)))(*values()), expected())


def mapped_inside(loop, check):
    """The gradient is taken on each device, and then summed."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    specs = (P(), P("batch"), P(None, "batch"))

    def grads(params, h, xs):
        if check:
            params = lax.pcast(params, ("batch",), to="varying")
        params, h, xs = jax.grad(lambda *args: loss(LOOPS[loop], *args), (0, 1, 2))(params, h, xs)
        return lax.psum(params, "batch"), h, xs

    run = jax.shard_map(grads, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=check)
    assert_same(jax.jit(run)(*values()), expected())


def talking_loss(loop, params, h, xs, axis=None):
    """Steps that need all of the state: each is told the sum over it."""
    W, b = params

    def step(h, x):
        total = jnp.sum(h, -1, keepdims=True)
        total = total if axis is None else lax.psum(total, axis)
        h = jnp.tanh(h * b + 0.1 * total + x)
        return h, jnp.cos(h)

    h, ys = loop(step, h, xs)
    return jnp.sum(h**2) + jnp.sum(ys) + jnp.sum(W)


def talking(loop, check):
    mesh = jax.make_mesh((2, 4), ("batch", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = ((P("batch", "model"), P("model")), P("batch", "model"), P(None, "batch", "model"))

    def total(params, h, xs):
        return lax.psum(talking_loss(LOOPS[loop], params, h, xs, "model"), ("batch", "model"))

    run = jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check)
    assert_same(jax.jit(jax.grad(run, (0, 1, 2)))(*values()), expected(talking_loss))


def mapped_step(loop, forward):
    """A step that is mapped over a mesh, of values that are not placed on it: JAX finds the devices in the step."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    cell = jax.shard_map(
        lambda W, h, x: jnp.tanh(h @ W + x + lax.pmean(h, "batch")),
        mesh=mesh,
        in_specs=(P(), P("batch"), P("batch")),
        out_specs=P("batch"),
    )

    def total(run, W, h, xs):
        return jnp.sum(run(lambda h, x: (cell(W, h, x), jnp.zeros_like(x)), h, xs)[0] ** 2)

    (W, _), h, xs = values()
    transform = (lambda f: lambda W: jax.jvp(f, (W,), (W,))[1]) if forward else jax.grad
    got, want = (
        jax.jit(transform(lambda W, run=run: total(run, W, h, xs)))(jnp.asarray(W)) for run in (LOOPS[loop], lax.scan)
    )
    assert_same(got, want)


def buffers(loop):
    """Temporaries of one device of eight are an eighth of those of one alone."""
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    h = jax.ShapeDtypeStruct((512, 64), jnp.float64)
    b = jax.ShapeDtypeStruct((64,), jnp.float64)

    def run(b, h):
        def step(h):
            return h[0] + 1, jnp.tanh(h[1] * b + 0.1)

        if loop == "while":
            return jnp.sum(remat.while_loop(lambda h: h[0] < 100, step, (0, h), slots=20)[1])
        return jnp.sum(remat.scan(lambda h, _: (step(h), None), (0, h), length=100, slots=20)[0][1])

    def temporaries(h):
        compiled = jax.jit(jax.grad(run)).lower(b, h).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    alone = temporaries(h)
    shared = temporaries(jax.ShapeDtypeStruct(h.shape, h.dtype, sharding=NamedSharding(mesh, P("batch"))))
    assert alone > 20 * 512 * 64 * 8
    assert shared < alone / 7, (shared, alone)


def cases():
    everything = (P("batch", "model"), P(None, "batch", "model"))
    meshes = {
        "8x1, batch": ((8, 1), (P(), P()), P("batch"), P(None, "batch")),
        "2x4, batch and model": ((2, 4), (P(None, "model"), P("model")), *everything),
        "4x2, model first": ((4, 2), (P("model", None), P()), P(None, "model"), P(None, None, "model")),
        "2x4, inputs replicated": ((2, 4), (P(), P()), P("batch", "model"), P()),
    }
    for loop in LOOPS:
        for name, (shape, *specs) in meshes.items() if loop != "scan in bytes" else ():
            yield f"jit, {loop}, {name}", under_jit, (loop, shape, *specs)
        yield f"no jit, {loop}", without_jit, (loop,)
        for check in (True, False):
            yield f"shard_map, {loop}, check_vma={check}", mapped, (loop, check)
            yield f"grad in shard_map, {loop}, check_vma={check}", mapped_inside, (loop, check)
            yield f"psum in the step, {loop}, check_vma={check}", talking, (loop, check)
        yield f"shard_map in the step, {loop}, reverse", mapped_step, (loop, False)
        yield f"shard_map in the step, {loop}, forward", mapped_step, (loop, True)
        yield f"explicit, {loop}, batch", explicit, (loop, (8, 1), (P(), P()), P("batch"), P(None, "batch"))
    yield "buffers, scan", buffers, ("scan",)
    yield "buffers, while", buffers, ("while",)


def main(pattern):
    warnings.simplefilter("error")
    jax.config.update("jax_enable_x64", True)
    assert jax.device_count() == 8
    found = {}
    for name, case, args in cases():
        if re.search(pattern, name):
            jax.config.update("jax_disable_most_optimizations", case is not buffers)  # each program is run once
            try:
                case(*args)
                found[name] = None
            except Exception:
                found[name] = traceback.format_exc()[-3000:]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
