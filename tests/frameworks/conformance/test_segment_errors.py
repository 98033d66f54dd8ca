"""Checkpointed segments: what is refused, and that errors say what to do."""

import collections

import numpy
import pytest

import remat
from tests.frameworks.untracked import Box

from .comparison import assert_same
from .frameworks import FRAMEWORKS, where_python_runs_each_step
from .segments import WAYS, last_bit

# Errors of the user's function


@pytest.mark.parametrize("way", WAYS)
def test_errors_of_the_function_are_the_users_own(framework, x, way):
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        framework.gradient(lambda x: framework.np.sum(WAYS[way](fails, x)), x)
    with pytest.raises(KeyError, match="mine"):
        WAYS[way](fails, x)


@where_python_runs_each_step
def test_errors_in_a_recomputation_are_the_users_own(framework, x):
    def later(x):
        if remat.is_recomputing():
            raise KeyError("later")
        return framework.np.exp(framework.np.sin(x))

    with pytest.raises(KeyError, match="later"):
        framework.gradient(lambda x: framework.np.sum(remat.checkpoint(later, x)), x)
    assert not remat.is_recomputing()


def test_after_an_error_all_is_as_before(framework, x):
    def fails(x):
        raise KeyError("mine")

    def loss(x):
        return framework.np.sum(remat.checkpoint(framework.np.sin, x))

    with pytest.raises(KeyError, match="mine"):
        framework.gradient(lambda x: framework.np.sum(remat.checkpoint(lambda x: remat.checkpoint(fails, x), x)), x)
    (found,) = framework.gradient(loss, x)
    numpy.testing.assert_allclose(found, numpy.cos(framework.to_numpy(x)), rtol=1e-15)


# Functions that do not repeat themselves


@where_python_runs_each_step
def test_a_function_that_does_not_repeat_itself_is_an_error_that_names_it(framework, x):
    np, state = framework.np, Box(0)

    def counts(x):
        state.value += 1
        return np.exp(np.sin(x * state.value))

    with pytest.raises(remat.DeterminismError, match=r"counts.*float64\[5\].*relative difference"):
        framework.gradient(lambda x: np.sum(remat.checkpoint(counts, x)), x)


@where_python_runs_each_step
def test_shapes_are_compared_even_if_values_are_not(framework, x):
    np, state = framework.np, Box(0)

    def values(x):
        state.value += 1
        return np.sin(x * state.value)

    def shapes(x):
        state.value += 1
        return np.sin(x[: state.value % 2 + 2])

    framework.gradient(lambda x: np.sum(remat.drop(values, check="never")(x)), x)
    run = remat.drop(shapes, check="never", early_stop=False)
    with pytest.raises(remat.DeterminismError, match=r"float64\[\d\] and became float64\[\d\]"):
        framework.gradient(lambda x: np.sum(run(x)), x)


@where_python_runs_each_step
@pytest.mark.parametrize(("check", "error"), [("first", False), ("always", True), ("never", False)])
def test_values_are_compared_when_they_are_asked_to_be(framework, x, check, error):
    np, state = framework.np, Box(1)
    run = remat.drop(lambda x: np.exp(np.sin(x * state.value)), check=check)

    def changes(x):
        y = np.sum(run(x))
        state.value = 2
        return y

    framework.gradient(lambda x: np.sum(run(x)), x)  # the first backward through it shows that it repeats itself
    if error:
        with pytest.raises(remat.DeterminismError):
            framework.gradient(changes, x)
    else:
        framework.gradient(changes, x)


@where_python_runs_each_step
def test_two_closures_of_one_code_are_two_functions(framework, x):
    np = framework.np

    def make(state):
        return lambda x: np.sin(x * state.value)

    steady, state = make(Box(1)), Box(1)
    framework.gradient(lambda x: np.sum(remat.checkpoint(steady, x)), x)

    def loss(x):
        y = np.sum(remat.checkpoint(make(state), x))
        state.value = 2
        return y

    with pytest.raises(remat.DeterminismError):
        framework.gradient(loss, x)


# Writing


@where_python_runs_each_step
@pytest.mark.parametrize("check", ["first", "always", "never"])
def test_a_function_that_writes_into_its_input_is_an_error(framework, x, check):
    np = framework.np
    if framework.name == "numpy":
        pytest.skip("autograd makes a new array of x, which its own tests compare")

    def writes(x):
        x += 1
        return np.exp(np.sin(x))

    before = framework.to_numpy(x).copy()
    with pytest.raises(remat.StepError, match=r"writes.*written into"):
        framework.gradient(lambda x: np.sum(remat.drop(writes, check=check)(x * 1)), x)
    numpy.testing.assert_array_equal(framework.to_numpy(x), before)


@where_python_runs_each_step
def test_a_function_that_writes_into_data_is_an_error_or_gets_it_as_it_was(framework, x):
    np = framework.np
    if framework.name == "numpy":
        pytest.skip("small arrays are put back, which its own tests compare")

    def writes(x, data):
        data += 1
        return np.exp(np.sin(x * data))

    data = framework.array(numpy.ones(5))
    if framework.name == "torch":  # the recomputation gets a copy of what it was
        (found,) = framework.gradient(lambda x: np.sum(remat.checkpoint(writes, x, data)), x)
        assert numpy.array_equal(framework.to_numpy(data), 2 * numpy.ones(5))
        assert_same([found], framework.gradient(lambda x: np.sum(np.exp(np.sin(x * data))), x), last_bit(framework))
        return
    with pytest.raises((remat.StepError, remat.DeterminismError), match="writ"):
        framework.gradient(lambda x: np.sum(remat.checkpoint(writes, x, data)), x)


@where_python_runs_each_step
def test_data_that_is_written_into_before_the_backward_is_an_error(framework, x):
    np = framework.np
    data = framework.array(numpy.ones(5))

    def loss(x):
        y = np.sum(remat.checkpoint(lambda x, data: np.exp(np.sin(x * data)), x, data))
        data[0] = 3.0
        return y

    with pytest.raises((remat.StepError, remat.DeterminismError)):
        framework.gradient(loss, x)


# Results in which gradients would be lost


class Holds:
    def __init__(self, value):
        self.value = value


class Kept(dict):
    """A dict of one's own."""


def objects(value):
    made = numpy.empty(2, dtype=object)
    made[0] = value
    return made


RESULTS = {
    "object": Holds,
    "dict subclass": lambda y: Kept(y=y),
    "function": lambda y: lambda: y,
    "array of objects": objects,
    "deque": lambda y: collections.deque([y]),
}


@pytest.mark.parametrize("framework", [FRAMEWORKS["numpy"], FRAMEWORKS["jax"]], ids=["numpy", "jax"], indirect=True)
@pytest.mark.parametrize("kind", RESULTS)
def test_results_that_gradients_would_be_lost_in_are_errors(framework, x, kind):
    def fn(x):
        return RESULTS[kind](framework.np.sin(x))

    with pytest.raises(remat.StepError, match=r"gradients would be lost.*dataclasses"):
        framework.gradient(lambda x: framework.np.sum(remat.checkpoint(fn, x)), x)


# Nonsense


def test_nonsense_is_refused(framework, x):
    np = framework.np
    for call in (
        lambda: remat.checkpoint(3, x),
        lambda: remat.drop(None),
        lambda: remat.checkpoint_segment("sin", [x]),
        lambda: remat.CheckpointGroup().checkpoint_fn([x], x),
        lambda: remat.adaptive_checkpoint(None, x),
    ):
        with pytest.raises(remat.ProblemError, match="must be a function"):
            call()
    with pytest.raises(remat.ProblemError, match="check must be"):
        remat.drop(np.sin, check="sometimes")
    with pytest.raises(remat.ProblemError, match="early_stop"):
        remat.drop(np.sin, early_stop="no")
    with pytest.raises(remat.ProblemError, match="threshold"):
        remat.adaptive_checkpoint(np.sin, x, threshold="ten")
    with pytest.raises(remat.StepError, match="3 inputs"):
        remat.checkpoint_segment(lambda a, b: a, [x, x, x])
    with pytest.raises(remat.ProblemError, match="policy must be a function or its name, not 3"):
        remat.drop(np.sin, policy=3)


def test_a_result_in_the_place_of_the_function_is_answered_with_the_call_that_was_meant(framework, x):
    done = framework.np.sin(x)
    with pytest.raises(remat.ProblemError, match=r"not an array .*write remat\.checkpoint\(f, x\) for"):
        remat.checkpoint(done)
    with pytest.raises(remat.ProblemError, match=r"write remat\.adaptive_checkpoint\(f, x, threshold=10240\) for"):
        remat.adaptive_checkpoint(done, 10240)


def test_a_threshold_among_the_arguments_is_answered_with_its_place(framework, x):
    def double(x):
        return 2 * x

    for threshold in (10240, "10 KiB"):
        with pytest.raises(remat.ProblemError, match=rf"one argument too many.*threshold={threshold!r}\)"):
            remat.adaptive_checkpoint(double, x, threshold)
    scaled = remat.adaptive_checkpoint(lambda x, factor: x * factor, x, 3)  # a number that the function does take
    assert framework.to_numpy(scaled).tolist() == (3 * framework.to_numpy(x)).tolist()


@where_python_runs_each_step
def test_policies_are_for_jax(framework, x):
    with pytest.raises(remat.ProblemError, match=f"policy= is for JAX, and this runs on {framework.name}"):
        remat.drop(lambda x: framework.np.sin(x), policy="dots_saveable")(x)


@pytest.mark.parametrize(
    "option",
    [
        "use_reentrant",
        "preserve_rng_state",
        "determinism_check",
        "context_fn",
        "debug",
        "early_stop",
        "policy",
        "prevent_cse",
        "memory",
        "slots",
        "static_argnums",
    ],
)
def test_options_of_other_checkpoints_are_refused_in_words(framework, x, option):
    with pytest.raises(remat.StepError, match=f"needs no {option}="):
        remat.checkpoint(lambda x: x, x, **{option: False})
    assert remat.checkpoint(lambda x, **kwargs: kwargs, x, **{option: 1}) == {option: 1}
