"""`scan` and `while_loop` on tensors: one autograd Function for a whole loop, run by the interpreter.

| file | contents |
|---|---|
| `scan.py` | the entry points: from users' values to flat leaves and back |
| `probe.py`, `first_step.py` | the first step, recorded, and what it shows: captured tensors, active leaves |
| `activity.py`, `gradient_flow.py` | which leaves depend on what requires a gradient, found step by step |
| `analyzed_step.py` | a step after closure conversion, with the state that it may change |
| `loop_inputs.py` | the tensors outside of a loop that its steps use |
| `loop_contents.py` | Python contents that steps change |
| `stored_graphs.py` | tensors that steps store besides their results |
| `torch_loop_call.py` | one call of a loop: its first sweep and its reverse sweeps |
| `function.py` | a loop as one autograd Function from leaves to tensors; its reverse sweep as another |
| `backend.py` | what the interpreter calls: advance, record and pull back steps |
| `tape.py` | the graph of a recorded range, and its pullback |
| `tape_contents.py`, `saved_bytes.py` | what is inside a recorded graph, and its bytes |
| `saved_values.py` | captured tensors that steps write into and a tape refers to |
| `comparison.py` | states and outputs of recomputed steps, compared with the first ones |
| `loop_outputs.py` | the results of a loop: tensors, and numbers, which the Function does not see |
| `output_rows.py`, `kept_rows.py` | rows of outputs without a copy; kept states in their memory |
| `inner_gradients.py` | steps that differentiate themselves |
| `carry_hooks.py`, `hooks_in_steps.py` | steps that put hooks on their carry, or on tensors inside (second order) |
| `untouched_leaves.py` | inputs without a gradient, behind which nothing may appear to run |
| `lazy_modules.py` | modules that create their parameters at their first call |
| `second_order.py` | the VJP of a loop as two loops, which can be differentiated again |
| `vmap.py` | loops under `torch.func.vmap` |
| `measure.py` | what a step costs |
| `agreement.py` | one plan in all processes whose steps wait for each other |
"""
