"""`checkpoint` and `drop` on JAX: `jax.checkpoint` for functions that take and return anything.

| file | contents |
|---|---|
| `checkpoint.py` | segments |
| `checkpointed_module.py`, `nnx_modules.py` | recomputed modules; flax.nnx modules: state in, state out |
| `kept_values.py` | what a segment keeps within a budget |
| `looped_segment.py` | segments that contain a loop, whose backward waits for its cotangents |
| `cpu_scheduler.py` | a warning where XLA undoes recomputation |
"""
