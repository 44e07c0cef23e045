"""How a comparison with several trainings at once is shown: a table on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Self

from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.printable import one_line
from holdfast.train.progress import BarProgress, Progress


class LiveTable(AbstractContextManager["LiveTable"]):
    """Takes what ends and what is running. total: cells to come."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0
        self._live: Live | None = None
        self._held: Sequence[str] = ()
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        if isinstance(self.progress, BarProgress):
            self._live = Live(console=self.progress.console, transient=True, auto_refresh=False)
            self._live.start()
        else:
            self.progress.__enter__()
            self.progress.begin("trainings", 1, self.total, 0)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop() if self._live else self.progress.__exit__(*error)

    def ended(self, what: str, notes: Sequence[str] = ()) -> None:
        """One more is done. notes: what its training had to say; nothing is said twice."""
        self.done += 1
        self.progress.note(f"{self.done} of {self.total}: {what}")
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                self.progress.note(f"  {note}")
        if self._live is None:
            self.progress.step()

    def show(self, running: Mapping[str, str], held: Sequence[str]) -> None:
        """running: how far each is, by name; empty for one that waits for a worker. held: by other commands."""
        if held and list(held) != self._held:
            self.progress.note(f"other commands are training {', '.join(held)}; waiting for them")
        self._held = list(held)
        if self._live is None:
            return
        at_work = {name: status for name, status in running.items() if status}
        table = RichTable(box=None, show_header=False, pad_edge=False)
        for name, status in [*at_work.items(), *((name, "in another command") for name in held)]:
            table.add_row(Text(one_line(name)), Text(one_line(status), style="dim"))
        waiting = self.total - self.done - len(at_work) - len(held)
        table.add_row(Text(f"{self.done} of {self.total} done"), Text(f"{waiting} waiting"))
        self._live.update(table, refresh=True)
