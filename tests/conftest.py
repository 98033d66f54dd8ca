import gc
import os
from importlib.metadata import version
from importlib.util import find_spec

from hypothesis import HealthCheck, settings

# Keras, whose modules are searched for doctests, imports its backend; TensorFlow, its first choice, need not be here.
os.environ.setdefault("KERAS_BACKEND", "torch")

# What is compiled here runs for a blink: XLA's older emitters, in one piece, take a third of the time. A flag that XLA
# does not know ends the process, so that other versions go without.
if (version("jaxlib") if find_spec("jaxlib") else "").startswith("0.10."):
    QUICK = "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()

# Random examples where people work, the same ones each time where a machine decides.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", max_examples=40, **COMMON)
settings.register_profile("repeatable", max_examples=40, derandomize=True, **COMMON)
settings.register_profile("thorough", max_examples=200, **COMMON)  # `make test-all`
settings.load_profile("repeatable" if os.environ.get("CI") else "explore")


def pytest_collection_finish(session):
    """All that was imported stays: collections of garbage, of which measuring makes many, need not look at it again."""
    gc.collect()
    gc.freeze()
