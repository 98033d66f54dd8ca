"""Two processes over gloo: DDP and FSDP2 with loops inside give the gradients of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
PROGRAM = Path(__file__).with_name("distributed_program.py")  # -P: folders torch, numpy lie next to it


@pytest.mark.parametrize("budget", ["slots", "memory"])
@pytest.mark.parametrize("kind", ["ddp", "ddp unused", "fsdp", "fsdp and cell", "fsdp and cell reshard"])
def test_gradients_are_those_of_one_process_and_all_run_the_same_plan(kind, budget):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank in range(2):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-P", str(PROGRAM), kind, budget]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, env={**os.environ, **env}, **pipes))
    try:
        said = [process.communicate(timeout=150) for process in running]
    finally:
        for process in running:
            process.kill()
    assert ["all is equal" in out for out, _ in said] == [True, True], "\n".join(error for _, error in said)[-2000:]
    assert [process.returncode for process in running] == [0, 0]
