"""What the loops of every framework share.

| file | noun |
|---|---|
| `request.py` | what the caller of a loop asks for: budget, plan, check, progress |
| `loop_call.py` | one call of a loop: its first sweep and its reverse sweep |
| `step_runner.py` | the user's step, run on plain values |
| `compared_results.py` | states and outputs of steps that run again, compared with the first ones |
| `stacked_values.py` | the inputs and outputs of all steps |
| `structure_check.py` | carries and outputs, checked against what they must look like |
| `leaf_spec.py` | the protocols of a framework's leaves |
| `legacy_inputs.py` | inputs and outputs in the form of the older functions |
"""
