"""Eight host devices: loops on sharded arrays give the gradients of one device, and keep their states sharded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("sharding_program.py")


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("jit", 11),
        ("check_vma=True", 9),
        pytest.param("check_vma=False", 9, marks=pytest.mark.full),
        ("explicit", 3),
        ("buffers", 2),
    ],
)
def test_gradients_and_buffers_are_those_of_one_device(part, count):
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", str(PROGRAM), part]  # -P: folders torch, numpy lie next to it
    run = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) == count
    assert not any(found.values()), "\n".join(f"{name}: {error}" for name, error in found.items() if error)[-6000:]
