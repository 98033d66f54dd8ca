"""Compact columns of numbers: integers or their differences as variable-length bytes, deflated, in base64.

The rows of a timeline become small dicts in the page's data, which `page/data.js` decodes. A column of 100,000 events
takes about ten to ninety kilobytes, depending on how regular it is.
"""

import zlib
from base64 import b64encode
from collections.abc import Sequence
from functools import reduce
from math import floor, gcd, log10
from typing import Any

from remat.ops import OPS_BY_TYPE
from remat.reporting.timeline import Kept
from remat.reporting.timeline_rows import Rows
from remat.schedule import Advance, Free, Op, Pullback, Record, Run, Turn

__all__ = ["encode", "encode_kept", "encode_rows", "encode_times"]

MOST_EXACT_ROWS = 20_000  # columns of up to this many rows are encoded with all digits
SHORTEST = 1e-200  # seconds; a shorter time is encoded as 0
MOST_BYTES = 0.9  # per value of a longer column; if it takes more, digits are dropped
ROUNDED_TO = 1024  # sizes in a longer irregular column are rounded to 1/ROUNDED_TO of the largest


def encode(values: Sequence[int]) -> dict[str, Any]:
    """Encode integers of any sign; `k` is their common factor, `d` says whether differences are encoded."""
    factor = reduce(gcd, values, 0) or 1
    quotients = [value // factor for value in values]
    differences = [b - a for a, b in zip([0, *quotients], quotients, strict=False)]
    plain, delta = _deflated(quotients), _deflated(differences)
    best = min(plain, delta, key=len)
    return {"n": len(values), "k": factor, "d": int(best is delta), "z": b64encode(best).decode("ascii")}


def encode_times(values: Sequence[float]) -> dict[str, Any]:
    """Encode times with as many digits as fit (`digits`); `least` is the smallest exponent of ten."""
    for digits in (6, 3, 2):
        column = _encode_digits(values, digits)
        if len(values) <= MOST_EXACT_ROWS or len(column["z"]) <= MOST_BYTES * len(values) * 4 / 3:
            break
    return column


def encode_rows(rows: Rows, levels: list[str], predicted: Sequence[int]) -> dict[str, Any]:
    """Encode all columns of a timeline; an op is its code, its first unit or state, and its length or level."""
    ops = [_fields(op, levels) for op in rows.op]
    columns = {
        "code": encode([OPS_BY_TYPE[type(op)].code for op in rows.op]),
        "first": encode([first for first, _ in ops]),
        "second": encode([second for _, second in ops]),
        "phase": encode(rows.phase),
        "seconds": encode_times(rows.seconds),
        "state": _encode_sizes(rows.state),
        "tape": _encode_sizes(rows.tape),
        "leastTape": _encode_sizes([least - tape for least, tape in zip(rows.least_tape, rows.tape, strict=True)]),
        "cotangent": _encode_sizes(rows.cotangent),
    }
    # If events are grouped, rows also say which event each shows, and which units its ops touch.
    if rows.index and rows.index[-1] != len(rows) - 1:
        columns |= {
            "index": encode(rows.index),
            "keptCount": encode(rows.kept_count),
            "firstUnit": encode(rows.first_unit),
            "stopUnit": encode(rows.stop_unit),
        }
    for number, sizes in enumerate(rows.elsewhere.values()):
        columns[f"level{number}"] = _encode_sizes(sizes)
    if rows.allocated:
        columns["allocated"] = _encode_sizes(rows.allocated)
    if predicted:
        columns["predicted"] = _encode_sizes(predicted)
    return columns


def encode_kept(kept: Sequence[Kept], levels: list[str]) -> dict[str, Any]:
    """Encode the bars of kept states."""
    bars = sorted(kept, key=lambda bar: bar.first)
    return {
        "keptState": encode([bar.state for bar in bars]),
        "keptLevel": encode([levels.index(bar.level) for bar in bars]),
        "keptFirst": encode([bar.first for bar in bars]),
        "keptLast": encode([bar.last - bar.first for bar in bars]),
    }


def _fields(op: Op, levels: list[str]) -> tuple[int, int]:
    if isinstance(op, Advance | Record | Pullback):
        return op.start, op.stop - op.start
    if isinstance(op, Run):
        return op.operation, 1
    if isinstance(op, Free):
        return op.storage, 0
    return (0, 0) if isinstance(op, Turn) else (op.state, levels.index(op.level))


def _encode_sizes(values: Sequence[int]) -> dict[str, Any]:
    """Encode bytes; in a long irregular column they are rounded, by less than any chart can show."""
    column = encode(values)
    unit = max(map(abs, values), default=0) // ROUNDED_TO
    if len(values) <= MOST_EXACT_ROWS or unit <= 1 or len(column["z"]) <= MOST_BYTES * len(values):
        return column
    return encode([round(value / unit) * unit for value in values])


def _encode_digits(values: Sequence[float], digits: int) -> dict[str, Any]:
    """Encode each time as one integer that combines mantissa and exponent; 0 stays 0."""
    low, high = 10 ** (digits - 1), 10**digits
    pairs: list[tuple[int, int]] = []
    for value in values:
        if value < SHORTEST:
            pairs.append((0, 0))
            continue
        exponent = floor(log10(value)) - digits + 1
        mantissa = max(low, round(value / 10.0**exponent))
        pairs.append((mantissa, exponent) if mantissa < high else (low, exponent + 1))
    least = min((exponent for mantissa, exponent in pairs if mantissa), default=0)
    codes = [(exponent - least) * (high - low) + mantissa - low + 1 if mantissa else 0 for mantissa, exponent in pairs]
    return {**encode(codes), "digits": digits, "least": least}


def _deflated(values: Sequence[int]) -> bytes:
    data = bytearray()
    for value in values:
        number = 2 * value if value >= 0 else -2 * value - 1
        while number >= 128:
            data.append(number % 128 + 128)
            number //= 128
        data.append(number)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)  # no header, as the page's DecompressionStream expects
    return compressor.compress(bytes(data)) + compressor.flush()
