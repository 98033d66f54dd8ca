"""Planners of graphs: what a block keeps (`block_options`), and whole graphs in a budget.

In: a `Graph`. Out: options of a block, for the stages of a chain, or a `Plan` whose schedule runs and frees single
operations and storages. Solvers of other libraries (SciPy, OR-Tools) are imported when they are first used.
"""
