"""The page of a long trace: how large it is, how long it takes to write, to open and to answer.

Run it: python benchmarks/report_page.py [folder]. It needs playwright and chromium for the part in the browser.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import remat
from remat.schedule import Trace
from remat.schedule.events import Totals
from remat.schedule.trace_columns import Columns

SHAPES = ((1_000, 31), (16_700, 100), (100_000, 100))


def measured(plan):
    """The plan's trace with times as a real run has them: no two alike, and what an allocator would say."""
    rng, columns = random.Random(0), Columns("ram")
    for event in plan.simulate():
        allocated = int(event.live.total() * rng.uniform(1.0, 1.05))
        columns.append(event.op, (event.seconds + 0.01) * rng.lognormvariate(0, 0.2), event.live, allocated)
    totals = Totals.of(columns)
    return Trace(plan.problem.units, "ram", totals, columns, lambda _: (), measured=True)


def in_browser(path):
    """Milliseconds until the page can be used, of one zoom, and of one hover."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        return None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True, viewport={"width": 1200, "height": 900}).new_page()
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("section.view[data-ready=yes]")
        ready = page.evaluate("performance.now()")
        frame = """key => new Promise(done => { const began = performance.now();
          document.querySelector("canvas.chart").dispatchEvent(new KeyboardEvent("keydown", { key }));
          requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began))); })"""
        times = [page.evaluate(frame, key) for key in "+-+-+"]
        browser.close()
    return ready, sorted(times)[2]


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    print(f"{'steps':>8} {'events':>9} {'kind':>10} {'kB':>6} {'written':>8} {'usable after':>13} {'a zoom':>8}")
    for steps, slots in SHAPES:
        plan = remat.plan(remat.Loop(steps, state=4096, tape=30_000), slots=slots)
        for kind, trace in (("simulated", plan.simulate()), ("measured", measured(plan))):
            path, began = folder / f"{kind}-{steps}.html", time.perf_counter()
            trace.report(path)
            seconds = time.perf_counter() - began
            answer = in_browser(path)
            shown = "no browser" if answer is None else f"{answer[0]:>10.0f} ms {answer[1]:>5.0f} ms"
            size = path.stat().st_size / 1000
            print(f"{steps:>8,} {trace.totals.ops:>9,} {kind:>10} {size:>6.0f} {seconds:>6.1f} s {shown}")


if __name__ == "__main__":
    main()
