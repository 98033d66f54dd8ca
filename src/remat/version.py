"""The version of remat, for all rooms."""

__all__ = ["__version__"]

__version__ = "0.1.0"
