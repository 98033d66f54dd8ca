"""Results that are recomputed by the operators that made them, without the user's Python.

| file | contents |
|---|---|
| `block_trace.py` | the operators of a block as they ran once, with their storages |
| `operator_traits.py` | which operators allocate, write into arguments, and can be rerun |
| `lineage.py` | a run that keeps only part of what its backward needs |
| `lineage_results.py` | results that are recomputed when a backward needs them, and their inputs |
| `lineage_cost.py` | the overhead of its Python |
"""
