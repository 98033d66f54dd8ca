"""A loop: n equal steps. State i is the input of step i, state n the result."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from remat.errors import ProblemError
from remat.problem.serialization import Serializable
from remat.units import bytes_text, count_text, seconds_text, to_bytes, to_count, to_seconds

__all__ = ["Loop"]


@dataclass(frozen=True, init=False)
class Loop(Serializable):
    """`steps` equal steps, each with its sizes and times.

    Sizes are bytes (an int, or text like "1 MiB"), times are seconds (a number, or text like "20 ms").

    Args:
        steps: The number of steps; None if it is not known in advance.
        state: Bytes of the state that one step passes to the next.
        tape: Bytes that the backward of one step needs.
        forward: The time of a step without a tape.
        record: The time of a step that stores its tape; by default that of `forward`.
        backward: The time of the backward of a step.
        restartable: Whether the tape of a step contains its output.
        per_range: A fixed time for each recorded range, whatever its length.

    Example:
        >>> Loop(1000, state="1 MiB", tape="9 MiB").tape
        9437184
    """

    steps: int | None
    state: int
    tape: int
    forward: float
    record: float
    backward: float
    restartable: bool
    per_range: float

    kind: ClassVar[str] = "loop"
    unit: ClassVar[str] = "step"

    def __init__(
        self,
        steps: int | None,
        state: int | str = 1,
        tape: int | str = 1,
        forward: float | str = 1.0,
        record: float | str | None = None,
        backward: float | str = 2.0,
        restartable: bool = False,
        per_range: float | str = 0.0,
    ) -> None:
        put = object.__setattr__
        put(self, "steps", None if steps is None else to_count(steps, "steps"))
        put(self, "state", to_bytes(state, "state", least=1))
        put(self, "tape", to_bytes(tape, "tape"))
        put(self, "forward", to_seconds(forward, "forward"))
        put(self, "record", self.forward if record is None else to_seconds(record, "record"))
        put(self, "backward", to_seconds(backward, "backward"))
        if not isinstance(restartable, bool):
            raise ProblemError(f"restartable must be True or False, not {restartable!r}")
        if restartable and self.tape < self.state:
            raise ProblemError(
                f"a restartable tape also holds the step's output, so it cannot be smaller ({self.tape} bytes) "
                f"than a state ({self.state} bytes)"
            )
        put(self, "restartable", restartable)
        put(self, "per_range", to_seconds(per_range, "per_range"))

    @property
    def units(self) -> int:
        """The number of steps; raise a ProblemError if it is unknown."""
        if self.steps is None:
            raise ProblemError("the loop's length is not known (steps=None): only the online planner takes it")
        return self.steps

    def with_steps(self, steps: int | None) -> "Loop":
        """The same loop with another number of steps."""
        return Loop(**{**self.to_dict(), "steps": steps})

    @property
    def timed(self) -> bool:
        """Whether times are in seconds; if `forward` is exactly 1, times are multiples of a step's forward time."""
        return self.forward != 1.0

    @property
    def sized(self) -> bool:
        """Whether sizes were given; if not, a state and a tape count 1 each."""
        return (self.state, self.tape) != (1, 1)

    @property
    def title(self) -> str:
        """The number of steps as text."""
        return "steps of unknown number" if self.steps is None else f"{count_text(self.steps)} steps"

    def describe(self, *, times: bool = False) -> list[tuple[str, str]]:
        """Rows about a step's sizes and, with `times`, its times."""
        given = f"state {bytes_text(self.state)}, tape {bytes_text(self.tape)}"
        rows = [("step", given if self.sized else "sizes not given: a state counts 1, a tape counts 1")]
        if times:
            named = {"forward": self.forward, "record": self.record, "backward": self.backward}
            words = [f"{name} {seconds_text(time)}" for name, time in named.items()]
            counted = f"not given: forward counts 1, record {self.record:g}, backward {self.backward:g}"
            rows.append(("step's times", ", ".join(words) if self.timed else counted))
        return rows

    def shrink_advice(self) -> str:
        """What to make smaller so that the loop fits less memory."""
        return f"make a step's tape ({bytes_text(self.tape)}) or state ({bytes_text(self.state)}) smaller"

    def unit_name(self, unit: int) -> str:
        """An empty string: the steps of a loop have no names."""
        return ""

    def state_size(self, state: int) -> int:
        """Bytes of one state."""
        return self.state

    def tape_size(self, start: int, stop: int) -> int:
        """Bytes of the tape of steps start..stop-1."""
        return (stop - start) * self.tape

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """Bytes of a step's input and output, which are both live while it runs."""
        return 2 * self.state

    def pulling_size(self, start: int, stop: int) -> int:
        """Bytes of the cotangents of a step's output and input."""
        return 2 * self.state

    def advance_time(self, start: int, stop: int) -> float:
        """Time to run steps start..stop-1 without a tape."""
        return (stop - start) * self.forward

    def record_time(self, start: int, stop: int, option: int = 0) -> float:
        """Time to run steps start..stop-1 and store their tape, as one range."""
        return (stop - start) * self.record + self.per_range

    def pullback_time(self, start: int, stop: int, option: int = 0) -> float:
        """Time to pull a cotangent back through steps start..stop-1."""
        return (stop - start) * self.backward

    def to_dict(self) -> dict[str, Any]:
        """The loop as plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Loop":
        """The loop from plain data."""
        return cls(**data)
