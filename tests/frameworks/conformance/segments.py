"""What the tests of checkpointed segments share: ways to checkpoint a call, and its comparison with the plain call."""

import functools

import remat

from .comparison import assert_same

__all__ = ["WAYS", "assert_plain_gradients", "last_bit", "plainly"]


def plainly(fn, *args, **kwargs):
    return fn(*args, **kwargs)


def _dropped(fn, *args, **kwargs):
    return remat.drop(fn)(*args, **kwargs)


def _decorated(fn, *args, **kwargs):
    return remat.drop(check="always", early_stop=False)(fn)(*args, **kwargs)


def _segment(fn, *args, **kwargs):
    return remat.checkpoint_segment(lambda *inputs: fn(*inputs, **kwargs), args)


def _group(fn, *args, **kwargs):
    return remat.CheckpointGroup().checkpoint_fn(args, lambda *inputs: fn(*inputs, **kwargs))


# All the ways to call a function as a segment, each of which is called as `way(fn, *args, **kwargs)`.
WAYS = {
    "checkpoint": remat.checkpoint,
    "drop": _dropped,
    "drop with options": _decorated,
    "checkpoint_segment": _segment,
    "group": _group,
    "adaptive, recomputed": functools.partial(remat.adaptive_checkpoint, threshold=0),
    "adaptive, left alone": functools.partial(remat.adaptive_checkpoint, threshold="1 GiB"),
}


def last_bit(framework):
    """How far results may be from those of the same operations: XLA fuses them, each program in its own way."""
    return 0.0 if framework.runs_python else 1e-14


def assert_plain_gradients(framework, loss, *args, run=remat.checkpoint, tolerance=0.0, compiled=False):
    """Value and gradients of `loss(run, *args)` are those of `loss(plainly, *args)`, to the last bit where they can be.

    With `compiled`, this holds on JAX with and without jit.
    """
    tolerance = max(last_bit(framework), tolerance)
    for jit in (False, True) if compiled and not framework.runs_python else (False,):
        found, expected = (
            framework.value_and_gradient(functools.partial(loss, each), *args, compiled=jit) for each in (run, plainly)
        )
        assert_same(found[0], expected[0], tolerance)
        assert_same(found[1], expected[1], tolerance)
