"""Sizes, times and counts as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.errors import ProblemError
from remat.units import bytes_text, to_bytes, to_count, to_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("7", 7), ("64 MiB", 64 * 2**20), ("1.5 GB", 1_500_000_000), ("1kB", 1000), ("2 k", 2000),
     ("0.5KiB", 512), ("1.0001 KiB", 1025), (" 3 TiB ", 3 * 2**40), ("5 B", 5), ("1 PiB", 2**50)],
)  # fmt: skip
def test_sizes_are_read(text, size):
    assert to_bytes(text, "state") == size


@pytest.mark.parametrize(
    "bad", ["", "MiB", "12 XB", "-3 MiB", "1e-9", "e9", "nan", "1 i", "9" * 200, "1.2.3 MB", None, 1.5, True, []]
)
def test_what_is_no_size_is_refused_by_name(bad):
    with pytest.raises(ProblemError, match="state"):
        to_bytes(bad, "state")


@pytest.mark.parametrize(("value", "seconds"), [(0, 0.0), (2.5, 2.5), ("20 ms", 0.02), ("3us", 3e-6), ("1e-3 s", 1e-3)])
def test_times_are_read(value, seconds):
    assert to_seconds(value, "forward") == pytest.approx(seconds)


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "fast", "20", "ms", None, True, "1.1.1 s", 10**400])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ProblemError, match="forward"):
        to_seconds(bad, "forward")


@pytest.mark.parametrize("bad", [-1, 1.0, "3", None, True])
def test_counts_are_whole_and_large_enough(bad):
    with pytest.raises(ProblemError, match="steps"):
        to_count(bad, "steps")


@given(st.integers(0, 10**17))
def test_rounded_up_text_reads_back_as_no_less(size):
    assert to_bytes(bytes_text(size, up=True), "memory") >= size
