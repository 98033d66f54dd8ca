"""Ordinary Python loops, checkpointed: the source of a function is rewritten, and its loops stay as they are written.

| file | contents |
|---|---|
| `decorator.py` | `checkpointed`: from a function to the rewritten one |
| `function_gradients.py` | `grad`, `grad_with_checkpointing`: gradients of functions in plain NumPy |
| `marked_range.py` | `range`: a loop with settings of its own |
| `function_source.py` | a function's tree, with the places of its file, and a function from a tree |
| `flow.py`, `liveness.py`, `aliases.py`, `scopes.py` | data flow: reads and writes, what is live, what is shared |
| `mutation.py` | which calls change an object in place, and which make a new one |
| `updates.py`, `nests.py`, `emission.py`, `outputs.py` | item assignment, perfect nests, printing, appended lists |
| `analysis.py`, `loop_info.py`, `refusal.py` | what each loop carries; what is refused, and how it is said |
| `rewriting.py`, `step_body.py`, `syntax.py` | the new text: loops, their steps, and hidden names |
| `numpy_names.py` | `numpy` in the user's function read as autograd's |
| `run_time.py`, `segments_of_turns.py`, `items.py` | what the new text calls: turns in place, and the others |
| `traced_turns.py`, `unrolled_turns.py`, `traceability.py` | turns on JAX: compiled as one loop, or one by one |
| `statics.py`, `shared_arrays.py`, `item_assignment.py` | carried strings and None; aliases; `x[i] = v` |
| `settings.py`, `messages.py`, `loop_explanation.py` | budgets; names in errors; `fn.explain()` |
"""

from remat.source.decorator import checkpointed
from remat.source.function_gradients import grad, grad_with_checkpointing
from remat.source.marked_range import MarkedRange as range

__all__ = ["checkpointed", "grad", "grad_with_checkpointing", "range"]
