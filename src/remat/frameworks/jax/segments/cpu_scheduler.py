"""A warning where XLA undoes recomputation: on the CPU it schedules for concurrency and does not reuse buffers.

The rule: warn once per process, when a segment is compiled for the CPU without the flag that turns this scheduler off;
24 dense layers in three segments then take 1088 MiB instead of 368. Without a compiler, as in `jax.grad` outside of
`jax.jit`, operations run one by one, and segments save the memory that they should.

What it can miss: a program compiled for the CPU while the default device is another one. The cost: nothing.
"""

import os
import warnings

import jax

from remat.frameworks.jax.avals import innermost_trace

__all__ = ["FLAG", "is_compiled", "is_for_cpu", "warn_once"]

FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
_said: set[str] = set()


def is_compiled() -> bool:
    """Whether the calling code is being traced for a compiler."""
    return innermost_trace() is not None


def is_for_cpu() -> bool:
    """Whether the traced code is for the CPU."""
    return jax.default_backend() == "cpu"


def warn_once() -> None:
    """Warn, once, if XLA keeps what segments should recompute, and say what to do."""
    if _said or FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    _said.add(FLAG)
    warnings.warn(
        "XLA for the CPU schedules compiled segments for concurrency, so that recomputation saves no memory there; "
        f"gradients are right. To save memory, set XLA_FLAGS={FLAG} before Python starts. GPUs need no setting",
        stacklevel=2,
    )
