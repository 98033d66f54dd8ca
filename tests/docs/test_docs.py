"""Every code block of the documentation runs and prints what it says."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def quick(page):
    """XLA compiles quickly on the page of JAX, where compiling is what takes the time."""
    if "jax" not in page.name:
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what they write goes there
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    assert test.examples
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_modules_that_are_named_are_there():
    for page in (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "glossary.md"):
        for name in re.findall(r"`(?:src/remat/)?([a-z_/*]+(?:/|\.py))`", page.read_text(encoding="utf-8")):
            anywhere = list((ROOT / "src" / "remat").glob(f"**/{name.rstrip('/')}"))
            assert anywhere or (ROOT / name).exists(), f"{page.name}: {name}"


def test_the_tree_of_contributing_is_the_tree():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.partition("src/remat/\n")[2].partition("tests/  ")[0]
    named = {name.rstrip("/") for name in re.findall(r"^  (\w\S*)", tree, re.MULTILINE)}
    packages = {
        path.name for path in (ROOT / "src" / "remat").iterdir() if path.suffix == ".py" or any(path.glob("*.py"))
    }
    assert named == packages - {"__pycache__", "__main__.py", "version.py"}
