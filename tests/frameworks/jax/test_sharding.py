"""Eight host devices: loops on sharded arrays give the gradients of one device, and keep their states sharded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("sharding_program.py")


@pytest.mark.parametrize(
    ("pattern", "count"),
    [  # each is a process of its own, with eight devices
        ("^jit.*2x4, batch|^jit, scan, 8x1|no jit|^explicit, (scan|while),|buffers", 10),
        ("(scan|while), check_vma=True", 6),
        ("in the step, (scan|while), reverse", 2),
        pytest.param(
            "^jit.*(4x2|2x4, inputs)|^jit, while, 8x1|in bytes, (batch|check_vma=True)", 9, marks=pytest.mark.full
        ),
        pytest.param("check_vma=False", 9, marks=pytest.mark.full),
        pytest.param("in the step, .*(forward|bytes, reverse)", 4, marks=pytest.mark.full),
    ],
)
def test_gradients_and_buffers_are_those_of_one_device(pattern, count):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", str(PROGRAM), pattern]  # -P: folders torch, numpy lie next to it
    run = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) == count
    assert not any(found.values()), "\n".join(f"{name}: {error}" for name, error in found.items() if error)[-6000:]
