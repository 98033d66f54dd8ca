"""The site of the documentation is built strictly, and a browser walks it: no broken link, no error, no network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is in the group docs: make docs installs it")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is in the group docs: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_has_its_place_in_the_reference(site):
    import remat

    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    headings = [re.sub("<[^>]*>|\\s", "", found) for found in re.findall(r"<h2[^>]*>(.*?)</h2>", text, re.DOTALL)]
    names = [f"remat.{name}" for name in remat.__all__ if not name.startswith("_")]
    assert not [name for name in names if not any(heading.startswith(name) for heading in headings)]
    tables = re.findall(r'<h2 id="remat.planners.planning.plan".*?<h2', text, re.DOTALL)
    assert tables
    assert all("<table>" in each for each in tables), "the function has its arguments, not the module of its name"
    assert re.search(r'class="nf">scan</span><span class="p">\(</span>\n', text), "a long signature has several lines"


def test_a_browser_finds_no_broken_link_and_no_error(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no chromium here")
    with (
        sync_api.sync_playwright() as play,
        play.chromium.launch(executable_path=executable, args=["--no-sandbox"]) as browser,
    ):
        page, errors = browser.new_page(viewport={"width": 390, "height": 800}), []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or errors.append(request.url))
        for path in sorted(site.rglob("*.html")):
            if path.name == "404.html":  # its links are those of a server
                continue
            page.goto(path.as_uri())
            targets = page.eval_on_selector_all("a[href], img[src]", "all => all.map(each => each.href || each.src)")
            for target in {target.partition("#")[0].removeprefix("file://") for target in targets}:
                assert target.startswith("http") or Path(target).exists(), f"{path.name}: {target}"
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, f"{path.name} is {wide} pixels wide on a phone"
        assert not errors


def test_the_pictures_are_drawn_by_their_script(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import draw_pictures, pathlib, sys; draw_pictures.main(pathlib.Path(sys.argv[1]))",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT / "docs",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    by_benchmark = {"gpt-budgets.svg"}  # torch_chains.py draws it, on a GPU
    assert drawn.keys() == {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")} - by_benchmark
    assert all("<svg" in picture and "peak" in picture for picture in drawn.values())
