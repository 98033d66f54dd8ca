"""The page in a real browser, from a file, with the network off."""

import re

import autograd.numpy as np
import pytest
from autograd import grad

import remat
from remat.schedule import Trace
from remat.schedule.events import Live, Totals
from remat.schedule.trace_columns import Columns
from remat.units import bytes_text

STATE, TAPE = (0, 0x72, 0xB2), (0xE6, 0x9F, 0)
FORWARD, RECOMPUTE, BACKWARD = (0x56, 0xB4, 0xE9), (0xD5, 0x5E, 0), (0xCC, 0x79, 0xA7)
CHART, STAIRS = "canvas.chart", "canvas.stairs"


@pytest.fixture(scope="module")
def plan():
    return remat.plan(remat.Loop(200, state="1 MiB", tape="9 MiB"), "64 MiB")


@pytest.fixture(scope="module")
def path(plan, tmp_path_factory):
    return plan.report(tmp_path_factory.mktemp("page") / "plan.html", tradeoff=True)


def test_it_opens_offline_without_a_word_of_trouble_and_draws(open_page, path):
    opened = open_page(path)
    assert opened.trouble == []
    assert opened.requests == [path.resolve().as_uri()]
    chart, stairs = opened.colours(CHART), opened.colours(STAIRS)
    assert chart[STATE] > 5000
    assert chart[TAPE] > 5000
    assert opened.colours("canvas.map")[TAPE] > 500
    assert stairs[STATE] > 100
    assert {FORWARD, RECOMPUTE, BACKWARD} <= set(stairs)


def test_the_answers_can_be_read(open_page, path, plan):
    text = open_page(path).page.inner_text("body")
    trace = plan.simulate()
    assert "What is the peak?\n\n64 of 64 MiB" in re.sub(r"\n+", "\n\n", text)
    assert bytes_text(trace.peak) == "64 MiB"
    assert f"op {trace.totals.peak_index + 1:,} of {trace.totals.ops:,}" in text
    assert f"{trace.recomputed:,} steps" in text
    assert "more would remove" in text
    assert "kept states" in text


def test_hovering_says_which_op_and_what_is_live(open_page, path, plan):
    opened = open_page(path)
    events = list(plan.simulate())
    box = opened.page.locator(CHART).bounding_box()
    seen = set()
    for share in (0.2, 0.5, 0.9):
        opened.page.mouse.move(box["x"] + share * box["width"], box["y"] + 100)
        text = opened.settled().page.inner_text(".stage .tip")
        number = int(re.match(r"op ([\d,]+) of", text)[1].replace(",", ""))
        event = events[number - 1]
        assert f"live {bytes_text(event.live.total())} = states {bytes_text(event.live.state['ram'])}" in text
        seen.add(number)
    assert len(seen) == 3
    opened.page.mouse.move(5, 5)
    assert opened.settled().page.locator(".stage .tip").first.is_hidden()


def test_wheel_drag_buttons_and_keys_move_the_chart(open_page, path):
    opened = open_page(path)
    page, whole = opened.page, opened.picture(CHART)
    box = page.locator(CHART).bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 100)
    page.mouse.wheel(0, -400)
    page.mouse.move(5, 5)
    zoomed = opened.picture(CHART)
    assert zoomed != whole
    page.mouse.move(box["x"] + 500, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 100, steps=4)
    page.mouse.up()
    page.mouse.move(5, 5)
    assert opened.picture(CHART) not in (zoomed, whole)
    page.get_by_role("button", name="Show all").click()
    assert opened.picture(CHART) == whole
    page.locator(CHART).focus()
    page.keyboard.press("+")
    closer = opened.picture(CHART)
    assert closer != whole
    page.keyboard.press("ArrowRight")
    assert opened.picture(CHART) != closer
    page.keyboard.press("0")
    assert opened.picture(CHART) == whole
    page.keyboard.press("p")
    assert opened.picture(CHART) != whole
    page.locator("select.axis").select_option("count")
    assert opened.picture(CHART) != whole
    assert opened.trouble == []


def test_the_peak_of_a_long_range_is_where_p_goes(open_page, tmp_path):
    plan = remat.plan(remat.Loop(200, state=1000, tape=9000), "10 MiB")
    opened = open_page(plan.report(tmp_path / "all.html"))
    opened.page.locator(CHART).focus()
    opened.page.keyboard.press("p")
    opened.page.mouse.move(5, 5)
    middle = """() => { const canvas = document.querySelector("canvas.chart"), pen = canvas.getContext("2d");
      const x = 84 + (canvas.width - 96) / 2, data = pen.getImageData(x - 6, 20, 12, 30).data;
      let dark = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255 && data[i] < 60 && data[i + 2] < 60) dark++;
      return dark; }"""
    assert opened.settled().page.evaluate(middle) > 20  # the dot at the peak is in the middle
    assert opened.page.inner_text(".readout").startswith("op 1 of 3")


def test_a_rounded_column_is_exact_at_the_peak(open_page, tmp_path):
    import random

    rng, columns = random.Random(0), Columns("ram")
    for event in remat.plan(remat.Loop(5_000), slots=60).simulate():
        columns.append(event.op, rng.lognormvariate(-7, 1), Live("ram", {"ram": rng.randrange(47_000)}, 0, 0))
    trace = Trace(5_000, "ram", Totals.of(columns), columns, lambda _: (), measured=True)
    assert trace.totals.ops > 25_000
    opened = open_page(trace.report(tmp_path / "x.html"))
    opened.page.locator(CHART).focus()
    opened.page.keyboard.press("p")
    assert f"live {bytes_text(trace.peak)} =" in opened.settled().page.inner_text(".readout")


def test_everything_can_be_reached_by_tab(open_page, path):
    page = open_page(path).page
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.className + document.activeElement.tagName"))
    assert {"chartCANVAS", "stairsCANVAS", "replayINPUT", "playBUTTON", "axisSELECT"} <= reached
    unnamed = (
        "[...document.querySelectorAll('canvas[tabindex], input, button, select')].filter(e => !(e.ariaLabel || "
        "e.textContent || e.labels?.length || e.getAttribute('aria-label'))).length"
    )
    assert page.evaluate(unnamed) == 0


def test_the_slider_replays_the_schedule(open_page, path, plan):
    opened = open_page(path)
    page, ops = opened.page, plan.schedule.ops()
    end = opened.picture(STAIRS)
    move = """value => {
      const slider = document.querySelector("input.replay");
      slider.value = value;
      slider.dispatchEvent(new Event("input"));
    }"""
    page.evaluate(move, 40)
    assert opened.picture(STAIRS) != end
    assert page.inner_text(".readout").startswith(f"op 41 of {len(ops)}: ")
    page.locator("input.replay").focus()
    page.keyboard.press("ArrowRight")
    assert opened.settled().page.inner_text(".readout").startswith("op 42 of")
    page.get_by_role("button", name="previous op").click()
    assert opened.settled().page.inner_text(".readout").startswith("op 41 of")
    page.evaluate(move, 0)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("Number(document.querySelector('input.replay').value) > 3")
    page.get_by_role("button", name="Pause").click()
    assert opened.trouble == []


def test_light_and_dark(open_page, path, tmp_path):
    pictures = {}
    for scheme in ("light", "dark"):
        opened = open_page(path, scheme=scheme)
        opened.page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
        back = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        pictures[scheme] = sum(map(int, re.findall(r"\d+", back)))
        ink = opened.page.evaluate("getComputedStyle(document.body).color")
        assert abs(sum(map(int, re.findall(r"\d+", ink))) - pictures[scheme]) > 400  # it can be read
        assert opened.trouble == []
    assert pictures["light"] > 700
    assert pictures["dark"] < 150


@pytest.mark.parametrize("kind", ["plan", "compare", "names"])
def test_a_phone_needs_no_scrolling_sideways(open_page, path, plan, tmp_path, kind):
    if kind == "compare":
        path = remat.report(plan, plan.simulate(), plan, tmp_path / "three.html")
    elif kind == "names":
        path = remat.report(plan, plan, tmp_path / "long.html", title="t" * 300, labels=["/very/long" * 30, "x" * 300])
    opened = open_page(path, width=390)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.colours(CHART)[STATE] > 1000


@pytest.mark.parametrize("width", [1400, 390])
def test_the_liveness_chart_is_above_the_fold(open_page, path, width):
    box = open_page(path, width=width).page.locator(CHART).bounding_box()
    assert box["y"] + box["height"] < 900


def test_states_in_other_levels_are_drawn_and_wide_tables_scroll_by_themselves(open_page, tmp_path):
    memory = remat.Memory(levels=[remat.Level("gpu", slots=3), remat.Level("host", read=1e-9, write=1e-9)])
    planned = remat.plan(remat.Loop(40, state="1 MiB", tape="9 MiB"), memory)
    opened = open_page(planned.report(tmp_path / "levels.html"), width=390)
    assert opened.colours("canvas.levels")[0x4C, 0x78, 0xA8] > 500
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = "[...document.querySelectorAll('.scroll[tabindex]')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert opened.page.evaluate(wide) >= 1
    assert opened.trouble == []


def test_names_do_nothing(open_page, tmp_path):
    evil = "</script><img src=x onerror='window.hacked = 1'><script>window.hacked = 2</script>"
    chain = remat.Chain([remat.Stage(name=evil, tape=50), remat.Stage(name=evil)])
    trace = remat.simulate(remat.Schedule.parse("record 0 2; turn; pullback 2 0"), chain)
    opened = open_page(remat.report(trace, tmp_path / "evil.html", title=evil, labels=[evil]))
    box = opened.page.locator(CHART).bounding_box()
    opened.page.mouse.move(box["x"] + 400, box["y"] + 100)
    opened.settled()
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("img").count() == 0
    assert evil in opened.page.inner_text("body")
    assert opened.trouble == []


def spiked(count=100_000, at=61_234):
    """A trace of very many events of which a single one is large."""
    columns = Columns("ram")
    for i in range(count):
        op = (remat.Keep(1, "ram"), remat.Drop(1, "ram"))[i % 2]
        columns.append(op, 1e-3, Live("ram", {"ram": 10**9 if i == at else 10**8}, 0, 0))
    return Trace(10, "ram", Totals.of(columns), columns, lambda _: (("state 1", "ram", 10**9),), measured=True)


@pytest.mark.parametrize("count", [100_000, pytest.param(300_000, marks=pytest.mark.full)])
def test_a_single_large_event_among_very_many_is_seen(open_page, tmp_path, count):
    trace = spiked(count)
    opened = open_page(trace.report(tmp_path / "spike.html"))
    top = """() => {
      const { width, height } = document.querySelector("canvas.chart");
      const pen = document.querySelector("canvas.chart").getContext("2d");
      const data = pen.getImageData(0, 0, width, height).data;
      for (let y = 0; y < height; y++) for (let x = 88; x < width - 14; x++) {
        const i = 4 * (y * width + x);
        if (data[i] === 0 && data[i + 1] === 0x72 && data[i + 2] === 0xb2) return [x, y, width, height];
      }
    }"""
    x, y, width, height = opened.settled().page.evaluate(top)
    assert y < 0.2 * height  # as high as the chart goes
    assert x == pytest.approx(84 + 61_234 / count * (width - 96), abs=3)
    assert bytes_text(trace.peak) in opened.page.inner_text("dl.card")
    opened.page.locator(CHART).focus()
    for _ in range(5):
        opened.page.keyboard.press("+")
    opened.page.keyboard.press("p")
    assert f"op {61_234 + 1:,} of {count:,}" in opened.settled().page.inner_text(".readout")
    assert opened.trouble == []


def test_a_measured_run_shows_prediction_and_allocator(open_page, tmp_path):
    w = np.eye(30) / 2

    def loss(w):
        return np.sum(remat.scan(lambda h, _: (np.tanh(np.dot(h, w)), None), np.ones((20, 30)), length=80, slots=9)[0])

    with remat.profile(memory=True) as run:
        grad(loss)(w)
    opened = open_page(run.report(tmp_path / "run.html"))
    text = opened.page.inner_text("body")
    assert "Predicted and measured" in text
    assert "allocated, as the allocator says" in text
    assert "test_browser.py" in text
    before = opened.picture(CHART)
    opened.page.locator("input.always").check()
    assert opened.picture(CHART) != before
    assert opened.trouble == []


def test_a_comparison_has_a_chart_for_each(open_page, tmp_path, plan):
    opened = open_page(remat.report(plan, plan.simulate(), tmp_path / "two.html", labels=("first", "second")))
    assert opened.page.locator("section.view[data-ready=yes]").count() == 2
    assert "Side by side" in opened.page.inner_text("body")
    assert opened.trouble == []
