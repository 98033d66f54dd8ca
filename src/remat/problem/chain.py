"""A chain: unequal stages one after another. State i is the input of stage i, state n the result.

States are shared: a state that is kept, is the working state and is held by tapes counts once, as in an allocator
(`schedule/chain_machine.py` does the counting). The cotangent of state i has the bytes of state i; the cotangent of the
result arrives with the first pullback, whose peak includes it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, ClassVar

from remat.errors import ProblemError
from remat.problem.serialization import Serializable
from remat.problem.stage import Option, Stage
from remat.units import bytes_text, count_text, time_text, to_bytes

__all__ = ["Chain"]

MOST_ROWS = 60  # groups of equal stages to print at most


@dataclass(frozen=True, init=False)
class Chain(Serializable):
    """Stages that run one after another.

    Args:
        stages: The stages, first to last.
        input: Bytes of the input of the first stage.

    Example:
        >>> Chain([Stage(output=4), Stage(output=2)], input=8).state_size(1)
        4
    """

    stages: tuple[Stage, ...]
    input: int
    _forward: tuple[float, ...] = field(repr=False, compare=False)

    kind: ClassVar[str] = "chain"
    unit: ClassVar[str] = "stage"
    version: ClassVar[int] = 2
    restartable: ClassVar[bool] = False  # not needed: keeping a state that a tape holds costs nothing

    def __init__(self, stages: Iterable[Stage], input: int | str = 1) -> None:
        put = object.__setattr__
        put(self, "stages", tuple(stages))
        for position, stage in enumerate(self.stages):
            if not isinstance(stage, Stage):
                raise ProblemError(f"stage {position} must be a Stage, not {type(stage).__name__}")
        put(self, "input", to_bytes(input, "input"))
        put(self, "_forward", tuple(accumulate((stage.forward for stage in self.stages), initial=0.0)))

    def __str__(self) -> str:
        """A table with a row per stage and one per further option; consecutive equal stages share their rows."""
        head = ("stage", "forward", "record", "backward", "output", "tape")
        groups = [list(group) for _, group in groupby(enumerate(self.stages), key=lambda pair: _unnamed(pair[1]))]
        rows = [row for group in groups[:MOST_ROWS] for row in _rows(group)]
        if len(groups) > MOST_ROWS:
            rows.append((f"and {count_text(sum(map(len, groups[MOST_ROWS:])))} more", *[""] * 5))
        times = (f(0, self.units) for f in (self.advance_time, self.record_time, self.pullback_time))
        total = ("all", *map("{:.3g}".format, times), "", bytes_text(self.tape_size(0, self.units)))
        lines = ["{:<26.26}{:>9}{:>9}{:>9}{:>13}{:>13}".format(*row) for row in (head, *rows, total)]
        return "\n".join([f"chain of {self.title}, input {bytes_text(self.input)}", *lines])

    @property
    def units(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def timed(self) -> bool:
        """Whether times were given, in seconds; if not, the forward of a stage counts 1 and its backward 2."""
        return any(
            (stage.forward, option.record, option.backward) != (1.0, 1.0, 2.0)
            for stage in self.stages
            for option in stage.options
        )

    @property
    def title(self) -> str:
        """The number of stages as text."""
        return f"{count_text(self.units)} stages"

    def describe(self, *, times: bool = False) -> list[tuple[str, str]]:
        """Rows about the largest sizes of a stage and, with `times`, the total times of all stages."""
        state, tape = self._largest()
        several = sum(len(stage.options) > 1 for stage in self.stages)
        options = f", {count_text(several)} with options" if several else ""
        rows = [("stages", f"states up to {bytes_text(state)}, tapes up to {bytes_text(tape)}{options}")]
        if times:
            forward, record = self.advance_time(0, self.units), self.record_time(0, self.units)
            backward = self.pullback_time(0, self.units)
            named = {"forward": forward, "record": record, "backward": backward}
            words = [f"{name} {time_text(time, 'stage', timed=self.timed)}" for name, time in named.items()]
            rows.append(("all times", ", ".join(words) if self.timed else "not given: forward counts 1, backward 2"))
        return rows

    def shrink_advice(self) -> str:
        """What to make smaller so that the chain fits less memory."""
        state, tape = map(bytes_text, self._largest())
        pulling = bytes_text(self.pulling_size(0, self.units) if self.units else 0)
        return (
            f"make the largest tape ({tape}), state ({state}), or cotangents and workspace of a pullback ({pulling}) "
            f"smaller, or split the stage"
        )

    def unit_name(self, unit: int) -> str:
        """The name of the stage, or an empty string."""
        return self.stages[unit].name if unit < len(self.stages) else ""

    def state_size(self, state: int) -> int:
        """Bytes of one state."""
        return self.input if state == 0 else self.stages[state - 1].output

    def tape_size(self, start: int, stop: int, option: int = 0) -> int:
        """Bytes of the tape of stages start..stop-1, without the states that it holds."""
        return sum(chosen.tape for chosen in self._options(start, stop, option))

    def running_size(self, start: int, stop: int, *, record: bool) -> int:
        """The most bytes of input, output and workspace while one of the stages runs."""
        return max(self.state_size(i) + self.stages[i].running_peak for i in range(start, stop))

    def pulling_size(self, start: int, stop: int) -> int:
        """The most bytes of cotangents and workspace while one of the stages, with its first option, is pulled back."""
        return max(
            self.stages[i].pullback_peak(0, self.state_size(i)) - self.stages[i].options[0].tape
            for i in range(start, stop)
        )

    def advance_time(self, start: int, stop: int) -> float:
        """Time to run stages start..stop-1 without a tape."""
        return self._forward[stop] - self._forward[start]

    def record_time(self, start: int, stop: int, option: int = 0) -> float:
        """Time to run stages start..stop-1 and store their tape."""
        return sum(chosen.record for chosen in self._options(start, stop, option))

    def pullback_time(self, start: int, stop: int, option: int = 0) -> float:
        """Time to pull a cotangent back through stages start..stop-1."""
        return sum(chosen.backward for chosen in self._options(start, stop, option))

    def with_times(self, factor: float) -> "Chain":
        """The chain with all times multiplied by `factor`."""
        return Chain([stage.with_times(factor) for stage in self.stages], self.input)

    def to_dict(self) -> dict[str, Any]:
        """The chain as plain data."""
        return {"input": self.input, "stages": [stage.to_dict() for stage in self.stages]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Chain":
        """The chain from plain data."""
        return cls([Stage.from_dict(stage) for stage in data["stages"]], data["input"])

    def _options(self, start: int, stop: int, option: int) -> Iterator[Option]:
        return (stage.options[option] for stage in self.stages[start:stop])

    def _largest(self) -> tuple[int, int]:
        """Bytes of the largest state and of the largest tape."""
        states = [self.state_size(state) for state in range(self.units + 1)]
        return max(states), max((option.tape for stage in self.stages for option in stage.options), default=0)


def _unnamed(stage: Stage) -> tuple[Any, ...]:
    """What two stages must share to be in one row of the table: everything but their names."""
    data = stage.to_dict()
    return tuple(value if name != "options" else stage.options for name, value in data.items() if name != "name")


def _rows(group: Sequence[tuple[int, Stage]]) -> Iterator[tuple[str, ...]]:
    """The rows of the table for consecutive equal stages, given with their positions."""
    (first, stage), (last, _) = group[0], group[-1]
    name = (stage.name or str(first)) + (f" to {last}" if last > first else "")
    for option in stage.options:
        times = (f"{stage.forward:.3g}", f"{option.record:.3g}", f"{option.backward:.3g}")
        if option is stage.options[0]:
            yield name, *times, bytes_text(stage.output), bytes_text(option.tape)
        else:
            yield f"  or {option.name}", "", *times[1:], "", bytes_text(option.tape)
