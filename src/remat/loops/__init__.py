"""What the loops of every framework share.

| file | noun |
|---|---|
| `request.py` | the options of a loop call: budget, plan, check, progress |
| `loop_call.py` | one call of a loop: its first sweep and its reverse sweep |
| `step_runner.py` | the user's step, run on plain values |
| `compared_results.py` | recomputed states and outputs, compared with the first ones |
| `stacked_values.py` | the inputs and outputs of all steps |
| `structure_check.py` | carries and outputs, checked against the structure and specs that they must have |
| `leaf_spec.py` | the protocol of a framework's functions on leaves |
| `plan_log.py` | the plans of the loops in a segment, for its recomputation |
| `exchange.py` | functions of other modules, replaced in some threads for a while |
| `common_mistakes.py` | hints for errors of the first step |
| `legacy_inputs.py` | inputs and outputs in the form of the older functions |
"""
