"""The code blocks of a Markdown page as one program, run block by block, with the output that the page shows.

A block is plain code, as it would stand in a file, and the blocks of a page go on from each other:

- `print(plan.peak)  # -> 64` says what a line prints;
- a block of `text` right after it says what the rest of it prints;
- a block without either prints nothing.

`...` stands for anything. A block with `>>>` is a doctest. What it can miss: code in fences of another name than
`python` (`py`, `sh`) is shown and not run.
"""

import contextlib
import doctest
import io
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```\n(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"# -> (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One code block: the line of the page where its code begins, the code, and the lines that it is said to print."""

    line: int
    code: str
    output: str | None

    @property
    def is_doctest(self) -> bool:
        """Whether it is written with prompts."""
        return self.code.lstrip().startswith(">>> ")

    def expected(self) -> str:
        """What running it prints, as the page says it."""
        return "\n".join([*SHOWN.findall(self.code), *([self.output] if self.output else [])])


def blocks_of(text: str) -> list[Block]:
    """The Python blocks of a page."""
    return [Block(text.count("\n", 0, found.start(1)) + 1, *found.groups()) for found in FENCE.finditer(text)]


def as_file(blocks: list[Block]) -> str:
    """The plain blocks as one file, with the line numbers of the page."""
    text = ""
    for block in blocks:
        text += "\n" * (block.line - 1 - text.count("\n"))
        text += "\n" * block.code.count("\n") if block.is_doctest else block.code
    return text


def run(page: Path, text: str, folder: Path) -> None:
    """Run the blocks of a page as a file in the folder; an AssertionError says where one prints something else."""
    blocks = blocks_of(text)
    assert blocks, f"{page.name} has no code"
    file = folder / (re.sub(r"\W", "_", page.stem) + ".py")
    file.write_text(as_file(blocks), encoding="utf-8")  # where functions of these blocks have their source
    module = types.ModuleType(f"code_blocks_of_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # classes find theirs
    try:
        for block in blocks:
            (_run_doctest if block.is_doctest else _run_plain)(block, module, page)
    finally:
        del sys.modules[module.__name__]


def _run_plain(block: Block, module: types.ModuleType, page: Path) -> None:
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.code, str(module.__file__), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, module.__dict__)
    expected, got = (_without_trailing_space(text) for text in (block.expected(), printed.getvalue()))
    assert doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS), (
        f"{page.name}, line {block.line}: the page says that it prints\n{expected}and it prints\n{got}"
    )


def _without_trailing_space(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())


def _run_doctest(block: Block, module: types.ModuleType, page: Path) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, {}, page.name, str(page), block.line - 1)
    test.globs = module.__dict__
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
    assert result.failed == 0, "".join(report)
