"""What type checkers make of the public functions: results have the types of what is passed in, mistakes are found."""

import re
from pathlib import Path

import pytest
from mypy import api

import remat

PROGRAM = """
import remat

class Tensor:
    def __add__(self, other: "Tensor") -> "Tensor":
        return self

class Module:
    def __call__(self, x: Tensor) -> Tensor:
        return x

class Bar:
    def update(self, done: int, total: int | None) -> None: ...

def block(x: Tensor, times: int = 1) -> list[Tensor]:
    return [x] * times

def step(carry: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    return carry, {"x": x}

def number_step(carry: float, x: float) -> tuple[float, None]:
    return carry * x, None

t = Tensor()
numbers: list[float] = []

@remat.drop(check="always")
def decorated(x: Tensor) -> Tensor:
    return x

reveal_type(remat.checkpoint(block, t, times=2))  # is list[Tensor]
reveal_type(remat.adaptive_checkpoint(block, t, threshold="1 MiB"))  # is list[Tensor]
reveal_type(remat.drop(block))  # is def (x: Tensor, times: int =) -> list[Tensor]
reveal_type(remat.drop(Module()))  # is Module
reveal_type(decorated)  # is def (x: Tensor) -> Tensor
reveal_type(remat.checkpoint(Module(), t))  # is Tensor
reveal_type(remat.checkpoint(lambda x: x + t, t))  # is Tensor
reveal_type(remat.auto_checkpoint(Module(), memory="1 GiB", sample=t))  # is Module
reveal_type(remat.scan(step, (t, t), t, slots=3))  # is tuple[tuple[Tensor, Tensor], dict[str, Tensor]]
reveal_type(remat.scan(lambda c, x: (c + x, c), t, t, memory="1 MiB", progress=Bar()))  # is tuple[Tensor, Tensor]
reveal_type(remat.scan(number_step, 0.5, numbers, slots=3))  # is tuple[float, None]
reveal_type(remat.while_loop(lambda c: True, lambda c: c + t, t, slots=3, check="never"))  # is Tensor
reveal_type(remat.legacy.checkpointed_loop(lambda c: c + t, t, 20))  # is tuple[Tensor, dict[int, Tensor]]
reveal_type(remat.plan(remat.Loop(10), slots=3).simulate())  # is Trace
reveal_type(remat.errors.StepError(""))  # is StepError
reveal_type(remat.StepError(""))  # is StepError
reveal_type(remat.Drop(3, "ram"))  # is Drop
remat.checkpoint(block, "no tensor")  # error: "checkpoint" has incompatible type "str"; expected "Tensor"
remat.checkpoint(block, t, tmies=2)  # error: Unexpected keyword argument "tmies" for "checkpoint"
remat.checkpoint(block)  # error: Missing positional argument "x" in call to "checkpoint"
remat.drop(block)("no tensor")  # error: incompatible type "str"; expected "Tensor"
remat.scan(step, (t, t), t, check="sometimes")  # error: Argument "check"
remat.while_loop(lambda c: True, lambda c: c, t, progress=3)  # error: Argument "progress"
remat.scam  # error: Module has no attribute "scam"
remat.legacy.binominal_checkpoint  # error: Module has no attribute "binominal_checkpoint"
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says of each line of the program."""
    folder = tmp_path_factory.mktemp("typed")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    config = folder / "mypy.ini"
    source = Path(remat.__file__).parents[1]
    config.write_text(f"[mypy]\nmypy_path = {source}\nignore_missing_imports = true\nfollow_untyped_imports = false\n")
    out, err, _ = api.run(["--config-file", str(config), "--cache-dir", str(folder / "cache"), str(program)])
    assert not err
    lines: dict[int, str] = {}
    for number, text in re.findall(r"program\.py:(\d+): (.*)", out):
        lines[int(number)] = lines.get(int(number), "") + text.replace("program.", "") + "\n"
    return lines


def test_results_have_the_types_of_what_is_passed_in(said):
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        code, _, expected = line.partition("# is ")
        if expected:
            revealed = re.sub(r"remat\.[a-z_.]*\.", "", said[number])
            assert f'Revealed type is "{expected}"' in revealed, code


def test_mistakes_are_found_and_nothing_else(said):
    expected = {
        number: line.partition("# error: ")[2]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# error: " in line
    }
    assert {number for number, text in said.items() if "error:" in text} == expected.keys()
    for number, text in expected.items():
        assert text in said[number]
