"""The wrapper of Keras, `remat.layers.keras`, under its short name: `from remat.keras import ...`."""

import sys

from remat.layers import keras
from remat.layers.keras import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = keras  # one module under both names
