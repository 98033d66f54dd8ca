"""The packages for the individual frameworks; no other package may import one.

`framework_protocol.py` defines what a framework's package provides, `framework_registry.py` picks the framework from
the values that a user passes, and `compilers.py` is the code that torch.compile traces into. numpy/, torch/ and jax/
have the same layout: files with the same name have the same role.
"""

from remat.frameworks.framework_protocol import Framework
from remat.frameworks.framework_registry import (
    find_framework,
    find_framework_of_call,
    framework_of_module,
    load_framework,
    register,
)

__all__ = ["Framework", "find_framework", "find_framework_of_call", "framework_of_module", "load_framework", "register"]
