"""What all tests on PyTorch run under."""

import gc
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    collect_ignore_glob = ["*"]
elif find_spec("transformers") is None:
    collect_ignore = ["transformer_cases.py"]  # its tests skip themselves


@pytest.fixture
def no_collector():
    """Nothing may wait for the collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
