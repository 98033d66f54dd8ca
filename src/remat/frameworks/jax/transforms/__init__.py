"""Functions of flat arrays with our own derivative and batching rules, to any order: the basis of all loops.

| file | contents |
|---|---|
| `differentiable.py` | what a differentiable function is, with a diagram of how derivatives of any order arise |
| `linearizations.py` | forward-with-residuals and VJP as differentiable functions, plain and batched |
| `pruned.py` | functions without the arguments and results that are not needed |
| `primitives.py` | the two JAX primitives that implement them |
| `propagation.py` | how a batch, tangents and arguments propagate to the results of a program |
| `identities.py` | identities that note what a transformation does, or refuse reverse mode |
| `cache_key.py` | when two programs are equal |
"""
