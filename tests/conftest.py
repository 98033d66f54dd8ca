import gc
import os

from hypothesis import HealthCheck, settings

# Random examples where people work, the same ones each time where a machine decides.
COMMON = {"deadline": None, "max_examples": 60, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **COMMON)
settings.register_profile("repeatable", derandomize=True, **COMMON)
settings.load_profile("repeatable" if os.environ.get("CI") else "explore")


def pytest_collection_finish(session):
    """All that was imported stays: collections of garbage, of which measuring makes many, need not look at it again."""
    gc.collect()
    gc.freeze()
