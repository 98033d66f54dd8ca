"""Pages of the site that follow from the code: the reference, from `remat.__all__`, and one page for each example.

In: the files of `docs/`. Out: the same with these pages, in the navigation too, and with links to files of the
repository turned to pages of the site. A page of `docs/` that mkdocs.yml does not name is put at the end of "How do I".
What it can miss: a link to a file outside of `docs/` and `examples/` is shown as text, since the site does not have it.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
INIT = (ROOT / "src/remat/__init__.py").read_text(encoding="utf-8")
TITLES = {
    "plan": "Plan",
    "loops": "Loops",
    "segments and chains": "Blocks and networks",
    "see": "See",
    "modules with the rest": "Modules with the rest",
}
FIRST = {"plan", "scan", "while_loop", "checkpoint", "auto_checkpoint", "profile", "report"}  # what one looks for
RESULTS = {"see": ["Profile", "Schedule"]}  # classes that one is given, and need not import
MODULES = {"diffrax": "remat.layers.diffrax", "keras": "remat.layers.keras"}  # wrappers, which remat.* finds by name


def public_names() -> dict[str, list[str]]:
    """The names in `remat.__all__`, by the comments that group them."""
    text = INIT.partition("__all__ = [")[2].partition("\n]")[0]
    groups: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        if found := re.match(r"\s+# (.*)", line):
            names = groups.setdefault(found[1], [])
        elif found := re.match(r'\s+"([A-Za-z]\w*)"', line):
            names.append(found[1])
    return groups


def definition(name: str) -> str:
    """The path of a public name's definition: of `plan` and others there are modules of the same name, too."""
    homes = ast.literal_eval(INIT.partition("_HOMES = ")[2].partition("\n}")[0] + "\n}")
    home = next((home for home, names in homes.items() if name in names.split()), "")
    for path in sorted((ROOT / "src").glob(f"remat/{home}/**/*.py")) if home else ():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts) + f".{name}"
    return f"remat.{name}"


def entry(name: str) -> str:
    """A name's entry in the reference."""
    return f'::: {definition(name)}\n    options:\n      heading: "remat.{name}"\n      toc_label: {name}\n'


def reference() -> dict[str, tuple[str, str]]:
    """Path, title and text of each page of the reference."""
    pages = {}
    for group, names in public_names().items():
        title, names = TITLES.get(group, group.capitalize()), [*names, *RESULTS.get(group, ())]
        entries = "\n".join(entry(name) for name in sorted(names, key=lambda name: name not in FIRST))
        pages[f"reference/{group.replace(' ', '-')}.md"] = (
            title,
            f"# Reference: {title[0].lower() + title[1:]}\n\n{entries}",
        )
    layers = [name for name in MODULES.values() if list((ROOT / "src").glob(f"{name.replace('.', '/')}*"))]
    text = "# Reference: other libraries\n\n" + "\n".join(f"::: {name}\n" for name in layers)
    return pages | {"reference/other-libraries.md": ("Other libraries", text)}


def example(path: Path) -> str:
    """The page of an example: what it says of itself, and its source."""
    source = path.read_text(encoding="utf-8")
    said = (ast.get_docstring(ast.parse(source)) or path.stem).partition("Run it:")[0]
    title, _, rest = said.partition("\n\n")
    return f"# {title.strip().rstrip('.')}\n\n{rest}\n\n`python examples/{path.name}`\n\n```python\n{source}```\n"


def notebook(path: Path) -> str:
    """The page of a notebook: its cells, with what they printed and drew."""
    text = ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        text += f"{source}\n\n" if cell["cell_type"] == "markdown" else f"```python\n{source}\n```\n\n"
        for output in cell.get("outputs", ()):
            picture = "".join(output.get("data", {}).get("image/svg+xml", ()))
            printed = "".join(output.get("text", output.get("data", {}).get("text/plain", ())))
            drawn = picture.partition("?>")[2].replace("\n", "")
            text += f"<div>{drawn}</div>\n\n" if drawn else f"```text\n{printed.rstrip()}\n```\n\n"
    return text


def on_config(config: Any) -> Any:
    """Put the reference, and pages that nobody named, into the navigation."""
    named = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    others = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    questions = next(section for section in config.nav if "How do I …" in section)
    questions["How do I …"] += others
    config.nav.append({"Reference": [{title: path} for path, (title, _) in reference().items()]})
    config.not_in_nav = config.not_in_nav or _pathspec("examples/*")
    return config


def _pathspec(pattern: str) -> Any:
    from mkdocs.config.config_options import PathSpec

    return PathSpec().run_validation(pattern)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the reference and of the examples."""
    for path, (_, text) in reference().items():
        files.append(File.generated(config, path, content=text))
    for path in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=example(path)))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, f"examples/{path.stem}-notebook.md", content=notebook(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to examples lead to their pages, those to other files of the repository become text."""
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.ipynb\)", r"](examples/\1-notebook.md)", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)


def on_post_build(config: Any) -> None:
    """Remove the page for missing addresses, whose links are those of a server: the site is read from files."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)
