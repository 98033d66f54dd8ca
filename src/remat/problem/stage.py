"""A stage of a chain: how it runs without a tape, and the options to record it.

A framework's graph keeps a stage's input alive until its pullback (`holds_input`) and often contains its output
(`holds_output`). `tape` never includes these two: a state with several holders counts once, so the machine must know
which tapes hold which states. Peaks are the bytes live besides the input, both while a stage is recorded and while it
is pulled back; if they were not measured, `Stage` derives them from the other sizes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from remat.errors import ProblemError
from remat.problem.graph import Graph
from remat.units import bytes_text, to_bytes, to_count, to_seconds

__all__ = ["Option", "Stage"]


@dataclass(frozen=True, init=False)
class Option:
    """One way to record a stage: the bytes and the seconds of its tape.

    `tape` is the tape's own bytes, without the stage's input and output. `record_peak` and `pullback_peak` are measured
    peaks in bytes, without the input: the first includes output and tape, the second the tape and both cotangents.
    `remade` names storages of the stage's graph that are not in the tape and that the pullback recomputes; `backward`
    includes the time for that.

    >>> Option(tape="3 MiB", record=1.5, backward=2.0, name="keep attention").tape
    3145728
    """

    tape: int
    record: float
    backward: float
    record_peak: int | None
    pullback_peak: int | None
    holds_input: bool
    holds_output: bool
    name: str
    remade: tuple[str, ...]

    def __init__(
        self,
        tape: int | str = 1,
        record: float | str = 1.0,
        backward: float | str = 2.0,
        record_peak: int | str | None = None,
        pullback_peak: int | str | None = None,
        holds_input: bool = True,
        holds_output: bool = True,
        name: str = "",
        remade: Iterable[str] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "tape", to_bytes(tape, "tape"))
        put(self, "record", to_seconds(record, "record"))
        put(self, "backward", to_seconds(backward, "backward"))
        put(self, "record_peak", None if record_peak is None else to_bytes(record_peak, "record_peak"))
        put(self, "pullback_peak", None if pullback_peak is None else to_bytes(pullback_peak, "pullback_peak"))
        for flag, value in (("holds_input", holds_input), ("holds_output", holds_output)):
            if not isinstance(value, bool):
                raise ProblemError(f"{flag} must be True or False, not {value!r}")
            put(self, flag, value)
        put(self, "name", str(name))
        put(self, "remade", tuple(map(str, remade)))
        if self.pullback_peak is not None and self.pullback_peak < self.tape:
            raise ProblemError(
                f"a pullback has its whole tape live when it starts, so pullback_peak "
                f"({bytes_text(self.pullback_peak)}) cannot be below tape ({bytes_text(self.tape)})"
            )

    def to_dict(self) -> dict[str, Any]:
        """The option as plain data."""
        return {**{item.name: getattr(self, item.name) for item in fields(self)}, "remade": list(self.remade)}


@dataclass(frozen=True, init=False)
class Stage:
    """One stage of a chain: its time and sizes without a tape, and one or more options to record it.

    The arguments `backward`, `record`, `tape`, `backward_workspace`, `holds_input` and `holds_output` describe a single
    option; `options` gives several, the one that keeps most first. A stage that is not `repeatable` runs once and is
    recorded then: no plan advances over it. A stage may stand for several consecutive `functions` of a chain that must
    not be separated, because one writes into the result of the one before. `graph` holds the stage's operations if its
    options were found from them.

    >>> Stage(forward=1.0, backward=2.0, output="1 MiB", tape="4 MiB", name="layer3.0").output
    1048576
    >>> Stage(output=8, options=[Option(tape=24), Option(tape=0, backward=3.0, name="keep nothing")]).options[1].tape
    0
    """

    forward: float
    output: int
    forward_workspace: int
    backward_workspace: int
    name: str
    options: tuple[Option, ...]
    repeatable: bool
    functions: int
    graph: Graph | None = field(repr=False)

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
        *,
        holds_input: bool = True,
        holds_output: bool = True,
        options: Iterable[Option] | None = None,
        repeatable: bool = True,
        functions: int = 1,
        graph: Graph | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "forward", to_seconds(forward, "forward"))
        put(self, "output", to_bytes(output, "output"))
        put(self, "forward_workspace", to_bytes(forward_workspace, "forward_workspace"))
        put(self, "backward_workspace", to_bytes(backward_workspace, "backward_workspace"))
        put(self, "name", str(name))
        if options is None:
            seconds = self.forward if record is None else to_seconds(record, "record")
            options = [Option(tape, seconds, backward, holds_input=holds_input, holds_output=holds_output)]
        put(self, "options", tuple(options))
        if not isinstance(repeatable, bool):
            raise ProblemError(f"repeatable must be True or False, not {repeatable!r}")
        put(self, "repeatable", repeatable)
        put(self, "functions", to_count(functions, "functions", least=1))
        put(self, "graph", graph)
        self._check_options()

    def _check_options(self) -> None:
        if not self.options or not all(isinstance(option, Option) for option in self.options):
            raise ProblemError(f"options of a stage must be one or more Option values, not {self.options!r:.60}")
        for option in self.options:
            least = self.output + option.tape
            if option.record_peak is not None and option.record_peak < least:
                raise ProblemError(
                    f"a recorded stage has its output and its tape live at the end, so record_peak "
                    f"({bytes_text(option.record_peak)}) cannot be below {bytes_text(least)}"
                )

    @property
    def running_peak(self) -> int:
        """The most bytes besides the input, the output included, while the stage runs without a tape."""
        return self.output + self.forward_workspace

    def record_peak(self, option: int) -> int:
        """The most bytes besides the input while the stage is recorded."""
        chosen = self.options[option]
        return self.running_peak + chosen.tape if chosen.record_peak is None else chosen.record_peak

    def pullback_peak(self, option: int, input: int) -> int:
        """The most bytes besides the input while the stage is pulled back; `input` is the bytes of that input."""
        chosen = self.options[option]
        if chosen.pullback_peak is not None:
            return chosen.pullback_peak
        held = chosen.tape + (self.output if chosen.holds_output else 0)
        return held + input + self.output + self.backward_workspace

    def to_dict(self) -> dict[str, Any]:
        """The stage as plain data."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        graph = None if self.graph is None else self.graph.to_dict()
        return {**data, "options": [option.to_dict() for option in self.options], "graph": graph}

    def with_times(self, factor: float) -> "Stage":
        """The stage with all times multiplied by `factor`."""
        data = self.to_dict()
        for times, names in ((data, ("forward",)), *((option, ("record", "backward")) for option in data["options"])):
            times.update({name: times[name] * factor for name in names})
        return Stage.from_dict(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Stage":
        """The stage from plain data."""
        graph = None if data.get("graph") is None else Graph.from_dict(data["graph"])
        return cls(**{**data, "options": [Option(**option) for option in data["options"]], "graph": graph})
