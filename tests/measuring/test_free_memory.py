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
NO_LIMIT = {"sys/fs/cgroup/memory.max": "max\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MEMINFO, 8 * GIB),
        (MEMINFO | VERSION_2, 3 * GIB // 2),
        (MEMINFO | VERSION_1, 3 * GIB),
        (MEMINFO | VERSION_2 | NO_LIMIT, 8 * GIB),
        ({}, None),
    ],
)
def test_the_smaller_of_host_and_container_counts(tmp_path, files, expected):
    assert write(tmp_path, files) == expected
