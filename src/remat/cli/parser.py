"""The parser of the command line: help ends with an example, and mistyped words get a suggestion.

Usage errors end the program with exit status 2.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

__all__ = ["Parser", "did_you_mean", "refuse_unknown_words"]


class Parser(argparse.ArgumentParser):
    """A parser whose help ends with an example."""

    def __init__(self, *, example: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epilog = f"example: {example}" if example else None

    def fail(self, message: str) -> NoReturn:
        """Exit with status 2 and a message without the usage, which would push the message out of sight."""
        self.exit(2, f"{self.prog}: {message}. See: {self.prog} --help\n")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that suggests the most similar known word; empty if none is similar."""
    close = get_close_matches(word, [*known], 1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def refuse_unknown_words(parser: Parser, commands: dict[str, Parser], words: Sequence[str]) -> None:
    """Exit with a suggestion for a command or an option that does not exist.

    argparse would first complain about missing required arguments, one of which the mistyped word may have been. No
    value of an option starts with two dashes, since argparse accepts none, so every such word is meant as an option.
    """
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in commands:
        parser.fail(f"there is no command {command[:40]!r}{did_you_mean(command, commands) or _list(commands)}")
    chosen = commands.get(command or "", parser)
    known = re.findall(r"(?<![\w-])--[a-z][a-z-]*", chosen.format_usage() + " --help --version")
    for word in words:
        if word == "--":
            return
        name = word.partition("=")[0]
        if name.startswith("--") and not any(option.startswith(name) for option in known):
            chosen.fail(f"there is no option {name[:40]}{did_you_mean(name, known)}")


def _list(names: Iterable[str]) -> str:
    return f"; there are {', '.join(names)}"
