"""What a plan promises: how good its schedule is compared with all others, and what it will cost."""

from dataclasses import dataclass
from math import ceil, isclose

from remat.schedule import Trace
from remat.units import number_text

__all__ = ["Claim", "Prediction"]


@dataclass(frozen=True)
class Claim:
    """What is proved about a plan.

    A `factor` of 1.0 means optimal, among the schedules that `within` names unless it is empty. A larger factor is over
    a lower bound from `bounds`; None means that nothing is proved.

    >>> print(Claim(1.0)), print(Claim(1.0, "states only")), print(Claim(1.0271)), print(Claim(None))
    optimal
    optimal within states only
    at most 1.028x the bound
    heuristic
    (None, None, None, None)
    """

    factor: float | None
    within: str = ""

    @property
    def optimal(self) -> bool:
        """Whether no schedule in its class is better."""
        return self.factor == 1.0

    @property
    def short(self) -> str:
        """The claim in a few words; `str` adds the class of schedules for which it is proved.

        >>> Claim(1.0036, "states only").short
        'within 0.4 % of optimal'
        """
        if self.factor is None or self.factor == 1.0:
            return "heuristic" if self.factor is None else "optimal"
        percent = ceil(1000 * (self.factor - 1)) / 10  # rounded up, so that the text stays true
        return f"within {number_text(percent)} % of optimal"

    @property
    def long(self) -> str:
        """The claim in a few words, followed by the exact claim if that says more."""
        return str(self) if self.factor is None or self.optimal else f"{self.short}: {self}"

    def __str__(self) -> str:
        inside = f" within {self.within}" if self.within else ""
        if self.factor is None:
            return f"heuristic{inside}"
        if self.optimal:
            return f"optimal{inside}"
        # Rounded up, so that the text stays true.
        return f"at most {ceil(self.factor * 1000) / 1000:.3f}".rstrip("0").rstrip(".") + f"x the bound{inside}"


@dataclass(frozen=True)
class Prediction:
    """What a schedule will cost: units run without and with a tape, peak bytes on the device, and seconds."""

    advances: int
    records: int
    peak: int
    seconds: float

    @classmethod
    def of(cls, trace: Trace) -> "Prediction":
        """The costs of a trace, for planners that have no formula."""
        return cls(trace.advances, trace.records, trace.peak, trace.seconds)

    def agrees(self, other: "Prediction") -> bool:
        """Whether both are equal, up to rounding in sums of times."""
        counts = (self.advances, self.records, self.peak) == (other.advances, other.records, other.peak)
        return counts and isclose(self.seconds, other.seconds, rel_tol=1e-6, abs_tol=1e-12)
