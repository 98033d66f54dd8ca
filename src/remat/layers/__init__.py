"""Wrappers for libraries that are built on a framework, on top of what users call: one module for each library."""
