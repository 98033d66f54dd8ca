"""What a profile lists of the tape of a loop's step: op, shape, bytes and the line of the user's code."""

import sys

import numpy
import pytest

import remat


def gate(np, h):
    return np.exp(h) * h


@pytest.fixture
def run(framework):
    """A profile of a loop whose tape is mostly one array; and the line of its step."""
    np, w = framework.own, framework.array(numpy.eye(10) / 2)
    wide = framework.array(numpy.ones((10, 400)))

    def loss(w, wide, x):
        def step(h, _):
            h = np.tanh(h @ w)
            h = h + np.exp(h @ wide).sum(-1)[:, None] * 1e-6
            return h + gate(np, h), None

        loss.line = step.__code__.co_firstlineno
        return remat.scan(step, x, length=12, slots=3, **framework.any_plan)[0].sum()

    with remat.profile() as run:
        framework.gradient(loss, w, wide, framework.array(numpy.ones((10, 10)) / 3))
    return run, loss.line


def test_the_tensors_of_a_step_have_their_lines(framework, run):
    profile, line = run
    tape = profile.calls[0].tape
    assert tape.steps == 1
    assert tape.bytes == sum(each.bytes for each in tape.tensors)
    assert [each.bytes for each in tape.tensors] == sorted((each.bytes for each in tape.tensors), reverse=True)
    top = tape.tensors[0]
    assert (top.shape, top.dtype, top.bytes) == ((10, 400), "float64", 32000)
    assert top.op.lower() == "exp"
    assert top.line == f"test_tape_contents.py:{line + 2}"
    lines = {each.line for each in tape.tensors}
    assert f"test_tape_contents.py:{line + 1}" in lines  # of the hyperbolic tangent
    assert f"test_tape_contents.py:{gate.__code__.co_firstlineno + 1}" in lines
    assert lines - {""} <= {f"test_tape_contents.py:{at}" for at in range(gate.__code__.co_firstlineno, line + 4)}


def test_the_tape_of_a_step_takes_what_was_measured(framework, run):
    """What is listed is what the recorder counts, but for autograd's own objects."""
    call = run[0].calls[0]
    recorded = next(event.live.tape for event in call.trace if event.live.tape)
    if framework.name == "numpy":
        assert 0.5 * recorded < call.tape.bytes <= recorded
    else:
        assert call.tape.bytes == recorded


def test_a_report_lists_it_with_a_tip_and_without_names_if_asked(run, tmp_path):
    profile, line = run
    for name in ("run.html", "run.txt"):
        text = " ".join(remat.report(profile, tmp_path / name).read_text().split())
        assert "What is inside the tape of one step" in text
        assert f"test_tape_contents.py:{line + 2}" in text
        assert "of a step's tape" in text.replace("&#x27;", "'")
        hidden = remat.report(profile, tmp_path / name, anonymous=True).read_text()
        assert "What is inside the tape of one step" in hidden
        assert "test_tape_contents.py" not in hidden
    loaded = remat.Profile.from_json(profile.to_json())
    assert loaded.calls[0].tape == profile.calls[0].tape


def test_no_trace_function_is_left_and_that_of_others_stays(framework):
    np = framework.np

    def gradient():
        with remat.profile() as run:
            framework.gradient(
                lambda x: np.sum(
                    remat.scan(lambda h, _: (np.sin(h), None), x, length=5, slots=2, **framework.any_plan)[0]
                ),
                framework.array([0.5]),
            )
        return run.calls[0].tape

    before = sys.gettrace()
    sys.settrace(None)
    try:
        assert gradient().tensors
        assert sys.gettrace() is None
        others = lambda *_: None  # noqa: E731
        sys.settrace(others)
        assert gradient().tensors
        assert sys.gettrace() is others
    finally:
        sys.settrace(before)
