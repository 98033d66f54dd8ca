"""Inputs as people hold observations: records, dates, labels, masked arrays; each step gets its row."""

import autograd.numpy as np
import numpy
import pytest
from autograd import value_and_grad

import remat

N = 12
RECORDS = numpy.zeros(N, dtype=[("at", int), ("y", float)])
RECORDS["y"] = numpy.sin(numpy.arange(N))
DATES = numpy.arange("2020-01-01", "2020-01-13", dtype="datetime64[D]")
MASKED = numpy.ma.masked_array(numpy.sin(numpy.arange(N)), mask=numpy.arange(N) % 3 > 0)
RAGGED = numpy.array([numpy.arange(k + 1.0) for k in range(N)], dtype=object)
CASES = {
    "records": (RECORDS, lambda h, x: (h[x["at"]] - x["y"]) ** 2),
    "dates": (DATES, lambda h, x: h[0] * (x - DATES[0]).astype(float)),
    "labels": (numpy.array(["rain", "dry"] * 6), lambda h, x: h[0] * (2.0 if x == "rain" else 1.0)),
    "masked": (MASKED, lambda h, x: 0.0 * h[0] if numpy.ma.is_masked(x) else (h[0] - x) ** 2),
    "several": ((MASKED, DATES), lambda h, x: h[0] * numpy.ma.filled(x[0], 0.0) * (x[1] - DATES[0]).astype(float)),
    "objects": (RAGGED, lambda h, x: h[0] * numpy.sum(x)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("budget", [{"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_each_step_gets_its_row(case, budget):
    xs, cost = CASES[case]

    def plain(a):
        h, total = np.ones(3), 0.0
        for x in zip(*xs, strict=True) if isinstance(xs, tuple) else xs:
            h = h * a
            total = total + cost(h, x)
        return total

    def ours(a):
        return np.sum(remat.scan(lambda h, x: (h * a, cost(h * a, x)), np.ones(3), xs, **budget)[1])

    numpy.testing.assert_allclose(value_and_grad(ours)(0.9), value_and_grad(plain)(0.9), rtol=1e-13)
    numpy.testing.assert_allclose(ours(0.9), plain(0.9), rtol=1e-13)


def test_a_masked_carry_is_refused_without_advice_that_drops_the_mask():
    with pytest.raises(remat.StepError, match="its data and its mask as two arrays"):
        remat.scan(lambda h, x: (h, None), numpy.ma.ones(3), length=3, slots=2)
