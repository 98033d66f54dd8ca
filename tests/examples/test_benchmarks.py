"""Benchmarks run: their tables have all ways, and what they check holds where no time is involved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "torch_chains.py"


@pytest.mark.full
@pytest.mark.parametrize("model", ["gpt", "unet"])
def test_a_tiny_model_beside_checkpoints_of_pytorch(model, tmp_path):
    picture = tmp_path / "curve.svg"
    arguments = [model, "--size", "tiny", "--budgets", "0.95", "0.9", "--rounds", "1", "--picture", str(picture)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"| {way} |" in done.stdout for way in ("plain", "per block", "selective (SAC)", "remat, 90%"))
    for what in ("peaks are inside the budget", "gradients are plain's", "statistics are plain's"):
        assert f"ok   {what}" in done.stdout
    assert picture.read_text().startswith("<svg")


@pytest.mark.full
@pytest.mark.parametrize("program", ["bodies", "rollout"])
def test_a_short_program_beside_loops_of_jax_and_equinox(program):
    script = SCRIPT.with_name("jax_programs.py")
    arguments = ["--only", program, "--steps", "40", "--slots", "4", "--rounds", "1"]
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(
        way in done.stdout for way in ("lax.scan", "nested jax.checkpoint", "equinox, 4 slots", "remat, 4 slots")
    )
    lines = [line for line in done.stdout.splitlines() if "target: " in line and "time" not in line]
    assert len(lines) == 2
    assert all(line.endswith(", met") for line in lines), done.stdout
