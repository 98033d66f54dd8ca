"""One suite for all frameworks: `framework` is the adapter of each in turn."""

import numpy
import pytest

from .frameworks import FRAMEWORKS


@pytest.fixture(params=FRAMEWORKS.values(), ids=FRAMEWORKS.keys(), scope="module")
def framework(request):
    return request.param()


@pytest.fixture
def quick():
    """Whether compilers may leave out what makes programs fast and small, since only the numbers matter."""
    return True


@pytest.fixture(autouse=True)
def settings(framework, quick):
    with framework.settings(quick):
        yield


@pytest.fixture
def x(framework):
    """Five numbers."""
    return framework.array(numpy.linspace(0.1, 0.9, 5))
