"""What the rewritten code calls when the function runs.

| file | contents |
|---|---|
| `turns.py` | turns of a loop: those in place, and the others |
| `segments_of_turns.py` | turns run by a framework's `scan` or `while_loop` |
| `traced_turns.py`, `unrolled_turns.py` | turns on JAX: compiled as one loop, or one by one |
| `purity.py`, `code_facts.py` | whether all that a step calls is pure, so that it may be traced once |
| `items.py` | the items of a `for` loop, by number |
| `ran.py` | the result of a run of turns |
| `statics.py` | carried strings, None, and names without a value |
| `item_assignment.py`, `given_arrays.py`, `shared_arrays.py` | `x[i] = v`, also on the caller's and shared arrays |
| `speech.py`, `messages.py` | printing once per turn; the user's names in errors |
"""
