"""Wrappers for libraries built on a framework, on top of the public interface: one module for each library."""
