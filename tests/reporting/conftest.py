"""A headless browser for the tests of the page; without one they are skipped, and say so."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("NO BROWSER: the page is not tested. Install Debian's chromium, or set CHROMIUM to one")
    playwright = pytest.importorskip("playwright.sync_api", reason="NO PLAYWRIGHT: the page is not tested in a browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page in the browser, offline; what went wrong or was asked for is noted."""

    def __init__(self, context, path):
        self.trouble, self.requests = [], []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("section.view[data-ready=yes]", timeout=20_000)

    def settled(self):
        """Let the page draw what is due."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return self

    def colours(self, selector):
        """How many pixels of a canvas have which colour, as (red, green, blue)."""
        code = """selector => {
          const canvas = document.querySelector(selector);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const counts = {};
          for (let i = 0; i < data.length; i += 4) {
            if (data[i + 3] < 255) continue;
            const key = data[i] + "," + data[i + 1] + "," + data[i + 2];
            counts[key] = (counts[key] || 0) + 1;
          }
          return counts;
        }"""
        found = self.settled().page.evaluate(code, selector)
        return {tuple(map(int, key.split(","))): count for key, count in found.items()}

    def picture(self, selector):
        """A canvas as text, to see whether it has changed."""
        return self.settled().page.evaluate("selector => document.querySelector(selector).toDataURL()", selector)


@pytest.fixture
def open_page(browser):
    contexts = []

    def opened(path, width=1100, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        return Opened(context, path)

    yield opened
    for context in contexts:
        context.close()
