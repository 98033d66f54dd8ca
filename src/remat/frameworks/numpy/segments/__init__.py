"""`checkpoint` on arrays: functions that are recomputed in the backward pass.

| file | contents |
|---|---|
| `checkpoint.py` | segments, by one primitive that keeps only its inputs |
| `segment_outputs.py` | the outputs of a segment, and their comparison with recomputed ones |
"""
