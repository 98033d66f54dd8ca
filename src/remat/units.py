"""Parse and format bytes, seconds and whole numbers.

Parsing takes a number or text such as "64 MiB", "1.5 GB" or "20 ms", and gives exact ints (bytes) or floats (seconds).
"""

import math
import operator
import re
from fractions import Fraction
from typing import Any

from remat.errors import ProblemError

__all__ = [
    "bandwidth_text",
    "bytes_text",
    "count_text",
    "number_text",
    "seconds_text",
    "time_text",
    "to_bytes",
    "to_count",
    "to_seconds",
    "to_seconds_per_byte",
]

LARGEST = 10**18  # the largest count or size accepted: a larger one must be a mistake
_LONGEST = 1e100  # the longest time accepted

_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{0,30})?(?:e\+?\d{1,2})?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
_TIME = re.compile(r"\s*([0-9.eE+-]{1,40})\s*(s|ms|us|µs|ns)\s*")
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def to_count(value: Any, name: str, *, least: int = 0) -> int:
    """`value` as an int of at least `least`; raise a ProblemError that names it (`name`) otherwise.

    >>> to_count(3, "steps")
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ProblemError(f"{name} must be a whole number, not {_shown(value)}") from None
    if number < least:
        raise ProblemError(f"{name} must be at least {least}, not {number}")
    if number > LARGEST:
        raise ProblemError(f"{name} must be at most {LARGEST}, not {_shown(number)}")
    return number


def to_bytes(value: Any, name: str, *, least: int = 0) -> int:
    """A size in bytes, from an int or text; a fraction of a byte is rounded up.

    >>> to_bytes("1.5 KiB", "state"), to_bytes("2MB", "state"), to_bytes(7, "state")
    (1536, 2000000, 7)
    >>> to_bytes("1e3", "state"), to_bytes("1k", "state")
    (1000, 1000)
    """
    if not isinstance(value, str):
        return to_count(value, name, least=least)
    match = _SIZE.fullmatch(value) if len(value) <= 80 else None
    if match is None or (match[3] and not match[2]) or (not match[4] and 0 < float(match[1]) < 1 and not match[2]):
        share = re.fullmatch(r"\s*(0?\.\d+|\d{1,2}(?:\.\d+)?\s*%)\s*", value[:80])
        number = share and (float(share[1].rstrip(" %")) / (100 if "%" in share[1] else 1))
        hint = f"; in Python, {name.lstrip('-')}={number:g} is a share of what is free" if number else ""
        raise ProblemError(f'{name}: {_shown(value)} is not a size; write bytes as 4096, "64 MiB" or "1.5 GB"{hint}')
    scale = (_BINARY if match[3] else _DECIMAL)[match[2].upper()] if match[2] else 1
    return to_count(math.ceil(Fraction(match[1].lower().replace(".e", "e").rstrip(".")) * scale), name, least=least)


def to_seconds(value: Any, name: str) -> float:
    """A time in seconds, finite and not negative, from a number or text such as "20 ms".

    >>> to_seconds(2, "forward"), to_seconds("20 ms", "forward")
    (2.0, 0.02)
    """
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        try:
            number = float(match[1]) * _TIME_UNITS[match[2]] if match else math.nan
        except ValueError:
            number = math.nan
    elif isinstance(value, bool):
        number = math.nan
    else:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not (0.0 <= number <= _LONGEST):
        raise ProblemError(
            f"{name} must be a time of zero or more, such as 0.02 or '20 ms' (s, ms, us, ns), not {_shown(value)}"
        )
    return number


def to_seconds_per_byte(value: Any, name: str) -> float:
    """Seconds per byte, from a number of seconds or a bandwidth such as "25 GB/s".

    >>> to_seconds_per_byte("25 GB/s", "read"), to_seconds_per_byte(2, "read")
    (4e-11, 2.0)
    """
    if isinstance(value, str) and value.strip().endswith("/s"):
        return 1 / to_bytes(value.strip().removesuffix("/s"), name, least=1)
    return to_seconds(value, name)


def bytes_text(size: int, *, up: bool = False) -> str:
    """`size` as text in binary units; with `up`, it is rounded up, so that the text can be used as a budget.

    >>> bytes_text(67108864), bytes_text(35), bytes_text(1048577, up=True)
    ('64 MiB', '35 B', '1.01 MiB')
    """
    if size < 1024:
        return f"{size} B"
    unit = next((u for u in "KMGTP" if size < _BINARY[u] * 1024), "P")
    value = (-(-size * 100 // _BINARY[unit]) if up else round(size * 100 / _BINARY[unit])) / 100
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}iB"


def seconds_text(seconds: float) -> str:
    """A time with its unit, to three digits.

    >>> seconds_text(8.0792), seconds_text(0.0123), seconds_text(2e-8), seconds_text(1020), seconds_text(0)
    ('8.08 s', '12.3 ms', '20 ns', '17 min', '0 s')
    """
    for scale, unit, least in ((3600.0, "h", 7200.0), (60.0, "min", 600.0), (1.0, "s", 1.0)):
        if seconds >= least:
            return f"{number_text(seconds / scale)} {unit}"
    for scale, unit in ((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= scale or (unit == "ns" and seconds):
            return f"{number_text(seconds / scale)} {unit}"
    return "0 s"


def time_text(time: float, unit: str, *, timed: bool = True) -> str:
    """A time with its unit; if the problem has no times, a count of forward times of one `unit`, such as "step".

    >>> time_text(8.0792, "step"), time_text(4818, "step", timed=False)
    ('8.08 s', '4,818 step times')
    """
    return seconds_text(time) if timed else f"{number_text(time)} {unit} times"


def bandwidth_text(seconds_per_byte: float) -> str:
    """The bandwidth as text, from the seconds that one byte takes.

    >>> bandwidth_text(4e-11), bandwidth_text(2e-9), bandwidth_text(2.0)
    ('25 GB/s', '500 MB/s', '2 s a byte')
    """
    if not 0 < seconds_per_byte < 1:
        return f"{number_text(seconds_per_byte)} s a byte"
    speed = 1 / seconds_per_byte
    scale, unit = next(((_DECIMAL[u], u) for u in "PTGMK" if speed >= 0.9995 * _DECIMAL[u]), (1, ""))
    return f"{number_text(speed / scale)} {unit.replace('K', 'k')}B/s"


def number_text(value: float) -> str:
    """A number to three digits, or with all digits before the point if there are more; never with an exponent.

    >>> number_text(1.23456), number_text(102.4), number_text(1024.7), number_text(0.05), number_text(2.0)
    ('1.23', '102', '1,025', '0.05', '2')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.6f}".rstrip("0").rstrip(".")


def count_text(count: int) -> str:
    """`count` with commas between thousands.

    >>> count_text(3439)
    '3,439'
    """
    return f"{count:,}"


def _shown(value: Any) -> str:
    text = (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 200 else repr(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."
