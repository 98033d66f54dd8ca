"""What is free on the host: what the kernel can make available, or what the control group has left."""

import pytest

from remat.memory_meter import free_host_bytes

GIB = 2**30


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return free_host_bytes(folder)


MEMINFO = {"proc/meminfo": "MemTotal: 64 kB\nMemFree: 1024 kB\nMemAvailable: 8388608 kB\n"}
VERSION_2 = {
    "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon 7\ninactive_file {GIB // 2}\n",
}
VERSION_1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
}
# A job in a group of its own, below one with less left, as batch systems and systemd have them.
JOB_2 = {
    "proc/self/cgroup": "0::/system.slice/job.scope\n",
    "sys/fs/cgroup/system.slice/memory.max": "max\n",
    "sys/fs/cgroup/system.slice/memory.current": f"{7 * GIB}\n",
    "sys/fs/cgroup/system.slice/job.scope/memory.max": f"{3 * GIB}\n",
    "sys/fs/cgroup/system.slice/job.scope/memory.current": f"{2 * GIB}\n",
    "sys/fs/cgroup/system.slice/job.scope/memory.stat": f"inactive_file {GIB // 4}\n",
}
JOB_1 = {
    "proc/self/cgroup": "4:cpu,memory:/slurm/job_7/step_0\n0::/\n",
    "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes": f"{1 * GIB}\n",
    "sys/fs/cgroup/memory/slurm/job_7/step_0/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    "sys/fs/cgroup/memory/slurm/job_7/step_0/memory.usage_in_bytes": f"{1 * GIB}\n",
}
# A container that sees its group as the root, while the kernel names it as the host does.
HIDDEN = {"proc/self/cgroup": "4:memory:/docker/1234\n0::/docker/1234\n"}
NO_LIMIT = {"sys/fs/cgroup/memory.max": "max\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 8 * GIB),
        (MEMINFO | VERSION_2, 3 * GIB // 2),
        (MEMINFO | VERSION_1, 3 * GIB),
        (MEMINFO | VERSION_2 | NO_LIMIT, 8 * GIB),
        (MEMINFO | JOB_2, 5 * GIB // 4),
        (MEMINFO | JOB_1, 2 * GIB),
        (MEMINFO | HIDDEN | VERSION_1, 3 * GIB),
        (MEMINFO | HIDDEN | VERSION_2, 3 * GIB // 2),
        ({}, None),
    ],
)
def test_the_smaller_of_host_and_container_counts(tmp_path, files, expected):
    assert write(tmp_path, files) == expected
