"""`checkpoint` and `drop`: functions and modules that are recomputed in the backward.

| file | contents |
|---|---|
| `checkpoint.py` | segments, and the rules for nesting |
| `segment_inputs.py` | the inputs of a segment: arguments, closures |
| `saved_tensors.py`, `recompute.py` | holders in place of saved tensors; one recomputation, which fills them |
| `confirmation.py` | whether a saved tensor that did not repeat is workspace |
| `checkpointed_module.py` | a module each of whose calls is a segment |
| `segment_profile.py` | what a profile learns about segments |
"""
