"""`python -m tests.random_programs`: many random programs, and the seeds of those that fail."""

import argparse
import collections
import importlib
import sys
import time

from tests.random_programs.shrink import shrunk
from tests.random_programs.verdict import Verdict, judge

FRAMEWORKS = ("torch", "numpy", "jax", "loops")  # loops: plain ones, on NumPy and PyTorch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--show", action="store_true", help="print the programs, shortened where they fail")
    parser.add_argument("--whole", action="store_true", help="print them as they are")
    parser.add_argument("--without", default="", help="features to leave out, with commas between them")
    options = parser.parse_args()
    without = frozenset(filter(None, options.without.split(",")))
    import remat

    room = importlib.import_module(f"tests.random_programs.{options.framework}_program")
    plain = importlib.import_module(f"tests.random_programs.{options.framework}_runtime").plain
    counts: collections.Counter[str] = collections.Counter()
    started = time.perf_counter()
    try:
        for seed in range(options.first, options.first + options.count):
            program = room.write_program(seed, without)
            verdict = judge(program, remat, plain)
            counts.update(_counted(verdict))
            if verdict.fails or verdict.word == "invalid" or options.show or options.whole:
                _print(f"{seed:6} {verdict.word} {verdict.what}")
            if options.show and verdict.fails:
                program = shrunk(room.write_program, seed, lambda program: judge(program, remat, plain), without)
                _print(judge(program, remat, plain), sorted(program.features), program.text, sep="\n")
            elif options.whole:
                _print(program.text)
    except KeyboardInterrupt:  # Ctrl-C ends it with what was found so far
        options.count = seed - options.first
    seconds = time.perf_counter() - started
    _print(f"{options.count} programs of {options.framework} in {seconds:.0f} s")
    _print(*(f"{number:7} {word}" for word, number in sorted(counts.items())), sep="\n")
    sys.exit(any(word.isupper() for word in counts))


def _counted(verdict: Verdict) -> list[str]:
    if verdict.word == "refused":
        return [f"refused: {verdict.what}"]
    if verdict.word != "right":
        return [verdict.word]
    difference = verdict.difference
    return ["right", *(["right, to the last bit"] if difference.bitwise else []),
            *(["right, with zeros for None"] if difference.zeros_for_none else [])]  # fmt: skip


def _print(*values: object, sep: str = " ") -> None:
    sys.stdout.write(sep.join(map(str, values)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
