"""A failing program, made shorter: written again without as many of its features as can be left out."""

from collections.abc import Callable

from tests.random_programs.verdict import Program, Verdict


def shrunk(
    write: Callable[[int, frozenset[str]], Program],
    seed: int,
    judge: Callable[[Program], Verdict],
    without: frozenset[str] = frozenset(),
) -> Program:
    """The shortest program of this seed that fails in the same way."""
    program = write(seed, without)
    word = judge(program).word
    again = True
    while again:
        again = False
        for feature in sorted(program.features):
            shorter = write(seed, without | {feature})
            if len(shorter.features) < len(program.features) and judge(shorter).word == word:
                program, without, again = shorter, without | {feature}, True
                break
    return program
