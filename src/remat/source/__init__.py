"""Checkpointing of ordinary Python loops: the source of a function is rewritten when it is decorated.

| package or file | contents |
|---|---|
| `decorator.py` | `checkpointed`: from a function to the rewritten one |
| `function_gradients.py` | `grad`, `grad_with_checkpointing`: gradients of functions in plain NumPy |
| `marked_range.py` | `range`: a loop with its own settings |
| `data_flow/` | what loops read, write, share and output |
| `rewrite/` | the rewritten code |
| `run_time/` | what the rewritten code calls |
| `loop_info.py` | facts about a loop: found by data flow, used by the others |
| `syntax.py` | syntax trees, and names that no program can have |
| `settings.py`, `loop_explanation.py` | budgets; `fn.explain()` |
"""

from remat.source.decorator import checkpointed
from remat.source.function_gradients import grad, grad_with_checkpointing
from remat.source.marked_range import MarkedRange as range

__all__ = ["checkpointed", "grad", "grad_with_checkpointing", "range"]
