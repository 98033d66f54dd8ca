"""`import remat.diffrax` and `from remat.diffrax import ...`: another name of `remat.layers.diffrax`, the wrapper of diffrax."""

import sys

from remat.layers import diffrax
from remat.layers.diffrax import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = diffrax  # one module under both names
