"""What the rewritten code calls when the function runs.

| file | contents |
|---|---|
| `turns.py` | turns of a loop: those in place, and the others |
| `segments_of_turns.py` | turns run by a framework's `scan` or `while_loop` |
| `traced_turns.py`, `unrolled_turns.py` | turns on JAX: compiled as one loop, or one by one |
| `purity.py`, `code_facts.py` | whether all that a step calls is pure, so that it may be traced once |
| `items.py`, `iterated_objects.py` | the items of a `for` loop, by number; that what it iterates over does not change |
| `last_item.py` | `ys[-1]` of a list that the loop appends to |
| `ran.py`, `output_rows.py` | the result of a run of turns; what it gives to lists and arrays |
| `statics.py` | carried strings, None, names without a value, and NumPy's arrays beside tensors |
| `item_assignment.py`, `filled_arrays.py` | `x[i] = v`, one by one, and for the rows of a whole loop |
| `given_arrays.py`, `shared_arrays.py`, `reached_objects.py` | arrays that others have, too: what leads to them |
| `speech.py`, `messages.py` | printing once per turn; the user's names in errors |
| `swallowed_errors.py` | errors of remat that a handler of the program swallows |
| `global_numbers.py` | numbers of the module, which recomputed turns see as the first run did |
| `traced_results.py` | what a trace on JAX leaves in caches of functions |
"""
