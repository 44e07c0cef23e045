"""The run folder: who may write into it, what it holds, and what a run records of itself."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml

import holdfast
from holdfast.data.result_folders import refuse_foreign
from holdfast.errors import HoldfastError, require
from holdfast.files import exists, locked, why_unwritten, write_atomic
from holdfast.settings import SAME_NUMBERS, TrainSettings, build, flatten, handed_over, read_environment, read_yaml
from holdfast.settings.device_defaults import open_on_device
from holdfast.settings.training_defaults import open_settings
from holdfast.train.checkpoints import Checkpoints

REPAIR = "repair.json"
"""What ``holdfast repair`` did to the run, with the confidence below which it abstains."""
OWNED = (
    "checkpoint", "tensorboard", "trackers.json", "export", "metrics.jsonl", "model.safetensors", "model.json",
    "findings.json", "report.html", "unreadable.csv", REPAIR, "run.yaml",
)  # fmt: skip
"""What a run writes; nothing else in a folder is ever touched. Set aside in this order, put back in reverse: wherever a
process dies, run.yaml says whether all was set aside, and a checkpoint beside ``ASIDE`` is one of the new run."""

ASIDE = ".replaced"
"""Where a run is kept that another replaces, until the other has its first checkpoint."""

DATA_PATHS = frozenset({"data", "unlabeled"})
"""Settings that may differ too where the data is known to be the same."""


class RunFolder:
    """A folder that holds one run; ``claim`` gives one that may be written into."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path, self.resume = path, resume
        self.checkpoints = Checkpoints(path / "checkpoint")
        self._aside = path / ASIDE
        self._began = False

    @property
    def used(self) -> bool:
        return any(exists(self.path / name) for name in OWNED)

    @property
    def replacing(self) -> bool:
        """Whether a run has begun here in place of another that is not gone yet."""
        return exists(self._aside / "run.yaml") and exists(self.path / "run.yaml")

    def open(self, settings: TrainSettings, found: Mapping[str, str]) -> None:
        """Begin a run in place of what is there; or, to continue that, check that it has the same settings and data.

        found: what settings do not say: data_sha256, data_path where the data has one and, where they were handed over
        in Python, own_data and own_model.
        """
        try:
            if self.resume and self.used:
                self._require_same(settings, found)
                if self.checkpoints.newest is None:  # it starts over, and so do its metrics
                    (self.path / "metrics.jsonl").unlink(missing_ok=True)
                return
            self._began = True
            if self.used:
                self._aside.mkdir()
                for name in filter(lambda name: (self.path / name).exists(), OWNED):
                    (self.path / name).rename(self._aside / name)
            content = flatten(settings) | {"environment": {**environment(), **found}}
            write_atomic(self.path / "run.yaml", yaml.safe_dump(content, sort_keys=False).encode())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def continued(self, settings: TrainSettings) -> TrainSettings:
        """Settings in which a run that is continued keeps what was chosen for it when it began."""
        return recorded(self.path, settings) if self.resume and self.used else settings

    def _require_same(self, settings: TrainSettings, found: Mapping[str, str]) -> None:
        recorded, now = read_environment(self.path), found["data_sha256"]
        own = handed_over(recorded, "model")
        model = f"a module of its own, {own}" if own is not None else "the model its settings name"
        remedy = "continue it with that, or start anew with --overwrite"
        require(recorded.get("own_model") == found.get("own_model"), f"{self.path} was started with {model}; {remedy}")
        same = recorded.get("data_sha256") == now  # then its path does not matter
        changed = changed_settings(self.path, settings, but=DATA_PATHS if same else frozenset())
        its_own = "continue it with its own (--resume and --out alone), or start anew with --overwrite"
        require(not changed, f"{self.path} was started with other settings ({changed}); {its_own}")
        other = f"the data has changed since {self.path} was started; put it back, or start anew with --overwrite"
        if (own := handed_over(recorded, "data")) is not None:
            other = f"{self.path} was started on a set in memory, {own}; {remedy}"
        require(recorded.get("data_sha256", now) == now, other)

    def require_usable(self, *, overwrite: bool) -> None:
        """Refuse a folder whose run would be lost, or cannot be continued."""
        if not self.used or overwrite:
            return
        remedy = "continue it with --resume, replace it with --overwrite, or choose another --out"
        require(self.resume, f"{self.path} already holds a run; {remedy}")
        lost = f"{self.path} has no run.yaml, so it is not known what to continue"
        require(exists(self.path / "run.yaml"), f"{lost}; put it back, or start anew with --overwrite")
        whole = self.checkpoints.newest is not None or not exists(self.path / "model.safetensors")
        lost = f"{self.path} holds a trained model but no checkpoint to continue from"
        require(whole, f"{lost}; keep it and choose another --out, or start anew with --overwrite")

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; the first one removes the run that this one replaces."""
        self.checkpoints.save(step, state)
        if self._aside.exists():
            shutil.rmtree(self._aside, ignore_errors=True)

    def put_back(self) -> None:
        """Undo a replacement that was not finished, also one of a process that died."""
        if not exists(self._aside):
            return
        if self.checkpoints.newest is None:
            if (self._aside / "run.yaml").exists():
                self.clear()
            for name in reversed(OWNED):
                if (self._aside / name).exists():
                    (self._aside / name).rename(self.path / name)
        shutil.rmtree(self._aside)

    def clear(self) -> None:
        """Remove what a run wrote here."""
        for name in OWNED:
            if (self.path / name).is_dir():
                shutil.rmtree(self.path / name, ignore_errors=True)
            else:
                (self.path / name).unlink(missing_ok=True)

    def abandon(self) -> None:
        """After a failure: a run that has no checkpoint yet leaves the folder as it found it."""
        if self._began and self.checkpoints.newest is None:
            with suppress(OSError):  # what went wrong first is the news; the next claim puts back what is left
                self.put_back() if self._aside.exists() else self.clear()

    def rewrite_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """All metrics so far; what a killed process wrote after its last checkpoint is dropped."""
        write_atomic(self.path / "metrics.jsonl", "".join(map(_line, records)).encode())

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        try:
            with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(_line(record))
        except OSError as error:
            why = why_unwritten(error, self.path / "metrics.jsonl", len(_line(record)))
            what = f"cannot write {self.path / 'metrics.jsonl'}: {why}"
            raise HoldfastError(f"{what}; {self.checkpoints.remedy_for_no_room}") from error


@contextmanager
def claim(
    path: str | Path, *, resume: bool = False, overwrite: bool = False, data: object = None
) -> Iterator[RunFolder]:
    """A run folder that is this process's alone, to continue its run, to replace it, or to fill an empty one.

    data: what is trained on; a folder of it is refused, and so is one that holds other files and no run. Should the
    block fail before the first checkpoint, the folder is left as it was found.
    """
    require(not (resume and overwrite), "resume and overwrite exclude each other; give one of them")
    named = isinstance(path, (str, os.PathLike)) and os.fspath(path) != ""
    require(named, f"out must name a folder, got {path!r}; give one such as 'runs/mine'")
    folder = RunFolder(Path(path), resume=resume)
    refuse_foreign(folder.path, (*OWNED, ASIDE), data=data)
    missing = [place for place in (folder.path, *folder.path.parents) if not exists(place)]
    with ExitStack() as undo:
        undo.callback(_remove_empty, missing)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            undo.enter_context(locked(folder.path))
            if not (resume and folder.replacing):
                folder.put_back()
            folder.require_usable(overwrite=overwrite)
        except OSError as error:
            raise _unwritable(folder.path, error) from error
        try:
            yield folder
        except BaseException:
            folder.abandon()
            raise


def _line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON. JSON has no infinities and no NaN: null stands for them.

    >>> _line({"ascent_norm": math.inf, "epoch": 1})
    '{"ascent_norm": null, "epoch": 1}\\n'
    """
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


def _remove_empty(folders: Iterable[Path]) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _unwritable(folder: Path, error: OSError) -> HoldfastError:
    return HoldfastError(f"cannot write to {folder}: {error.strerror}; choose another --out")


def changed_settings(run: Path, settings: TrainSettings, *, but: frozenset[str] = frozenset()) -> str:
    """Settings that differ from those of the run in a folder, as text; empty where none do. What the settings leave
    open is as it was chosen there."""
    old, new = (flatten(s.resolved()) for s in (read_settings(run / "run.yaml"), recorded(run, settings)))
    return "; ".join(f"{k}: {old[k]} -> {new[k]}" for k in new if old[k] != new[k] and k not in SAME_NUMBERS | but)


def recorded(run: Path, settings: TrainSettings) -> TrainSettings:
    """Settings with what they leave open as the run in a folder has it."""
    theirs = flatten(read_settings(run / "run.yaml"))
    left = [*open_settings(settings), *open_on_device(settings)]
    return build(TrainSettings, flatten(settings) | {key: theirs[key] for key in left})


def read_settings(path: Path) -> TrainSettings:
    """The settings in a run.yaml."""
    return build(TrainSettings, read_yaml(path), where=path.name)


def abstention_threshold(run: str | Path) -> float | None:
    """The confidence below which a repaired run abstains; None for a run that was not repaired."""
    path = Path(run) / REPAIR
    if not exists(path):
        return None
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["threshold"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HoldfastError(f"cannot read the threshold in {path}: {error!r}; repair the run again") from error


def environment() -> dict[str, str]:
    """What a result depends on besides its settings."""
    program = Path(sys.argv[0])  # holdfast, python -m holdfast, or code of others
    ours = program.stem == "holdfast" or Path(__file__).parents[1] in program.parents
    return {
        "holdfast": holdfast.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "threads": str(torch.get_num_threads()),
        "command": shlex.join(["holdfast", *sys.argv[1:]]) if ours else "",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
