"""What profiles and the checkpoint profiler see of checkpointed segments."""

import functools

import numpy
import pytest

import remat


def test_the_profiler_counts_every_checkpoint_and_what_is_not_kept(framework, profiler):
    np = framework.np
    data, weights = framework.array(numpy.ones((10, 10))), [framework.array(numpy.eye(10)) for _ in range(5)]

    def net(*weights):
        x = data
        for weight in weights:
            x = remat.checkpoint(lambda x, w: np.exp(np.sin(np.dot(x, w))), x, weight)
        return np.sum(x)

    net(*weights)
    assert profiler.checkpoint_count() == 0  # no gradient was wanted
    framework.gradient(net, *weights)
    assert profiler.checkpoint_count() == 5
    saved = profiler.memory_saved()
    if framework.name == "numpy":
        assert 5 * 2 * 800 <= saved <= 5 * (2 * 800 + 5000)  # what both functions need, and autograd's own objects
    else:
        assert saved == 5 * 800  # what the sine needs: what exp gave is the caller's
    remat.checkpoint(lambda n: n + 1, framework.array([1, 2, 3], "int64"))
    remat.checkpoint(np.sin, data)
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (5, saved)
    profiler.stop_tracking()
    framework.gradient(net, *weights)
    assert profiler.checkpoint_count() == 5
    profiler.reset_statistics()
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (0, 0)


def test_the_profiler_counts_inner_checkpoints_once_and_no_recomputation(framework, x, profiler):
    np = framework.np
    framework.gradient(lambda x: np.sum(remat.checkpoint(lambda x: remat.checkpoint(np.tanh, np.sin(x)), x)), x)
    assert profiler.checkpoint_count() == 2


def test_a_profile_sees_every_segment(framework, x):
    np = framework.np

    def inner(x):
        return np.exp(np.sin(x))

    @functools.partial(remat.drop, early_stop=False)
    def outer(x):
        return remat.checkpoint(inner, np.cos(x))

    with remat.profile() as run:
        framework.gradient(lambda x: np.sum(outer(x)), x)
    calls = [(call.what, call.framework) for call in run.calls]
    assert calls[:2] == [("drop", framework.name), ("checkpoint", framework.name)]
    passes = [(each.what, each.name.rpartition(".")[2], each.depth, each.again) for each in run.passes]
    first = [("forward", "outer", 0, False), ("forward", "inner", 1, False)]
    again = [
        ("recompute", "outer", 0, False),
        ("forward", "inner", 1, True),
        ("recompute", "inner", 1, False),
        ("pullback", "inner", 1, False),
        ("pullback", "outer", 0, False),
    ]
    assert passes == first + (again if framework.runs_python else [])  # what JAX runs of what it traced is not seen
    loaded = remat.Profile.from_json(run.to_json())
    assert loaded.passes == run.passes
    assert "checkpoint" in str(loaded)


def test_a_profile_of_segments_alone_has_a_report(framework, x, tmp_path):
    """A page, text and data have tables of it; a picture is drawn where passes are seen, with their times."""
    np = framework.np

    def net_of_mine(x):
        return np.exp(np.sin(np.cos(x)))

    with remat.profile() as run:
        framework.gradient(lambda x: np.sum(remat.checkpoint(net_of_mine, x)), x)
    for name in ("run.html", "run.txt", "run.json"):
        text = run.report(tmp_path / name).read_text()
        assert ("Passes over segments" in text) == framework.runs_python
        assert (
            "XLA does not show when a block runs" in " ".join(text.split())
        ) != framework.runs_python or ".json" in name
        assert "checkpoint at test_segment" in text
        assert "net_of_mine" in text
        assert "net_of_mine" not in remat.report(run, tmp_path / name, anonymous=True).read_text()
    if framework.runs_python:
        assert run.report(tmp_path / "run.svg").read_text().startswith("<?xml")
        return
    with pytest.raises(remat.errors.ReportError, match=r"no run of a loop to draw.* Write its tables as \.html"):
        run.report(tmp_path / "run.svg")


def test_equal_functions_are_blocks_of_their_own(framework, tmp_path):
    """Each call has its bytes, and the tensors that its backward needs have the lines of their ops."""
    np = framework.own  # not a function of the tests around one of the framework, which would have the line
    weights = [framework.array(numpy.eye(20) / 2) for _ in range(3)]
    data = framework.array(numpy.ones((30, 20)))

    def block(x, w):
        h = np.tanh(x @ w)
        return x + h * np.exp(h)

    def net(*weights):
        x = data
        for weight in weights:
            x = remat.checkpoint(block, x, weight)
        return (x * x).sum()

    with remat.profile() as run:
        for _ in range(2):
            framework.gradient(net, *weights)
    text = run.report(tmp_path / "run.txt").read_text()
    contents = {call.contents.name.rpartition(".")[2]: call.contents for call in run.calls}
    assert list(contents) == ["block", "block (2)", "block (3)"]
    assert len({each.dropped for each in contents.values()}) == 1
    line = block.__code__.co_firstlineno
    places = {f"test_segment_profile.py:{line + offset}" for offset in (1, 2)}
    assert [{tensor.line for tensor in each.tensors} for each in contents.values()] == [places] * 3
    assert {tensor.shape for tensor in contents["block"].tensors} == {(30, 20)}
    assert all(name in text for name in contents)
    assert f"test_segment_profile.py:{line + 2}" in text


def test_a_chain_is_in_its_profile_also_if_nothing_is_recomputed(framework, x, tmp_path):
    np = framework.np
    everything = remat.plan(remat.Chain([remat.Stage()] * 3), memory=100)
    with remat.profile() as run:
        framework.gradient(lambda x: np.sum(remat.chain([np.sin] * 3, x, plan=everything)), x)
    assert [(call.what, call.framework, call.steps) for call in run.calls][:1] == [("chain", framework.name, 3)]
    assert "chain at test_segment" in run.report(tmp_path / "run.txt").read_text()


def test_the_profiler_counts_loops_too(framework, profiler):
    np = framework.np
    start = framework.array(numpy.ones(500) / 2)

    def loop(x, **budget):
        return np.sum(remat.scan(lambda x, _: (np.sin(x) * x, None), x, length=200, **budget)[0])

    loop(start, memory="400 KiB")
    assert profiler.checkpoint_count() == 0  # no gradient was wanted
    framework.gradient(lambda x: loop(x, memory="400 KiB"), start)
    assert profiler.checkpoint_count() == 1
    saved = profiler.memory_saved()
    assert saved > 200 * 8 * 500 - 400 * 1024  # at the least a state a step, of which the plan holds 400 KiB
    framework.gradient(lambda x: loop(x, slots=10), start)  # which knows no sizes
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (2, saved)
