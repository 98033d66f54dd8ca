"""A model under a budget that ran in a profile: its plan, and what is known of its memory.

In: from a framework, while a profile is open. Out: a value that is saved with the profile and reported.
"""

from dataclasses import dataclass
from typing import Any

from remat.planners import Plan
from remat.profiling.segment_contents import count_of

__all__ = ["ModelRecord"]


@dataclass(frozen=True)
class ModelRecord:
    """The model's name and plan; its budget and measured peak are None if the plan was given and not made for it."""

    name: str
    plan: Plan
    memory: int | None = None
    peak: int | None = None  # of a whole step, when the plan was tried
    outputs: int = 0  # bytes of what the model returns, which are in that peak and not in the plan

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data."""
        numbers = {"memory": self.memory, "peak": self.peak, "outputs": self.outputs}
        return {"name": self.name, "plan": self.plan.envelope(), **numbers}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ModelRecord":
        """The record from plain data; numbers that make no sense raise a FileError."""
        memory, peak = (None if data[name] is None else count_of(data[name]) for name in ("memory", "peak"))
        return cls(str(data["name"]), Plan.from_envelope(data["plan"]), memory, peak, count_of(data["outputs"]))
