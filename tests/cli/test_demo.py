"""`remat demo`: the main job, small enough for a test."""

import pytest

from remat.cli import main

SMALL = ["--steps", "40", "--hidden", "6", "--batch", "3", "--iterations", "2", "--memory", "300 KiB"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_trains_compares_and_writes_a_page(here, capsys):
    assert main(["demo", *SMALL]) == 0
    out, err = capsys.readouterr()
    for word in ("loss after 2 gradients", "equal", "peak memory", "planned", "done", "claim", "mixed", "median of 2"):
        assert word in out
    assert "wrote remat-demo.html" in err
    assert "next:" in err
    page = (here / "remat-demo.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "peak memory" in page
    assert "Who is live at the peak" in page
    assert "http://" not in page
    assert "https://" not in page
    assert 'id="remat-data"' in page


def test_the_demo_does_not_write_over_a_file_unless_told_to(here, capsys):
    own = here / "remat-demo.html"
    own.write_text("something of mine")
    assert main(["demo", *SMALL]) == 2
    assert "--force" in capsys.readouterr().err
    assert own.read_text() == "something of mine"
    assert main(["demo", *SMALL, "--force", "--iterations", "1"]) == 0
    assert "<!doctype html>" in own.read_text()


def test_times_are_medians_of_runs_in_turns():
    from remat.cli.timing import Times, interleaved

    order = []
    times = interleaved([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert "".join(order) == "ababab"
    assert [len(each.seconds) for each in times] == [3, 3]
    assert str(Times((0.5, 8.0, 1.25))) == "1.25 s (median of 3, 500 ms to 8 s)"


def test_too_little_memory_says_how_much(here, capsys):
    assert main(["demo", *SMALL[:-1], "1 KiB"]) == 1
    assert "smallest that works" in capsys.readouterr().err


def test_numbers_that_make_no_sense(here, capsys):
    assert main(["demo", "--steps", "0"]) == 2
    assert "--steps" in capsys.readouterr().err
    assert main(["demo", "--steps", "100000"]) == 2
    assert "characters" in capsys.readouterr().err
    assert main(["demo", *SMALL[:-1], "lots"]) == 2
    assert not (here / "remat-demo.html").exists()


def test_both_ways_give_the_same_losses_and_gradients():
    import numpy
    from autograd import value_and_grad

    from remat.cli.demo.model import CharModel

    model = CharModel(60, 5, 2)
    value, gradient = value_and_grad(model.plain_loss)(model.params)
    other, found = value_and_grad(lambda p: model.scan_loss(p, memory="200 KiB"))(model.params)
    assert other == pytest.approx(value, rel=1e-14)
    for key in gradient:
        numpy.testing.assert_allclose(found[key], gradient[key], rtol=1e-11, atol=1e-14)
