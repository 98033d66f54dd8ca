"""What the loops of a function read, write, share and output: found on its syntax tree, before it runs.

| file | contents |
|---|---|
| `flow.py`, `liveness.py` | reads and writes of statements in order; what may be read after a loop |
| `scopes.py` | what inner functions, lambdas and comprehensions read |
| `aliases.py`, `mutation.py` | two names for one object; which calls change an object in place |
| `outputs.py`, `dict_keys.py` | lists that a loop only appends to; dicts with a new key in every turn |
| `emission.py` | statements that print |
| `traceability.py` | Python integers in a step, which are bounded in a JAX trace; what is compared by `is` |
| `analysis.py`, `refusal.py` | what each loop carries; what is refused, and the messages |
"""
