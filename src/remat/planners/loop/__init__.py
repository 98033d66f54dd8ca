"""Planners for loops, each one file with one final class; `planners/table.py` lists them."""
