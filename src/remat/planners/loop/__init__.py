"""Planners for loops, one file with one final class each; `planners/registry.py` lists them."""
