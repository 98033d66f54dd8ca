"""What a plan promises: how good its schedule is among all others, and what it will cost."""

from dataclasses import dataclass
from math import ceil, isclose

from remat.schedule import Trace
from remat.units import number_text

__all__ = ["Claim", "Prediction"]


@dataclass(frozen=True)
class Claim:
    """What is proved of a plan: `factor` 1.0 is optimal, among the schedules that `within` names if it is not empty.

    A larger factor is over a lower bound from `bounds`; None proves nothing.

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
        """Whether nothing in its class is better."""
        return self.factor == 1.0

    @property
    def short(self) -> str:
        """The claim in a few words; `str` has the class of schedules in which it is proved.

        >>> Claim(1.0036, "states only").short
        'within 0.4 % of optimal'
        """
        if self.factor is None or self.factor == 1.0:
            return "heuristic" if self.factor is None else "optimal"
        percent = ceil(1000 * (self.factor - 1)) / 10  # rounded up, so that what is printed is still true
        return f"within {number_text(percent)} % of optimal"

    @property
    def long(self) -> str:
        """The claim in a few words, then exactly, where that is more."""
        return str(self) if self.factor is None or self.optimal else f"{self.short}: {self}"

    def __str__(self) -> str:
        inside = f" within {self.within}" if self.within else ""
        if self.factor is None:
            return f"heuristic{inside}"
        if self.optimal:
            return f"optimal{inside}"
        # Rounded up, so that what is printed is still true.
        return f"at most {ceil(self.factor * 1000) / 1000:.3f}".rstrip("0").rstrip(".") + f"x the bound{inside}"


@dataclass(frozen=True)
class Prediction:
    """What a schedule will cost: units run without and with tape, peak bytes of the device, seconds."""

    advances: int
    records: int
    peak: int
    seconds: float

    @classmethod
    def of(cls, trace: Trace) -> "Prediction":
        """What a trace says: the way to predict for planners without a formula of their own."""
        return cls(trace.advances, trace.records, trace.peak, trace.seconds)

    def agrees(self, other: "Prediction") -> bool:
        """Whether both say the same, but for the rounding of sums of times."""
        counts = (self.advances, self.records, self.peak) == (other.advances, other.records, other.peak)
        return counts and isclose(self.seconds, other.seconds, rel_tol=1e-6, abs_tol=1e-12)
