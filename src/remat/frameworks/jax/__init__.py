"""JAX: loops and segments for its arrays and tracers.

| file | contents |
|---|---|
| `scan.py` | the entry points `scan` and `while_loop`: users' values to flat arrays and back |
| `step_jaxpr.py` | a user's step as a program of flat arrays, checked |
| `scan_function.py`, `while_function.py` | loops of known and of unknown length as differentiable functions |
| `while_linearization.py` | the linearizations of loops of unknown length |
| `chunked_steps.py` | on the device: steps that are advanced over, recorded and pulled back |
| `residuals.py` | the VJP of one step from residuals |
| `reverse_sweep.py` | on the device: the reverse sweep from kept states |
| `binomial_tables.py` | which states are kept, as tables |
| `sections.py` | a loop in sections between states that come out |
| `second_order.py` | the VJP of a loop as two loops, which can be differentiated again |
| `step_transforms.py` | the step with tangents, and the step for a batch |
| `differentiable.py` | what a differentiable function is, with a diagram of how derivatives of any order arise |
| `linearizations.py` | forward-with-residuals and VJP as differentiable functions, plain and batched |
| `pruned.py` | functions without arguments and results that nobody needs |
| `primitives.py` | the two primitives of JAX behind them |
| `avals.py` | avals, flags, and all that JAX does not document |
| `propagation.py` | what reaches the results of a program: a batch, tangents, arguments |
| `identities.py` | identities that note what a transformation does, or refuse reverse mode |
| `cache_key.py` | when two programs are the same one |
| `measure.py`, `measure_chain.py` | bytes of a step, from its avals; costs of stages |
| `planning.py` | plans for loops inside jit |
| `host_loop.py`, `backend.py` | loops that Python drives, one compiled call for each op |
| `checkpoint.py` | segments, by `jax.checkpoint` |
| `checkpointed_module.py` | modules that are recomputed |
| `nnx_modules.py` | modules of flax.nnx in segments: state in, state out |
| `replacement.py` | JAX's own loops, exchanged for ours |
| `partition.py` | values of any kind, partitioned into arrays and static values |
| `leaves.py` | operations on leaves that code of all frameworks asks for |
| `detection.py` | which values are JAX's |
"""

from remat.frameworks.jax.array_updates import (
    integers,
    is_concrete,
    is_differentiating,
    put_item,
    random_states,
    segment,
    shares_memory,
    unstack,
)
from remat.frameworks.jax.checkpoint import checkpoint
from remat.frameworks.jax.checkpointed_module import checkpoint_module
from remat.frameworks.jax.detection import TRAITS, is_module, is_tracing, owns
from remat.frameworks.jax.leaves import flatten, own, prepend, separate, stack, unpack
from remat.frameworks.jax.measure_chain import chain_key, measure_chain
from remat.frameworks.jax.scan import free_bytes, scan, while_loop

__all__ = [
    "TRAITS",
    "chain_key",
    "checkpoint",
    "checkpoint_module",
    "flatten",
    "free_bytes",
    "integers",
    "is_concrete",
    "is_differentiating",
    "is_module",
    "is_tracing",
    "measure_chain",
    "own",
    "owns",
    "prepend",
    "put_item",
    "random_states",
    "scan",
    "segment",
    "separate",
    "shares_memory",
    "stack",
    "unpack",
    "unstack",
    "while_loop",
]
