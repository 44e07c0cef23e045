"""What ``holdfast.fit`` returns: the trained model with its data, settings and metrics, to look up, show, save and
compare; and how a run loaded its data, which an audit or a prediction takes over. Open this file to change what a
run offers in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.data import Dataset
from holdfast.data.given_data import is_given
from holdfast.data.given_items import name_of
from holdfast.errors import HoldfastError, unknown
from holdfast.files import at_home
from holdfast.methods import State
from holdfast.models import ModelCard
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.html import write_report
from holdfast.reports.notebook_tables import SideBySide, data_frame, notebook_html
from holdfast.reports.run_files import RunFiles
from holdfast.reports.text import DIFFERENCE, PLAIN, SHARE, finite, quantity, setting
from holdfast.settings import DataSettings, TrainSettings, read_environment
from holdfast.settings.fields import flatten
from holdfast.settings.training_defaults import ChosenDefaults
from holdfast.train.folder import read_settings
from holdfast.types import Measure, Note

if TYPE_CHECKING:
    import pandas

SHOWN = ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "test_loss", "test_accuracy")
"""Metrics of an epoch that its table shows; :meth:`Run.rows` has all."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished training. In a notebook it shows itself as a table, with warnings first.

    history: one record per epoch, as in metrics.jsonl. out: the run folder, if one was written. state: the method's,
    with its auxiliary model. card: what the outputs mean and how to build the network; None for a module of your own.
    epoch: of the last stage, the one whose weights were kept; None for the last. chosen: which settings were not given,
    what they were set to and why (``run.chosen.values``, ``run.chosen.reasons``). handed: whether the data was handed
    over in Python, so that settings do not say where it lies.

    >>> from holdfast.train import fit
    >>> run = fit("digits", model="convnet", epochs=1, eval_every=0, device="cpu")
    >>> run
    <Run of erm on digits: convnet, 1 epoch, test accuracy ... %>
    >>> 0 <= run["test_accuracy"] <= 1
    True
    """

    model: nn.Module
    data: Dataset
    settings: TrainSettings
    history: tuple[Mapping[str, Any], ...]
    out: Path | None
    state: State
    card: ModelCard | None = None
    epoch: int | None = None
    chosen: ChosenDefaults | None = None
    handed: bool = False

    @property
    def name(self) -> str:
        """The method, with the ascent where there is one."""
        method, ascent = self.settings.method.name, self.settings.ascent.name
        return method if ascent == "none" else f"{method} with {ascent}"

    @property
    def network(self) -> str:
        """The network's name; the class of a module of your own."""
        return type(self.model).__name__ if self.card is None else self.card.name

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What was said of the data that changes how to read a number."""
        return tuple(note for note in self.data.notes if note.level == "warning")

    def trained_on(self, data: Any) -> bool:
        """Whether this is the data that it was trained on, by name or path; of objects in memory, by what they are."""
        if is_given(data):
            return self.data.name == name_of(data)
        return not self.handed and _same(self.settings.data.name, str(data))

    @property
    def kept(self) -> Mapping[str, Any]:
        """The metrics of the epoch whose weights were kept."""
        last = self.history[-1] if self.history else {}
        own = (r for r in self.history if r["stage"] == last["stage"] and r["epoch"] == self.epoch)
        return next(own, last)

    def __getitem__(self, name: str) -> Any:
        """A metric of the epoch whose weights were kept, such as ``run["test_accuracy"]``."""
        key = name.replace("-", "_")
        if key not in self.kept:
            raise unknown("metric", name, self.kept)
        return self.kept[key]

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per epoch: stage, epoch, learning rate, losses, accuracies, seconds."""
        return [dict(record) for record in self.history]

    def to_dataframe(self) -> pandas.DataFrame:
        """:meth:`rows` as a pandas data frame. Needs the extra ``holdfast[pandas]``."""
        return data_frame(self.history)

    def files(self) -> RunFiles:
        """The run as a report sees it: its folder where it has one, else what is in memory."""
        if self.out is not None:
            return RunFiles.read(self.out)
        settings = {**flatten(self.settings), "data": self.data.name, "model": self.network}
        of = {"name": self.data.name, "warnings": [str(note) for note in self.warnings]}
        return RunFiles(self.name, settings=settings, metrics=self.history, data=of)

    def report(self, path: str | Path) -> Path:
        """Write the report of the training, a page of its own; ``holdfast.audit(run)`` measures the rest."""
        return write_report([self.files()], path)

    def compare(self, other: Run | str | Path) -> SideBySide:
        """This run beside another: settings that differ, and the metrics of the kept epochs.

        other: a run or its folder. One training each says little: ``holdfast.compare`` repeats them over seeds.
        """
        if isinstance(other, Run):
            theirs, last, label = other.files(), other.kept, other.name
        else:
            theirs = RunFiles.read(other)
            last, label = theirs.metrics[-1] if theirs.metrics else {}, theirs.name
        if not last:
            raise HoldfastError(f"{label} has no metrics to compare with; train it first")
        ours, settings = self.files().settings, theirs.settings
        rows: list[dict[str, Any]] = [
            {"kind": "setting", "name": key, "this": ours.get(key), "other": settings.get(key), "difference": None}
            for key in dict.fromkeys([*ours, *settings])
            if ours.get(key) != settings.get(key)
        ]
        numbers = ((key, finite(self.kept.get(key)), finite(last.get(key))) for key in SHOWN)
        rows += [
            {"kind": "metric", "name": key, "this": a, "other": b, "difference": a - b}
            for key, a, b in numbers
            if a is not None and b is not None
        ]
        columns = Column.texts("", "name") + Column.numbers("this", "other", "difference")
        return SideBySide(
            f"{self.name}, compared with {label}", Table("", columns, tuple(map(_cells, rows))), tuple(rows)
        )

    def _repr_html_(self) -> str:
        """In a notebook: warnings, what was trained, and the metrics of the kept epoch."""
        loop, optimizer = self.settings.loop, self.settings.optimizer
        sizes = ", ".join(f"{len(split):,} {name}" for name, split in self.data.splits.items() if split is not None)
        facts = {
            "data": f"{self.data.name} ({sizes}; {self.data.num_classes} classes)",
            "network": self.network,
            "method": self.name,
            "optimizer": f"{optimizer.name}, learning rate {optimizer.lr:g}, batch size {loop.batch_size}",
            "epochs": " + ".join(map(str, _epochs(self.history))),
            "defaults": str(self.chosen or ""),
            "folder": "" if self.out is None else str(self.out),
        }
        trained = Table("", Column.texts("", ""), tuple((Cell(k), Cell(v)) for k, v in facts.items() if v))
        cells = tuple(
            (Cell(key.replace("_", " ")), Cell(quantity(_unit(key), value), value))
            for key in SHOWN
            if (value := finite(self.kept.get(key))) is not None
        )
        when = f"epoch {self.kept.get('epoch')}, whose weights were kept" if self.history else ""
        measured = Table(when, Column.texts("metric") + Column.numbers("value"), cells)
        warnings = [str(note) for note in self.warnings]
        return notebook_html(f"{self.name} on {self.data.name}", [measured, trained], warnings=warnings)

    def __repr__(self) -> str:
        count = sum(_epochs(self.history))
        words = [self.network, f"{count} epoch{'' if count == 1 else 's'}"]
        for key in ("val_accuracy", "test_accuracy"):
            if (value := finite(self.kept.get(key))) is not None:
                words.append(f"{key.replace('_', ' ')} {quantity(SHARE, value)}")
        words += [f"{len(self.warnings)} warnings"] if self.warnings else []
        where = "" if self.out is None else f", in {self.out}"
        return f"<Run of {self.name} on {self.data.name}: {', '.join(words)}{where}>"


def _epochs(history: tuple[Mapping[str, Any], ...]) -> list[int]:
    """How many epochs each stage was trained for."""
    return [sum(r["stage"] == stage for r in history) for stage in dict.fromkeys(r["stage"] for r in history)]


def _unit(key: str) -> Measure:
    return SHARE if key.endswith("accuracy") else replace(PLAIN, digits=4)


def _cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    name = Cell(str(row["name"]).replace("_", " "))
    if row["kind"] == "setting":
        return Cell("setting"), name, Cell(setting(row["this"])), Cell(setting(row["other"])), Cell("")
    unit, gap = _unit(row["name"]), row["difference"]
    apart = quantity(DIFFERENCE if unit is SHARE else unit, gap)
    shown = [Cell(quantity(unit, row[key]), row[key]) for key in ("this", "other")]
    return Cell("metric"), name, *shown, Cell("+" * (gap > 0) + apart, gap)


@dataclass(frozen=True)
class DataTerms:
    """What decides which images are training and which are test, and their labels; see :func:`holdfast.data.load`."""

    data_seed: int = 0
    val: float = 0.0
    conflict: float | None = None
    names: str | None = None
    label: str | None = None
    group: str | None = None
    columns: str | None = None
    skip_unreadable: bool = False
    labels: int | None = None

    @classmethod
    def of(cls, settings: DataSettings) -> DataTerms:
        """Those of a training."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls)})

    def reading(self) -> dict[str, Any]:
        """What :func:`holdfast.data.load` takes: all but ``labels``, which are chosen of what it loaded."""
        return {key: value for key, value in asdict(self).items() if key != "labels"}

    def record(self) -> dict[str, str | int | float]:
        """Plain values for findings.json, without what nobody said."""
        return {key: value for key, value in asdict(self).items() if value or key == "data_seed"}

    def words(self, other: DataTerms) -> str:
        """Where these differ from others: ``data_seed 5``."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(f"{key} {value}" for key, value in mine.items() if value != theirs[key])


def terms_of_run(run: str | Path | Run, data: Any) -> DataTerms | None:
    """How a run loaded its data; of other data only the seed, which does no harm: the same images may lie elsewhere."""
    if isinstance(run, Run):
        own = run.settings.data
    elif os.path.isfile(path := Path(run, "run.yaml")):  # unlike Path.is_file, false for a name that is too long
        own = read_settings(path).data
    else:
        return None
    if not is_own_data(run, data):
        return DataTerms(own.data_seed)
    return DataTerms.of(own)


def is_own_data(run: str | Path | Run, data: Any) -> bool:
    if isinstance(run, Run):
        return run.trained_on(data)
    name, recorded = read_settings(Path(run, "run.yaml")).data.name, read_environment(Path(run))
    if is_given(data):  # an object has no place to compare
        return recorded.get("own_data") == name_of(data)
    if "own_data" in recorded:  # it was in memory, and settings do not tell how it came there
        return False
    return _same(name, str(data)) or _same(recorded.get("data_path", name), str(data))


def _same(first: str, second: str) -> bool:
    paths = at_home(first), at_home(second)
    return first == second or (all(map(os.path.exists, paths)) and os.path.samefile(*paths))
