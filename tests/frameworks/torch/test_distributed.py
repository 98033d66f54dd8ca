"""Two processes over gloo: DDP and FSDP2 with loops inside give the gradients of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.frameworks.torch.distributed_cases import CASES
from tests.frameworks.torch.distributed_loops import CASES as LOOPS
from tests.frameworks.torch.distributed_planned_models import CASES as PLANNED_MODELS

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
PROGRAM = Path(__file__).with_name("distributed_program.py")
LIMIT = 300  # seconds, after which processes that hang are ended


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each of two processes wrote, its errors, and how it ended. No GPU is seen by them, and no port is chosen."""
    store = tmp_path_factory.mktemp("distributed") / "store"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    env |= dict.fromkeys(["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"], "")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    running = []
    try:
        for rank in range(2):
            command = [sys.executable, str(PROGRAM), str(rank), str(store), str(LIMIT)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running.append(subprocess.Popen(command, env=env, **pipes))
        found = [process.communicate(timeout=LIMIT + 60) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [(out.splitlines(), err, process.returncode) for (out, err), process in zip(found, running, strict=True)]


@pytest.mark.parametrize("budget", ["slots", "memory"])
@pytest.mark.parametrize("kind", ["ddp", "ddp unused", "fsdp", "fsdp and cell", "fsdp and cell reshard"])
def test_gradients_are_those_of_one_process_and_all_run_the_same_plan(kind, budget, said):
    errors = "\n".join(err[-2000:] for _, err, _ in said)
    assert [f"{kind} in {budget}: all is equal" in out for out, _, _ in said] == [True, True], errors


def test_a_step_that_calls_a_module_of_fsdp1_is_refused_by_name(said):
    assert ["fsdp1: refused" in out for out, _, _ in said] == [True, True], "\n".join(err[-2000:] for _, err, _ in said)


@pytest.mark.parametrize("case", CASES | LOOPS | PLANNED_MODELS)
def test_in_two_processes(case, said):
    errors = "\n".join(err[-3000:] for _, err, _ in said)
    assert [f"{case}: right" in out for out, _, _ in said] == [True, True], errors


def test_all_processes_end_well(said):
    assert [code for _, _, code in said] == [0, 0], "\n".join(err[-2000:] for _, err, _ in said)
