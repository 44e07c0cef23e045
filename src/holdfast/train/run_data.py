"""How a run loaded its data: open this file to change what an audit or a prediction takes over from a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from holdfast.data.given_data import is_given
from holdfast.data.given_items import name_of
from holdfast.files import at_home
from holdfast.settings import DataSettings, read_environment
from holdfast.train.folder import read_settings


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

    @classmethod
    def of(cls, settings: DataSettings) -> DataTerms:
        """Those of a training."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls)})

    def record(self) -> dict[str, str | int | float]:
        """Plain values for findings.json, without what nobody said."""
        return {key: value for key, value in asdict(self).items() if value or key == "data_seed"}

    def words(self, other: DataTerms) -> str:
        """Where these differ from others: ``data_seed 5``."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(f"{key} {value}" for key, value in mine.items() if value != theirs[key])


def terms_of_run(run: str | Path, data: Any) -> DataTerms | None:
    """How a run loaded its data; of other data only the seed, which does no harm: the same images may lie elsewhere."""
    path = Path(run, "run.yaml")
    if not os.path.isfile(path):  # unlike Path.is_file, false for a name longer than the system allows
        return None
    own = read_settings(path).data
    if not is_own_data(run, data):
        return DataTerms(own.data_seed)
    return DataTerms.of(own)


def is_own_data(run: str | Path, data: Any) -> bool:
    name, recorded = read_settings(Path(run, "run.yaml")).data.name, read_environment(Path(run))
    if is_given(data):  # an object has no place to compare
        return recorded.get("own_data") == name_of(data)
    if "own_data" in recorded:  # it was in memory, and settings do not tell how it came there
        return False
    return _same(name, str(data)) or _same(recorded.get("data_path", name), str(data))


def _same(first: str, second: str) -> bool:
    paths = at_home(first), at_home(second)
    return first == second or (all(map(os.path.exists, paths)) and os.path.samefile(*paths))
