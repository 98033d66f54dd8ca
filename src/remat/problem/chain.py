"""A chain: unequal stages one after another. State i is the input of stage i, state n the result."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, ClassVar

from remat.errors import ProblemError
from remat.problem.serialization import Serializable
from remat.units import bytes_text, count_text, to_bytes, to_seconds

__all__ = ["Chain", "Stage"]


@dataclass(frozen=True, init=False)
class Stage:
    """One stage of a chain: its times, the bytes of its output and tape, and what it needs while it runs.

    >>> Stage(forward=1.0, backward=2.0, output="1 MiB", tape="4 MiB", name="layer3.0").output
    1048576
    """

    forward: float
    backward: float
    record: float
    output: int
    tape: int
    forward_workspace: int
    backward_workspace: int
    name: str

    def __init__(
        self,
        forward: float | str = 1.0,
        backward: float | str = 2.0,
        record: float | str | None = None,
        output: int | str = 1,
        tape: int | str = 1,
        forward_workspace: int | str = 0,
        backward_workspace: int | str = 0,
        name: str = "",
    ) -> None:
        put = object.__setattr__
        put(self, "forward", to_seconds(forward, "forward"))
        put(self, "backward", to_seconds(backward, "backward"))
        put(self, "record", self.forward if record is None else to_seconds(record, "record"))
        put(self, "output", to_bytes(output, "output"))
        put(self, "tape", to_bytes(tape, "tape"))
        put(self, "forward_workspace", to_bytes(forward_workspace, "forward_workspace"))
        put(self, "backward_workspace", to_bytes(backward_workspace, "backward_workspace"))
        put(self, "name", str(name))

    def to_dict(self) -> dict[str, Any]:
        """The stage as plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, init=False)
class Chain(Serializable):
    """Stages that run one after another; `input` is the bytes of the first one's input.

    >>> Chain([Stage(output=4), Stage(output=2)], input=8).state_size(1)
    4
    """

    stages: tuple[Stage, ...]
    input: int
    restartable: bool
    _sums: tuple[tuple[float, ...], ...] = field(repr=False, compare=False)

    kind: ClassVar[str] = "chain"
    unit: ClassVar[str] = "stage"

    def __init__(self, stages: Iterable[Stage], input: int | str = 1, restartable: bool = False) -> None:
        put = object.__setattr__
        put(self, "stages", tuple(stages))
        for position, stage in enumerate(self.stages):
            if not isinstance(stage, Stage):
                raise ProblemError(f"stage {position} must be a Stage, not {type(stage).__name__}")
        put(self, "input", to_bytes(input, "input"))
        if not isinstance(restartable, bool):
            raise ProblemError(f"restartable must be True or False, not {restartable!r}")
        put(self, "restartable", restartable)
        columns = ("forward", "record", "backward", "tape")
        sums = (tuple(accumulate((getattr(s, c) for s in self.stages), initial=0)) for c in columns)
        put(self, "_sums", tuple(sums))

    @property
    def units(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def title(self) -> str:
        """How many stages there are, in words."""
        return f"{count_text(self.units)} stages"

    def describe(self, *, times: bool = False) -> list[tuple[str, str]]:
        """Rows about the largest sizes of a stage and, if asked for, the times of all stages together."""
        state, tape = self._largest()
        rows = [("stages", f"states up to {bytes_text(state)}, tapes up to {bytes_text(tape)}")]
        if times:
            forward, record, backward = (self._between(column, 0, self.units) for column in range(3))
            rows.append(("all times", f"forward {forward:.4g}, record {record:.4g}, backward {backward:.4g}"))
        return rows

    def shrink_advice(self) -> str:
        """What to make smaller so that the chain fits less memory."""
        state, tape = self._largest()
        return f"make the largest tape ({bytes_text(tape)}) or state ({bytes_text(state)}) smaller"

    def unit_name(self, unit: int) -> str:
        """The name of the stage, or an empty text."""
        return self.stages[unit].name if unit < len(self.stages) else ""

    def state_size(self, state: int) -> int:
        """Bytes of one state."""
        return self.input if state == 0 else self.stages[state - 1].output

    def tape_size(self, start: int, stop: int) -> int:
        """Bytes of the tape of stages start..stop-1."""
        return int(self._between(3, start, stop))

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """The most bytes of input, output and workspace while one of the stages runs."""
        return max(self._pair(i) + self.stages[i].forward_workspace for i in range(start, stop))

    def pulling_size(self, start: int, stop: int) -> int:
        """The most bytes of cotangents and workspace while one of the stages is pulled back."""
        return max(self._pair(i) + self.stages[i].backward_workspace for i in range(start, stop))

    def advance_time(self, start: int, stop: int) -> float:
        """Time to run stages start..stop-1 without tape."""
        return self._between(0, start, stop)

    def record_time(self, start: int, stop: int) -> float:
        """Time to run stages start..stop-1 and store their tape."""
        return self._between(1, start, stop)

    def pullback_time(self, start: int, stop: int) -> float:
        """Time to pull a cotangent back through stages start..stop-1."""
        return self._between(2, start, stop)

    def to_dict(self) -> dict[str, Any]:
        """The chain as plain data."""
        stages = [stage.to_dict() for stage in self.stages]
        return {"input": self.input, "restartable": self.restartable, "stages": stages}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Chain":
        """The chain from plain data."""
        return cls([Stage(**stage) for stage in data["stages"]], data["input"], data["restartable"])

    def _largest(self) -> tuple[int, int]:
        """Bytes of the largest state and of the largest tape."""
        states = [self.state_size(state) for state in range(self.units + 1)]
        return max(states), max((stage.tape for stage in self.stages), default=0)

    def _pair(self, stage: int) -> int:
        return self.state_size(stage) + self.state_size(stage + 1)

    def _between(self, column: int, start: int, stop: int) -> float:
        return self._sums[column][stop] - self._sums[column][start]
