"""One suite for all frameworks: `framework` is the adapter of each in turn."""

import numpy
import pytest

from .frameworks import FRAMEWORKS

# JAX compiles a program for each point of a matrix that the other frameworks just run: `make test` runs a part of these
# points, `make test-all` all. By test: the first words of the ids that are run.
ON_JAX = {
    "test_steps_are_evaluated_as_often_as_the_plan_says": ("1-", "40-{'slots': 60", "43-{'slots': 3"),
    "test_every_carry_gives_the_values_and_gradients_of_the_plain_loop": ("nested", "dataclass", "several", "integers"),
    "test_gradients_of_params_carry_and_inputs_are_those_of_the_plain_loop": ("lstm", "complex", "odd"),
    "test_known_numbers_of_evaluations": ("10-1", "1000"),
    "test_only_some_results_are_used": ("ranges of 4-carry", "single steps-outputs"),
    "test_checkpointed_loop_has_the_gradients_of_the_plain_loop": ("40", "None"),
    "test_gradients_are_those_of_the_plain_call_in_every_way": ("checkpoint", "drop with", "adaptive, recomputed"),
    "test_peaks_stay_within_the_budget": ("1 MiB", "8 MiB"),
}


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items):
    for item in items:
        name, _, point = item.name.partition("[jax-")
        if point and not point.startswith(ON_JAX.get(name, "")):
            item.add_marker(pytest.mark.full)


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
