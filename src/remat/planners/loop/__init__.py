"""Planners for loops, each one file with one final class; `planners/registry.py` lists them."""
