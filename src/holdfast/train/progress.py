"""Where trainings are shown: a live bar on a terminal or in a notebook, a table where several run at once, plain
lines elsewhere, or nowhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Self

from markupsafe import escape
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.printable import one_line


class Progress(AbstractContextManager["Progress"]):
    """Receives every step and epoch; this one shows nothing. silent: whether nobody sees what it is told."""

    silent = True

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """A stage starts or continues: its epochs, steps per epoch, steps already done."""

    def step(self) -> None:
        """A step was issued to the device."""

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        """An epoch ended with these metrics."""

    def doing(self, text: str) -> None:
        """What the next step is, for work whose steps have names."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def log(self, text: str) -> None:
        """What is being done, for logs alone: a bar shows it already."""

    def __exit__(self, *error: object) -> None:
        return None


class PlainProgress(Progress):
    """One line per epoch, for logs."""

    silent = False

    def __init__(self, console: Console) -> None:
        self.console = console

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        left = record["seconds"] * (epochs - record["epoch"])
        self.note(f"{describe(record, epochs)}  left {duration(left)}")

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def log(self, text: str) -> None:
        self.note(text)


class BarProgress(PlainProgress):
    """A live bar with the last epoch's figures."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        done = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps · left"))
        last = TextColumn("{task.fields[last]}", markup=False)
        self.bar = Bar(*done, TimeRemainingColumn(), last, console=console, transient=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        self.task = self.bar.add_task(stage, total=epochs * steps, completed=done, last="")

    def step(self) -> None:
        self.bar.advance(self.task)

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.bar.update(self.task, last=describe(record, epochs))

    def doing(self, text: str) -> None:
        self.bar.update(self.task, last=text)

    def log(self, text: str) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


class NotebookProgress(Progress):
    """A bar below the cell, with the last epoch's figures and the notes. Needs nothing but IPython itself."""

    silent = False
    PAUSE = 0.2
    """Seconds between two drawings: each is a message to the browser."""

    def __init__(self) -> None:
        ipython: Any = import_module("IPython.display")
        self._html = ipython.HTML
        self._handle = ipython.display(ipython.HTML(""), display_id=True)
        self.stage, self.total, self.done, self.last = "", 0, 0, ""
        self.notes: list[str] = []
        self._started, self._first, self._drawn = time.monotonic(), 0, 0.0
        self._passing = False  # whether the last line only says what is being done

    def begin(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self.stage, self.total, self.done, self.last = stage, epochs * steps, done, ""
        self._started, self._first = time.monotonic(), done
        self.draw()

    def step(self) -> None:
        self.done += 1
        if time.monotonic() - self._drawn >= self.PAUSE:
            self.draw()

    def epoch(self, record: Mapping[str, Any], epochs: int) -> None:
        self.last, self._passing = describe(record, epochs), False

    def doing(self, text: str) -> None:
        self.last, self._passing = text, True
        self.draw()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.draw()

    def draw(self, *, ended: bool = False) -> None:
        """Show the present state; the bar goes when the work has ended, its last line and the notes stay."""
        self._drawn = time.monotonic()
        lines = [f"<div>{escape(text)}</div>" for text in self.notes]
        if self.total and not ended:
            spent, made = self._drawn - self._started, self.done - self._first
            left = f" · left {duration(spent / made * (self.total - self.done))}" if made else ""
            bar = f'<progress value="{self.done}" max="{self.total}" style="width: 40%"></progress>'
            text = f"{self.done} of {self.total} steps{left}"
            lines.append(f"<div>{escape(self.stage)} {bar} {text} <small>{escape(self.last)}</small></div>")
        elif self.last and not self._passing:
            lines.append(f"<div><small>{escape(self.last)}</small></div>")
        if self._handle is not None:
            self._handle.update(self._html("".join(lines)))

    def __exit__(self, *error: object) -> None:
        self.draw(ended=True)


def in_notebook() -> bool:
    """Whether a kernel runs this code, so that output goes to a notebook."""
    ipython: Any = sys.modules.get("IPython")  # a kernel has it loaded
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def make_progress(show: bool | Progress | None = None) -> Progress:
    """The right one: a bar on a terminal and in a notebook; elsewhere lines if ``show``, nothing if it was left open or
    False. One that is made already stays."""
    if isinstance(show, Progress):
        return show
    console = Console(file=sys.stderr)
    if show is False:
        return Progress()
    if in_notebook():
        return NotebookProgress()
    if console.is_terminal:
        return BarProgress(console)
    return PlainProgress(console) if show else Progress()


def describe(record: Mapping[str, Any], epochs: int) -> str:
    """One epoch in one line.

    >>> describe({"stage": "main", "epoch": 2, "train_loss": 0.5, "train_accuracy": 0.8}, 10)
    'epoch 2/10  loss 0.5000  train 80.0 %'
    """
    parts = [f"epoch {record['epoch']}/{epochs}", f"loss {record['train_loss']:.4f}"]
    for key, word in (("train_accuracy", "train"), ("val_accuracy", "val"), ("test_accuracy", "test")):
        if key in record:
            parts.append(f"{word} {100 * record[key]:.1f} %")
    if "images_per_second" in record:
        parts.append(f"{record['images_per_second']:,.0f} images/s")
    stage = "" if record["stage"] == "main" else f"{record['stage']}: "
    return stage + "  ".join(parts)


def duration(seconds: float) -> str:
    """
    >>> duration(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
