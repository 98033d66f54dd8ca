"""Every example runs and finds what it says; each asserts that its gradients are exact or its fit succeeds."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SHARED = "side_by_side.py"  # what several of them import
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.name != SHARED)
# Examples that share a process, which imports its framework once, and constants that make them short: the fit covers
# the same time in longer steps. `make test-all` runs each as it stands.
GROUPS = {
    "numpy": {
        "rnn.py": {"STEPS": 200},
        "python_loop.py": {"STEPS": 200, "ROUNDS": 1},
        "checkpoint_demo.py": {"STEPS": 200},
        "recompute_lstm.py": {"ARGUMENTS": ("--seq-len", "32", "--checkpoints", "3", "--compare")},
        "lstm_memory.py": {"STEPS": 128, "MEMORY": "1 MiB"},
        "ode.py": {"STEPS": 2_000, "DT": 0.01},
    },
    "torch": {
        "torch_lstm.py": {"STEPS": 2_000},
        "torch_ode.py": {},
        "torch_dropout_rnn.py": {"STEPS": 300},
        "torch_blocks.py": {"BLOCKS": 9, "ROUNDS": 1},
        "torch_groups.py": {"ROUNDS": 1},
        "torch_profiler.py": {"STEPS": 100},
        "torch_budget.py": {"LAYERS": 4, "BATCH": 4, "TOKENS": 32, "ROUNDS": 1},
    },
    "jax": {"jax_lstm.py": {}, "jax_ode.py": {}, "jax_sharded.py": {}},
    "keras": {"keras_lstm.py": {"STEPS": 32}},
}
AGREEMENT = re.compile("agree to|equal, bit for bit")
ALONE = ("ddp.py", "fsdp2.py")  # they start processes of their own
RUNNER = """
import importlib.util, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))  # as it is where an example is run by itself
for path, smaller in zip(sys.argv[1::2], map(eval, sys.argv[2::2])):
    print(path, flush=True)
    spec = importlib.util.spec_from_file_location("example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, value in smaller.items():
        assert type(getattr(example, name)) is type(value), name
        setattr(example, name, value)
    example.main()
"""


def run(*words, **more):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | more
    done = subprocess.run(
        [sys.executable, "-W", "error", *words], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_run():
    assert {example.name for example in EXAMPLES} == {*ALONE, *(name for group in GROUPS.values() for name in group)}


@pytest.mark.parametrize("framework", GROUPS)
def test_examples(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    words = [word for name, smaller in GROUPS[framework].items() for word in (str(FOLDER / name), repr(smaller))]
    # The flag of jax_sharded.py, which counts before JAX is first asked for its devices.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    devices = {"XLA_FLAGS": flags} if framework == "jax" else {}
    assert len(AGREEMENT.findall(run("-c", RUNNER, *words, **devices))) >= len(GROUPS[framework])


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[pytest.mark.full] * (path.name not in ALONE), id=path.name) for path in EXAMPLES],
)
def test_example_as_it_stands(example):
    assert AGREEMENT.search(run(str(example)))
