"""Progress bars on stderr if that is a terminal; in a pipe nothing is written."""

from types import TracebackType

__all__ = ["Bars"]


class Bars:
    """One bar for the job, and one below it for the long computation inside, which reports by `update`."""

    def __enter__(self) -> "Bars":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
        self._bars = Progress(
            *columns,
            console=console,
            disable=not console.is_terminal,
            transient=True,
            redirect_stdout=False,  # data goes to stdout, not to the console of the bars
            redirect_stderr=False,
        )
        self._bars.start()
        self._job = self._bars.add_task("", total=None)
        self._inside = self._bars.add_task("  of it", total=None, visible=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, what: str, total: int | None = None) -> None:
        """Begin a new stage of the job."""
        self._bars.reset(self._job, description=what, total=total)
        self._bars.update(self._inside, visible=False)

    def step(self) -> None:
        """One unit of the stage is done."""
        self._bars.advance(self._job)

    def update(self, done: int, total: int | None) -> None:
        """Show how much of the computation inside is done."""
        self._bars.update(self._inside, completed=done, total=total, visible=True)
