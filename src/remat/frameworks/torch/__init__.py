"""PyTorch: loops and segments on tensors.

| file | contents |
|---|---|
| `scan.py` | the entry points `scan` and `while_loop`: users' values to flat leaves and back |
| `kept_rows.py` | kept states in the memory of outputs |
| `output_rows.py` | outputs with the initial value before them, or row by row, without a copy |
| `probe.py`, `first_step.py` | the first step, recorded, and what it shows: captured tensors, active leaves |
| `activity.py` | which leaves depend on something that requires a gradient, found out step by step |
| `analyzed_step.py` | a step after closure conversion, with the state that it may change |
| `loop_inputs.py`, `watch.py` | the tensors outside of a loop that its steps use, with a graph and without one |
| `input_versions.py` | whether steps write into what they are given |
| `loop_contents.py` | Python contents that steps change |
| `stored_graphs.py` | tensors that steps store beside their results |
| `inner_gradients.py` | steps that differentiate themselves |
| `carry_hooks.py`, `hooks_in_steps.py` | steps that put hooks on their carry, or on tensors inside (second order) |
| `gradient_flow.py`, `untouched_leaves.py` | inputs without a gradient, behind which nothing may seem to run |
| `lazy_modules.py` | modules that make their parameters when they are first called |
| `function.py` | a loop as one autograd Function from leaves to tensors; its reverse sweep as another |
| `loop_outputs.py` | the results of a loop: tensors, and Python numbers, which the Function does not see |
| `backend.py` | what the interpreter calls: steps advanced, recorded, pulled back |
| `tape.py`, `saved_bytes.py`, `seen_nodes.py` | the graph of a recorded range, its pullback, its bytes, its end |
| `comparison.py` | states and outputs of steps that run again, compared with the first ones |
| `second_order.py` | the VJP of a loop as two loops, which can be differentiated again |
| `vmap.py` | loops under `torch.func.vmap` |
| `agreement.py`, `collectives.py` | one plan in all processes whose steps wait for each other |
| `measure.py`, `measure_chain.py`, `meter.py` | what steps and stages cost; allocated bytes on CUDA and on the CPU |
| `in_place_stages.py` | stages of a chain that write into their input |
| `segment_profile.py`, `kept_blocks.py` | what profiles learn of segments, and of blocks that are none |
| `checkpoint.py` | segments: functions that are recomputed in the backward, and the rules for nesting |
| `saved_tensors.py`, `recompute.py` | holders in the place of saved tensors; one recomputation, which fills them |
| `segment_inputs.py`, `shared_containers.py`, `detached_cells.py` | the inputs of a segment: arguments, closures |
| `environment.py` | everything that a function reaches, as it was at the call, for a run that leaves no trace |
| `tensor_reach.py`, `tensor_state.py`, `tensor_value.py` | the modules and tensors that it reaches; what is in these |
| `checkpointed_module.py` | a module, each call of which is a segment |
| `auto_checkpoint.py`, `planned_model.py`, `model_budget.py` | models under a budget: plans for the shapes of inputs |
| `find_blocks.py`, `planned_blocks.py`, `block_ranges.py` | blocks of a model, and their calls by a plan |
| `measure_model.py`, `cut_blocks.py`, `model_trial.py` | a model as a chain of its blocks; its measured peak |
| `replayable_state.py`, `autocast.py` | random generators and autocast, restored for steps that run later |
| `leaves.py`, `storage.py` | operations on leaves; which tensors share memory |
| `detection.py` | which values are PyTorch's |
| `graph.py`, `functorch.py`, `fsdp.py`, `modules.py` | private names of PyTorch, as in `meter.py`, `collectives.py` |
"""

from remat.frameworks.torch.array_updates import (
    integers,
    is_concrete,
    is_differentiating,
    put_item,
    random_states,
    segment,
    shares_memory,
    unstack,
)
from remat.frameworks.torch.auto_checkpoint import auto_checkpoint, largest_batch, measure_step
from remat.frameworks.torch.checkpoint import checkpoint
from remat.frameworks.torch.checkpointed_module import checkpoint_module
from remat.frameworks.torch.detection import TRAITS, is_module, is_tracing, owns
from remat.frameworks.torch.kept_blocks import observe
from remat.frameworks.torch.leaves import flatten, own, stack, unpack
from remat.frameworks.torch.measure_chain import chain_key, measure_chain
from remat.frameworks.torch.meter import free_on as free_bytes
from remat.frameworks.torch.output_rows import prepend, separate
from remat.frameworks.torch.scan import scan, while_loop

__all__ = [
    "TRAITS",
    "auto_checkpoint",
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
    "largest_batch",
    "measure_chain",
    "measure_step",
    "observe",
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
