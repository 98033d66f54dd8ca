"""Every code block of the documentation runs and prints what it says."""

import importlib.util
import re
from pathlib import Path

import pytest
from tests.docs.code_blocks import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]


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
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    if "keras" in page.name and importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    monkeypatch.chdir(tmp_path)  # what they write goes there
    run(page, page.read_text(encoding="utf-8"), tmp_path)


PLAIN = """
```python
import inspect
def double(x):
    return 2 * x
print(double(2))  # -> 4
print([double(x) for x in range(50)])  # -> [0, 2, ...]
```

```python
print(inspect.getsource(double))
```

```text
def double(x):
    return 2 * x

```

```python
>>> double(3)
6

```
"""


def test_a_page_mixes_plain_code_with_doctests(tmp_path):
    run(ROOT / "a-page.md", PLAIN, tmp_path)
    assert "print(double(2))" in (tmp_path / "a_page.py").read_text()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("# -> 4", "# -> 5"), ("# -> 4", ""), ("    return 2 * x\n\n```", "```"), ("6\n", "7\n"), ("import inspect", "")],
)
def test_a_page_that_says_something_else_fails(right, wrong, tmp_path):
    with pytest.raises((AssertionError, NameError)):
        run(ROOT / "a-page.md", PLAIN.replace(right, wrong), tmp_path)


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
