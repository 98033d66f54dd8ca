"""The rewritten code of a function: each loop stays, and gets a copy of its body as a step.

| file | contents |
|---|---|
| `function_source.py` | from a function to its tree, with locations in its file, and back |
| `updates.py`, `last_items.py` | functional item assignment; `ys[-1]` as a variable |
| `nests.py` | perfect nests as one loop |
| `rewriting.py`, `step_body.py` | loops, and their bodies as steps |
| `identities.py` | comparisons by `is` in steps |
| `numpy_names.py` | autograd's NumPy in place of `numpy` in the user's function |
"""
