"""What a comparison trains: methods, and settings varied one at a time or in grids, as cells of resolved settings.

Studies are comparisons in YAML, named ones or files of your own: which settings to vary around a recipe (``methods,
vary, grid, baseline, seeds``), or whole settings by label (``cells``, over a ``recipe`` each and what is ``common``).
``threads`` is for studies on a CPU, where the number of threads decides how sums are rounded: whoever repeats one row
gets the recorded number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from holdfast.comparisons.recipes import read_recipe
from holdfast.errors import HoldfastError, require, require_known, unknown
from holdfast.machine import may_have_gpu
from holdfast.methods import Stage, method_of
from holdfast.parts import METHODS
from holdfast.settings.command_settings import EngineSettings
from holdfast.settings.device_defaults import open_on_device
from holdfast.settings.fields import LISTED_BY, Choice, build, flatten
from holdfast.settings.training import TrainSettings
from holdfast.settings.training_defaults import open_settings
from holdfast.settings.yaml_files import layered, parse_yaml, read_yaml

OPEN = "as yet unknown"
"""Epochs that follow from data which was not read."""
STUDIES = Path(__file__).parent / "studies"
STUDY_KEYS = ("methods", "vary", "grid", "baseline", "seeds", "threads", "recipe", "common", "cells")

Axes = Mapping[str, Sequence[Any]]
"""Settings and the values that each takes: ``{"method.lam": [0.25, 0.5], "lr": [0.01, 0.1]}``."""


@dataclass(frozen=True)
class GridCell:
    """One combination of settings, trained over several seeds. label: what tells it from the others."""

    label: str
    settings: TrainSettings

    @property
    def stages(self) -> tuple[Stage, ...]:
        return _stages(self.settings)

    @property
    def epochs(self) -> str:
        """Those of each stage: "20 + 3", pretraining first."""
        model = self.settings.model
        given = [model.pretrain_for] * (model.pretrain != "none") + [stage.epochs for stage in self.stages]
        return " + ".join(str(epochs or OPEN) for epochs in given)


@dataclass(frozen=True)
class ComparisonPlan:
    """All cells of a comparison, the baseline first."""

    cells: tuple[GridCell, ...]

    @property
    def baseline(self) -> GridCell:
        return self.cells[0]

    @property
    def labels(self) -> list[str]:
        return [cell.label for cell in self.cells]

    def only(self, labels: Sequence[str]) -> ComparisonPlan:
        """The cells of these labels, or all where none is named; without the baseline the first of them stands in."""
        for label in labels:
            require_known("cell", label, self.labels, listed_by="--plan")
        return ComparisonPlan(tuple(cell for cell in self.cells if not labels or cell.label in labels))

    def settled(self, settle: Callable[[GridCell], TrainSettings]) -> ComparisonPlan:
        """With nothing left open in the settings of any cell; of cells that are equal then, the first."""
        return ComparisonPlan(_distinct(GridCell(cell.label, settle(cell)) for cell in self.cells))

    def unequal_epochs(self) -> str:
        """Which cells are trained longer than others, and what decides it; empty where all are trained alike."""
        by_epochs: dict[str, list[str]] = {}
        for cell in self.cells:
            by_epochs.setdefault(cell.epochs, []).append(cell.label)
        if len(by_epochs) == 1:
            return ""
        shown = "; ".join(f"{epochs} epochs: {', '.join(labels)}" for epochs, labels in by_epochs.items())
        decides = {
            f"--method {cell.settings.method.name} --method.{stage.setting.replace('_', '-')} N"
            for cell in self.cells
            for stage in cell.stages
            if stage.setting
        }
        remedy = f" (change a method's own with {' or '.join(sorted(decides))})" if decides else ""
        return f"not all are trained equally long: {shown}{remedy}; the columns epochs and passes count what each took"


def stage_lines(settings: TrainSettings) -> list[str]:
    """What a training goes through, one line per stage.

    >>> stage_lines(build(TrainSettings, {"method": "jtt", "epochs": 200}))[0]
    'first: 20 epochs of a model whose errors are then shown more often (--method.first-epochs)'
    """
    model, made = settings.model, []
    if model.pretrain != "none":
        made.append(f"pretraining: {model.pretrain_for} epochs without labels, {model.pretrain} (--pretrain-for)")
    for stage in _stages(settings):
        flag = f"--method.{stage.setting.replace('_', '-')}" if stage.setting else "--epochs"
        of = f" of {stage.about}" if stage.about else ""
        made.append(f"{stage.name}: {stage.epochs or OPEN} epoch{'s' * (stage.epochs != 1)}{of} ({flag})")
    return made


def _stages(settings: TrainSettings) -> tuple[Stage, ...]:
    """With 0 epochs where they are still to be chosen."""
    return method_of(settings).stages(settings.loop.epochs or 0)


def settle_plan(plan: ComparisonPlan) -> tuple[ComparisonPlan, list[str]]:
    """(The plan with nothing left open, what was chosen and why.)

    Where something is open this reads the data, and builds the networks without their weights. Where the data cannot be
    read yet, it stays open.
    """
    if not any(map(_leaves_open, (cell.settings for cell in plan.cells))):
        return plan, []
    from holdfast.train.preparing import choose_ahead

    try:
        chosen = {cell.label: choose_ahead(cell.settings) for cell in plan.cells}
    except HoldfastError as error:
        return plan, [f"optimiser, rate, batch size and epochs that are not given follow from the data: {error}"]
    settled = plan.settled(lambda cell: chosen[cell.label].settings)
    lines: dict[tuple[str, ...], list[str]] = {}
    for label in settled.labels:
        own = chosen[label]
        lines.setdefault((f"{own.facts}", *own.lines()) if own.reasons or own.device_note else (), []).append(label)
    lines.pop((), None)
    alike = len(lines) == 1 and len(plan.cells) == 1
    said = []
    for (facts, *each), labels in lines.items():
        said += [f"chosen for {facts}{'' if alike else ': ' + ', '.join(labels)}", *(f"  {line}" for line in each)]
    return settled, said


def _leaves_open(settings: TrainSettings) -> bool:
    """Whether something is to be chosen that a user would like to know: on a CPU little follows from the device."""
    if open_settings(settings):
        return True
    if settings.loop.device == "cpu" or not open_on_device(settings) or not may_have_gpu():
        return False
    from holdfast.devices import resolve_device  # imports torch, which a plan may do without

    return resolve_device(settings.loop.device).type == "cuda"


def make_plan(
    base: TrainSettings,
    *,
    methods: Sequence[str] = (),
    recipes: Mapping[str, TrainSettings] | None = None,
    vary: Axes | None = None,
    grid: Axes | None = None,
    baseline: str | None = None,
) -> ComparisonPlan:
    """The cells of a comparison around base settings.

    methods: trained as they are; the base's own where none is named. recipes: whole settings by label, instead of a
    base and methods. vary: one setting at a time, from each of the methods that has it. grid: all combinations instead.
    baseline: a method or a cell's label; where it is not given, the first of several methods or recipes, else what the
    method extends ("lff" of "lff+biasadv"), else the base settings.

    >>> plan = make_plan(TrainSettings(), methods=["lff", "lff+biasadv"], vary={"method.lam": [0, 1]})
    >>> [cell.label for cell in plan.cells]
    ['lff', 'lff+biasadv', 'lff+biasadv lam=0', 'lff+biasadv lam=1']
    """
    vary, grid = vary or {}, grid or {}
    for key, values in [*vary.items(), *grid.items()]:
        require(len(values) > 0, f"{key} has no values; write {key}=VALUE,VALUE")
        require(key != "seed", "seed is not a setting to vary; say how many with --seeds")
    twice = [name for name, count in Counter(methods).items() if count > 1]
    require(not twice, f"{', '.join(twice)} is given twice among the methods; more trainings of one come with --seeds")
    require(not (methods and recipes), "a recipe has its own method; give methods or recipes, not both")
    ways = recipes or {name: replace(base, method=base.method.switched(name)) for name in methods or [base.method.name]}
    starts = [GridCell(label, settings) for label, settings in ways.items()]
    _require_known(starts, [*vary, *grid])
    cells: list[GridCell] = []
    for start in starts:
        alone = [{key: value} for key, values in vary.items() if _has(start, key) for value in values]
        keys = [key for key in grid if _has(start, key)]
        together = [dict(zip(keys, values, strict=True)) for values in product(*(grid[k] for k in keys)) if keys]
        if alone or not together:
            cells.append(start)
        cells += [_changed(start, way) for way in [*alone, *together]]
    return ComparisonPlan(_distinct([_baseline(None if recipes else base, cells, starts, baseline), *cells]))


def parse_axes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Settings and their values as they are written on the command line.

    >>> parse_axes(["method.lam=0.25,1", "milestones=[1,2],[3]"])
    {'method.lam': [0.25, 1], 'milestones': [[1, 2], [3]]}
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        require(bool(key and equals and values), f"{text!r} names no values; write SETTING=VALUE,VALUE")
        require(key not in axes, f"{key} is given twice; put all its values into one list")
        try:
            axes[key] = parse_yaml(f"[{values}]")
        except yaml.YAMLError:
            raise HoldfastError(f"cannot read the values of {text!r}; write SETTING=VALUE,VALUE") from None
    return axes


def changed(settings: TrainSettings, key: str, value: Any) -> TrainSettings:
    """Settings with one of them changed: a flat key, or ``method.NAME`` and ``ascent.NAME`` for those of a choice.

    >>> changed(TrainSettings(), "lr", 0.3).optimizer.lr
    0.3
    >>> changed(TrainSettings(), "method.lam", 0.3)
    Traceback (most recent call last):
    holdfast.errors.HoldfastError: unknown setting 'method.lam'; method erm has none
    """
    kind, dot, inner = key.partition(".")
    flat = flatten(settings)
    choice = getattr(settings, kind, None)
    if not dot and isinstance(choice, Choice) and isinstance(value, (str, Mapping)):
        given = {"name": value} if isinstance(value, str) else {"name": choice.name, **value}
        value = {**flatten(choice.switched(given["name"])), **given}
    if not dot:
        return build(TrainSettings, flat | {key: value})
    if not isinstance(choice, Choice):
        raise unknown("setting", key, _keys(settings), listed_by=LISTED_BY)
    own = [f"{kind}.{f.name}" for f in fields(choice)]
    if not own:
        raise HoldfastError(f"unknown setting {key!r}; {kind} {choice.name} has none")
    require_known("setting", key, own)
    return build(TrainSettings, flat | {kind: {"name": choice.name, **flatten(choice), inner: value}})


def _baseline(
    base: TrainSettings | None, cells: Sequence[GridCell], starts: Sequence[GridCell], name: str | None
) -> GridCell:
    if name is not None:
        for cell in cells:
            if cell.label == name:
                return cell
        if base is None or name not in METHODS:
            other = [] if base is None else METHODS
            raise unknown("baseline", name, [*other, *(cell.label for cell in cells)])
        return GridCell(name, replace(base, method=base.method.switched(name)))
    stem, plus, _ = starts[0].settings.method.name.partition("+")
    if base is not None and len(starts) == 1 and plus and stem in METHODS:
        return GridCell(stem, replace(base, method=base.method.switched(stem)))
    return starts[0]


def _changed(start: GridCell, way: Mapping[str, Any]) -> GridCell:
    settings = start.settings
    for key, value in way.items():
        settings = changed(settings, key, value)
    words = [f"{key.removeprefix('method.')}={_text(value)}" for key, value in way.items()]
    return GridCell(" ".join([start.label, *words]), settings)


def _distinct(cells: Iterable[GridCell]) -> tuple[GridCell, ...]:
    """Each combination of settings once: a value that is the base's own does not make another cell."""
    kept: list[GridCell] = []
    for cell in cells:
        if all(cell.settings.resolved() != other.settings.resolved() for other in kept):
            kept.append(cell)
    return tuple(kept)


def _require_known(starts: Sequence[GridCell], keys: Iterable[str]) -> None:
    """Every key must be a setting of at least one of the methods."""
    for key in keys:
        if any(_has(start, key) for start in starts):
            continue
        if len(starts) == 1:
            changed(starts[0].settings, key, None)  # says what is wrong, with a hint
        keys = dict.fromkeys(k for start in starts for k in _keys(start.settings))
        raise unknown("setting", key, keys, listed_by=LISTED_BY)


def _has(cell: GridCell, key: str) -> bool:
    return key in _keys(cell.settings)


def _keys(settings: TrainSettings) -> list[str]:
    inner = [f"{f.name}.{i.name}" for f in fields(settings) if is_dataclass(choice := getattr(settings, f.name))
             and isinstance(choice, Choice) for i in fields(choice)]  # fmt: skip
    return [key for key in flatten(settings) if key != "seed"] + inner


def _text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def study_names() -> list[str]:
    """Every study, sorted.

    >>> study_names()
    ['biasadv-sensitivity', 'fsam-batch', 'fsam-radius', 'jtt-grid']
    """
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def read_study(name: str) -> dict[str, Any]:
    """A study by its name, or from a file that ends in .yaml."""
    if not name.endswith((".yaml", ".yml")):
        require_known("study", name, study_names())
        return read_yaml(STUDIES / f"{name}.yaml")
    said = read_yaml(Path(name))
    for key in said:
        require_known(f"key of the study {name}", key, STUDY_KEYS)
    inside = {key for key in ("recipe", "common") if key in said}
    require("cells" in said or not inside, f"{name} has {' and '.join(sorted(inside))} but no cells to apply it to")
    return said


def study_cells(study: str | None) -> dict[str, dict[str, Any]]:
    """Flat settings by label, of a study that lists its cells: its recipe, what is common, and the cell's own, of which
    later ones win. Empty for any other."""
    said = read_study(study) if study else {}
    if "cells" not in said:
        return {}
    cells, common = said["cells"], said.get("common") or {}
    parts = [common, *cells.values()] if isinstance(cells, Mapping) else []
    whole = bool(parts[1:]) and all(isinstance(part or {}, Mapping) for part in parts)
    require(whole, f"cells and common of the study {study} must be 'label: {{setting: value}}' lines")
    made = {}
    for label, own in cells.items():
        given = dict(own or {})
        recipe = given.pop("recipe", said.get("recipe"))
        made[str(label)] = layered(read_recipe(recipe) if recipe else {}, common, given)
    return made


def study_engine(where: EngineSettings, study: str | None) -> EngineSettings:
    """Where to train, with the threads that a study asks for, unless others were."""
    said = read_study(study).get("threads") if study else None
    if said is None or where.threads is not None:
        return where
    return build(EngineSettings, {**vars(where), "threads": said})


def plan_study(
    base: TrainSettings, study: str | None, *, seeds: int | None, only: Sequence[str] = (), **given: Any
) -> tuple[ComparisonPlan, int]:
    """(:func:`make_plan` of what is given, the rest as a study says; how many seeds). only: of its cells."""
    said = {"seeds": 3} | (read_study(study) if study else {})
    usual: int = said.pop("seeds")
    for key in ("cells", "common", "recipe", "threads"):  # in the recipes that are given, and in study_engine
        said.pop(key, None)
    plan = make_plan(base, **said | {key: value for key, value in given.items() if value}).only(only)
    return plan, usual if seeds is None else seeds
