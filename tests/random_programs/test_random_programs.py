"""Some hundred random programs, and proofs that the comparison sees what it must."""

import importlib

import pytest

import remat
from tests.random_programs.plain import Plain
from tests.random_programs.tree import leaves
from tests.random_programs.verdict import judge

COUNTS = {"torch": 240, "numpy": 120, "jax": 100, "loops": 240}
SIZES = {"torch": 20, "numpy": 20, "jax": 10, "loops": 20}  # programs in a test
# Programs on JAX are traced and compiled, which takes seconds each.
QUICK = {"torch": 100, "numpy": 100, "jax": 10, "loops": 80}
UNCOMPILED = ("torch", "numpy", "loops")
ROOMS = {name: importlib.import_module(f"tests.random_programs.{name}_program") for name in COUNTS}
PLAINS = {name: importlib.import_module(f"tests.random_programs.{name}_runtime").plain for name in COUNTS}
BLOCKS = [  # as many as half a minute allows; `make test-all` runs them all
    pytest.param(name, first, marks=[pytest.mark.full] * (first >= QUICK[name]))
    for name, count in COUNTS.items()
    for first in range(0, count, SIZES[name])
]


@pytest.mark.parametrize(("framework", "first"), BLOCKS)
def test_programs_are_exact_and_leave_no_trace(framework, first):
    failed = []
    for seed in range(first, first + SIZES[framework]):
        program = ROOMS[framework].write_program(seed)
        verdict = judge(program, remat, PLAINS[framework])
        if verdict.fails:
            failed.append(f"seed {seed}: {verdict.word}: {verdict.what}\n{program.text}")
    assert not failed, "\n\n".join(failed)


@pytest.mark.parametrize("framework", UNCOMPILED)
def test_a_program_repeats_itself_and_is_seldom_invalid(framework):
    room, plain = ROOMS[framework], PLAINS[framework]
    verdicts = [judge(room.write_program(seed), plain, plain) for seed in range(100)]
    assert {verdict.word for verdict in verdicts} <= {"right", "invalid"}
    assert all(verdict.difference.bitwise for verdict in verdicts)
    assert sum(verdict.word == "invalid" for verdict in verdicts) <= 5


@pytest.mark.parametrize("framework", UNCOMPILED)
def test_a_program_without_a_feature_is_valid(framework):
    room, plain = ROOMS[framework], PLAINS[framework]
    for seed in range(6):
        program = room.write_program(seed)
        if judge(program, plain, plain).word == "right":
            shorter = [room.write_program(seed, frozenset({feature})) for feature in program.features]
            assert [judge(each, plain, plain).word for each in shorter].count("invalid") <= 2


class Twice(Plain):
    """Runs each segment twice, as a recomputation that leaves its traces."""

    def checkpoint(self, fn, *args, **kwargs):
        fn(*args, **kwargs)
        return fn(*args, **kwargs)


class Scaled(Plain):
    """Makes the gradients of a loop's carry a little too large, and says so."""

    fired = False

    def scan(self, *args, **kwargs):
        carry, ys = super().scan(*args, **kwargs)
        for leaf in leaves(carry):
            if getattr(leaf, "requires_grad", False):
                leaf.register_hook(self.scaled)
        return carry, ys

    def scaled(self, bar):
        Scaled.fired = Scaled.fired or bool(bar.abs().max() > 0)
        return bar * (1 + 1e-6)


def test_traces_of_a_second_run_are_found():
    plain = PLAINS["torch"]
    words = [judge(ROOMS["torch"].write_program(seed), Twice(plain.stack), plain).word for seed in range(100)]
    assert words.count("WRONG") >= 15


def test_a_wrong_gradient_is_found():
    plain, words = PLAINS["torch"], []
    for seed in range(100):
        program, Scaled.fired = ROOMS["torch"].write_program(seed), False
        verdict = judge(program, Scaled(plain.stack), plain)
        if Scaled.fired and program.tolerance < 1e-6:
            words.append(verdict.word)
    # A hook of the program's own may clamp what comes after it.
    assert len(words) >= 15
    assert words.count("WRONG") >= 0.9 * len(words)
