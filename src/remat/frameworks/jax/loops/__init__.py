"""`scan` and `while_loop` on JAX: one compiled program for loops of any length, or one compiled call for each op.

| file | contents |
|---|---|
| `scan.py` | the entry points: from users' values to flat arrays and back |
| `step_jaxpr.py`, `step_transforms.py` | a user's step as a jaxpr of flat arrays; with tangents, for a batch |
| `scan_function.py`, `while_function.py` | loops of known and of unknown length as differentiable functions |
| `while_linearization.py` | the linearizations of loops of unknown length |
| `chunked_steps.py` | on the device: advancing over, recording and pulling back steps |
| `residuals.py`, `derived_residuals.py` | the VJP of one step from residuals; residuals that are cheap to recompute |
| `reverse_sweep.py` | on the device: the reverse sweep from kept states |
| `binomial_tables.py` | which states are kept, as tables |
| `sections.py` | a loop in sections, which returns the states between them |
| `second_order.py` | the VJP of a loop as two loops, which can be differentiated again |
| `planning.py`, `measure.py` | plans for loops inside jit; bytes of a step, from its avals |
| `host_loop.py`, `backend.py` | loops that Python drives, one compiled call for each op |
| `tape_contents.py` | what is in the tape of a step or segment |
"""
