"""`import remat.keras` and `from remat.keras import ...`: another name of `remat.layers.keras`, the wrapper of Keras."""

import sys

from remat.layers import keras
from remat.layers.keras import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = keras  # one module under both names
