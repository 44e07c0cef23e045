"""A run folder as a report sees it: files only, never a model. Open it to change what a report reads, or hides."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from holdfast.errors import HoldfastError, require
from holdfast.files import exists, reading
from holdfast.reports.findings_file import CheckRecord, FindingsFile, Measures, read_findings
from holdfast.settings import DATA_READING_KEYS, MODEL_BUILDING_KEYS
from holdfast.settings.yaml_files import load_yaml
from holdfast.types import Finding

METRICS = "metrics.jsonl"
FINDINGS = "findings.json"
COMPARISON = "comparison.json"
FILES = ("run.yaml", METRICS, FINDINGS)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """One run. What has not been written yet is empty.

    name: the folder's name; of an audit, the model's.
    settings: run.yaml without its environment; what was handed over in Python under its own name.
    environment: versions, device and command; of an audit, what its findings say of them.
    metrics: one mapping per epoch. folder: where it was read from, as it was named; empty where it was not read. The
    rest is as the findings file says.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Finding, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[CheckRecord, ...] = ()
    gates: tuple[Mapping[str, Any], ...] = ()
    measures: Measures = field(default_factory=dict)
    folder: str = ""

    @classmethod
    def of(cls, file: FindingsFile) -> Self:
        """A findings file by itself, without a folder around it."""
        shared = {key: getattr(file, key) for key in ("findings", "model", "data", "checks", "gates", "measures")}
        return cls(name=str(file.model.get("name") or "model"), environment=file.run, **shared)

    def file(self) -> FindingsFile:
        """The run as the other renderings see it, by its name here."""
        shared = {key: getattr(self, key) for key in ("findings", "data", "checks", "gates", "measures")}
        return FindingsFile(model={**self.model, "name": self.name}, run=self.environment, **shared)

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The run in a folder; one that is still training has no findings yet."""
        folder = Path(folder)
        require(folder.is_dir(), f"no such run folder: {folder}")
        require(is_run(folder), f"{folder} is not a run folder: it holds none of {', '.join(FILES)}")
        settings = _read_settings(folder / "run.yaml")
        environment = settings.pop("environment", None)
        if isinstance(environment, dict):
            settings = _as_handed_over(settings, environment)
        path = folder / FINDINGS
        found = read_findings(path) if path.exists() else FindingsFile((), {}, {})
        audited = str(found.model.get("name") or "") if found.checks and not settings else ""
        return replace(
            cls.of(found),
            name=audited or folder.resolve().name,
            settings=settings,
            environment=environment if isinstance(environment, dict) else found.run,
            metrics=read_metrics(folder / METRICS),
            folder=str(folder),
        )


def group_attribute(run: RunFiles) -> str:
    """What the groups of the data are, such as "colour"; empty where the data does not say, or not in a few words."""
    given = run.data.get("group_attribute")
    return given if isinstance(given, str) and len(given) <= LONGEST_ATTRIBUTE else ""


def is_run(folder: Path) -> bool:
    with reading():
        return any((folder / name).is_file() for name in FILES)


def read_runs(folders: Iterable[str | Path]) -> list[RunFiles]:
    """The runs in folders: each is a run, or holds runs, at any depth; those of a comparison in its own order.

    Audits of one model go by their folders.
    """
    runs: dict[Path, RunFiles] = {}
    for folder in map(Path, folders):
        files = [] if is_run(folder) else [f.relative_to(folder) for name in FILES for f in folder.rglob(name)]
        # not those in hidden folders, where what a training is about to replace waits
        found = sorted({folder / f.parent for f in files if not any(p.startswith(".") for p in f.parts)})
        inside = [path for path in _compared(folder) if path in found]
        inside += [path for path in found if path not in inside]
        for path in inside or [folder]:
            runs.setdefault(path.resolve(), RunFiles.read(path))
    names = Counter(run.name for run in runs.values())
    return [replace(run, name=path.name) if names[run.name] > 1 else run for path, run in runs.items()]


def _compared(folder: Path) -> list[Path]:
    """The runs that a comparison in this folder names, as it orders them; none where there is no comparison."""
    try:
        content = json.loads((folder / COMPARISON).read_bytes())
        return [folder / name for cell in content["cells"] for name in cell["runs"]]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []


def _read_settings(path: Path) -> dict[str, Any]:
    content = load_yaml(path) if exists(path) else {}
    if not isinstance(content, dict):
        raise HoldfastError(f"{path} must be a mapping of settings, got {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def _as_handed_over(settings: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """A set or module from Python by its own name, without the settings of the one that was not used.

    >>> _as_handed_over({"data": "digits", "val": 0.1, "lr": 0.05}, {"own_data": "mine"})
    {'data': 'mine (in memory)', 'lr': 0.05}
    """
    for kind, words, unused in (("data", "in memory", DATA_READING_KEYS), ("model", "own module", MODEL_BUILDING_KEYS)):
        if own := environment.get(f"own_{kind}"):
            settings = {key: value for key, value in settings.items() if key not in unused}
            settings[kind] = f"{own} ({words})"
    return settings


def read_metrics(path: Path) -> tuple[Mapping[str, Any], ...]:
    """One mapping per epoch; none where there is no file."""
    with reading():
        lines = path.read_bytes().split(b"\n") if exists(path) else []
    records = []
    for number, line in ((i, line) for i, line in enumerate(lines, start=1) if line.strip()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            raise HoldfastError(f"line {number} of {path} is not a JSON object; remove that line")
        # A last line without its end is what a killed process leaves behind.
    return tuple(records)


LONGEST_ATTRIBUTE = 40
HIDDEN = "(hidden)"
FOLDERS = re.compile(r"(?<![\w.:/\\…])(?:~?/|~?\\\\|[A-Za-z]:[\\/])(?:[^/\\\s\"'<>|:]+[/\\])+")
"""The folders of a path that starts at a root or at home."""
PICTURES = frozenset({"png", "overlay"})


def redacted(run: RunFiles) -> RunFiles:
    """The run with the names of files but not where they lie; where a picture comes from is left out altogether.

    >>> hide_folders("holdfast audit /home/me/runs/a --data ~/photos/cats at 8/255")
    'holdfast audit …/a --data …/cats at 8/255'
    """
    hide = hide_folders
    findings = tuple(replace(f, evidence=hide(f.evidence), settings=hide(f.settings)) for f in run.findings)
    plain = {key: hide(getattr(run, key)) for key in ("settings", "environment", "model", "data", "folder")}
    checks = tuple(CheckRecord.of(hide_folders(asdict(record))) for record in run.checks)
    return replace(run, findings=findings, checks=checks, **plain)


def hide_folders(value: Any, folders: re.Pattern[str] = FOLDERS) -> Any:
    """Plain values of any depth without the folders that a pattern finds."""
    if isinstance(value, str):
        return folders.sub("…/", value)
    if isinstance(value, (list, tuple)):
        return [hide_folders(v, folders) for v in value]
    if not isinstance(value, Mapping):
        return value
    made = {k: v if k in PICTURES else hide_folders(v, folders) for k, v in value.items()}
    return made | {"source": HIDDEN} if "source" in value and "label" in value else made
