"""The headline: the peak of a run, how it compares with the limit, and its parts.

Page, text, notebooks and pictures use the same words, so that no two of them disagree.
"""

from dataclasses import dataclass

from remat.reporting.summary import Summary
from remat.units import bytes_text

__all__ = ["Headline", "headline_of"]

_SCALES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


@dataclass(frozen=True)
class Headline:
    """The most bytes at once, the limit if there is one, and the parts, which sum to the total."""

    total: int
    limit: int | None
    parts: tuple[tuple[str, int], ...]

    @property
    def short(self) -> str:
        """The number and the limit: "3.84 of 4 MiB"."""
        if self.limit is None:
            return bytes_text(self.total)
        if self.total > self.limit:
            return bytes_text(self.total)
        return f"{self._in_unit(self.total)} of {self._in_unit(self.limit)} {self._unit}"

    @property
    def decomposition(self) -> str:
        """The parts of the number, in its unit: "3.26 states and tapes + 0.58 running"."""
        hundredths = _shares([size for _, size in self.parts], self.total, _SCALES[self._unit])
        shown = [(name, count) for (name, _), count in zip(self.parts, hundredths, strict=True) if count]
        return " + ".join(f"{_number(count / 100)} {name}" for name, count in shown)

    def __str__(self) -> str:
        over = self.limit is not None and self.total > self.limit
        beyond = f", over the limit of {bytes_text(self.limit or 0)}" if over else ""
        return f"{self.short} = {self.decomposition}{beyond}" if self.parts else f"{self.short}{beyond}"

    @property
    def _unit(self) -> str:
        within = self.limit is not None and self.total <= self.limit < 100 * self.total
        return bytes_text(self.limit if within and self.limit else self.total).rpartition(" ")[2]

    def _in_unit(self, size: int) -> str:
        return _number(size / _SCALES[self._unit])


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _shares(sizes: list[int], total: int, scale: int) -> list[int]:
    """Sizes in hundredths of a unit, rounded so that they sum to the rounded total: never 0.73 + 0 = 0.74."""
    exact = [100 * size / scale for size in sizes]
    if sum(sizes) != total:
        return [round(value) for value in exact]
    counts = [int(value) for value in exact]
    missing = round(100 * total / scale) - sum(counts)
    for at in sorted(range(len(sizes)), key=lambda at: counts[at] - exact[at])[:missing]:
        counts[at] += 1
    return counts


def headline_of(summary: Summary) -> Headline:
    """The headline: the allocated bytes if they were measured, otherwise states, tapes and cotangents."""
    trace = summary.subject.trace
    if trace.totals.allocated is not None and trace.totals.allocated > trace.peak:
        running = trace.totals.allocated - trace.peak
        parts = (("states and tapes", trace.peak), ("running", running))
        return Headline(trace.totals.allocated, summary.limit, parts)
    names = {"state": "states", "tape": "tapes", "cotangent": "cotangents"}
    sizes = sorted(summary.timeline.at_peak.items(), key=lambda item: -item[1])
    return Headline(trace.peak, summary.limit, tuple((names[kind], size) for kind, size in sizes if size))
