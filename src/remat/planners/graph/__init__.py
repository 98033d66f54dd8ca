"""Planners of graphs: what a block keeps (`block_options`), and whole graphs in a budget.

From a `Graph` they make options of a block, for the stages of a chain, or a `Plan` whose schedule runs single
operations and frees single storages. Other libraries (networkx, OR-Tools) are imported on first use.
"""
