"""Planners for chains: the best persistent schedule, and what it is compared with.

In: a `Chain` and a memory of one level in bytes. Out: a `Plan`. `chain_ops` makes ops of the moves of a table (`dp/`).
"""
