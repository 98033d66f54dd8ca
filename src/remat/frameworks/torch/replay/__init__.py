"""Running a function again, or measuring it, so that it leaves no trace: what it reaches, and how that is restored.

| file | contents |
|---|---|
| `environment.py` | everything that a function reaches, as it was at the call, for a run that leaves no trace |
| `tensor_reach.py`, `known_reach.py` | the modules, tensors and generators that it reaches |
| `tensor_state.py`, `tensor_value.py`, `small_buffers.py` | the state of tensors: flags, hooks, `.data`, numbers |
| `shared_containers.py`, `detached_cells.py` | containers and closure cells that are also arguments, or hold tensors |
| `replayable_state.py` | random generators |
| `watch.py` | tensors that are used where no graph shows it |
| `input_versions.py` | whether steps modify their inputs |
"""
