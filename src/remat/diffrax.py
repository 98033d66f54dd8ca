"""The wrapper of diffrax, `remat.layers.diffrax`, under its short name: `from remat.diffrax import ...`."""

import sys

from remat.layers import diffrax
from remat.layers.diffrax import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = diffrax  # one module under both names
