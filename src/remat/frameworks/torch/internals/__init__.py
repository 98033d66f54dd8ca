"""PyTorch's private names, and queries that all other packages use; nothing here depends on loops or segments.

| file | contents |
|---|---|
| `graph.py` | the autograd graph: edges, leaves, hooks, versions, the running backward |
| `saved_tensor_hooks.py` | hooks that pack saved tensors |
| `seen_nodes.py` | graph nodes that Python has seen, which are freed one by one |
| `functorch.py` | torch.func transforms and forward mode: which are active, and which one a tensor belongs to |
| `batched_backward.py` | the older vmap, in which a backward runs for a batch of cotangents |
| `dispatch.py` | operators as they are dispatched |
| `modules.py` | what is registered on one module itself |
| `storage.py` | which tensors share memory |
| `autocast.py` | autocast, default dtype and device, restored for what runs later |
| `fsdp.py`, `collectives.py` | sharded modules; the process groups that a step waits for |
"""
