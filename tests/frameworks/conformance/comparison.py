"""Results and gradients of remat's loops against those of the plain loop."""

import functools

import numpy

import remat

__all__ = ["assert_same", "assert_scan_is_the_plain_loop", "compare_loops", "expected_of", "scan_loss"]


def assert_same(found, expected, tolerance=1e-12):
    """Every array is as expected, relative to its largest number; to the last bit if the tolerance is 0."""
    found, expected = (value if isinstance(value, list | tuple) else [value] for value in (found, expected))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = numpy.asarray(a), numpy.asarray(b)
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if tolerance == 0.0 or b.dtype.kind not in "fc":
            numpy.testing.assert_array_equal(a, b)
        else:
            scale = max(float(numpy.max(numpy.abs(b), initial=0.0)), 1e-30)
            assert numpy.max(numpy.abs(a - b), initial=0.0) <= tolerance * scale


def scan_loss(framework, step, loop, length=None, **how):
    """The weighed results of a loop, as a function of parameters, initial carry and inputs; step(params, carry, x)."""

    def loss(params, init, xs):
        return framework.weigh(loop(lambda carry, x: step(params, carry, x), init, xs, length=length, **how))

    return loss


def assert_scan_is_the_plain_loop(framework, program, *, compiled=False, **how):
    """Value and gradients by parameters, carry and inputs together are those of the plain loop.

    They are so to the last bit where the order of sums is the same; XLA has its own, and rounds a little otherwise.
    """
    args = program.params, program.init, program.xs
    ours = scan_loss(framework, program.step, remat.scan, program.length, **how)
    found = framework.value_and_gradient(ours, *args, compiled=compiled)
    expected = expected_of(framework, program)
    tolerance = 0.0 if program.name in framework.exact else 1e-13
    assert_same(found[0], expected[0], tolerance)
    assert_same(found[1], expected[1], tolerance)


EXPECTED = {}


def expected_of(framework, program):
    """Value and gradients of the plain loop, computed once for each program and length."""
    key = framework.name, program.name, program.steps
    if key not in EXPECTED:
        plain = scan_loss(framework, program.step, framework.plain_scan, program.length)
        args = program.params, program.init, program.xs
        EXPECTED[key] = framework.value_and_gradient(plain, *args, compiled=True)
    return EXPECTED[key]


def compare_loops(framework, loss, *args, tolerance=1e-13, **how):
    """Gradients of `loss(loop, *args)` are the same with remat's scan, of 3 slots or as asked, as with a plain one."""
    ours = functools.partial(loss, functools.partial(remat.scan, **(how or {"slots": 3})))
    expected = framework.gradient(functools.partial(loss, framework.plain_scan), *args, compiled=True)
    assert_same(framework.gradient(ours, *args), expected, tolerance)
