"""Planners for chains in one level of bytes: the best persistent schedule, and others to compare it with.

`chain_ops` turns the moves that a table (`dp/`) chooses into ops.
"""
