"""The frameworks: the only packages that may import one.

`framework_protocol.py` says what a framework's package offers, `framework_registry.py` finds the one to use from the
values that a user passes, `compilers.py` is what torch.compile traces into. numpy/, torch/ and jax/ run parallel: a
file of one name has one role in all of them.
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
