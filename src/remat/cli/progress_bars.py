"""Progress on stderr: bars with names and percentages on a terminal, otherwise a line now and then."""

import sys
from time import monotonic
from types import TracebackType

__all__ = ["Bars"]

EVERY = 10.0  # seconds between lines without a terminal


class Bars:
    """One bar for the stage of the job and, if the stage has parts, one below it for the running part.

    If the number of parts is not given, the computation itself reports the progress of the stage, through `update`.
    """

    def __enter__(self) -> "Bars":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description:<34}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._terminal = console.is_terminal
        self._bars = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
            transient=True,
            redirect_stdout=False,  # data goes to stdout, not to the console of the bars
            redirect_stderr=False,
        )
        self._bars.start()
        self._stage = self._bars.add_task("", total=None)
        self._part = self._bars.add_task("", total=None, visible=False)
        self._began = self._written = monotonic()
        self._name, self._done, self._total = "", 0, None  # type: str, int, int | None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, what: str, total: int | None = None, *, part: str = "this part") -> None:
        """Begin a new stage of the job, with `total` parts if known; `part` names a part."""
        self._name, self._done, self._total = what, 0, total
        self._bars.reset(self._stage, description=what, total=total)
        self._bars.update(self._part, description=f"  {part}", visible=False)
        self._write_line()

    def step(self) -> None:
        """Mark one more part of the stage as done."""
        self._done += 1
        self._bars.advance(self._stage)
        self._write_line()

    def update(self, done: int, total: int | None) -> None:
        """Show how much of the running computation is done."""
        if self._total is None:
            self._bars.update(self._stage, completed=done, total=total)
            self._write_line(done, total)
        else:
            self._bars.update(self._part, completed=done, total=total, visible=True)
            self._write_line()

    def _write_line(self, done: int | None = None, total: int | None = None) -> None:
        """Without a terminal, write how far the stage is, if nothing was written for a while."""
        now = monotonic()
        if self._terminal or not self._name or now - self._written < EVERY:
            return
        self._written = now
        if self._total is not None:
            done, total = self._done, self._total
        far = f" {done / total:.0%}," if done is not None and total else ""
        print(f"remat: {self._name},{far} {now - self._began:.0f} s so far", file=sys.stderr)
