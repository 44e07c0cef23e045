"""``holdfast compare``: methods and settings over several seeds, one report over all, paired against a baseline.

Every training is an ordinary run folder below the comparison's own. A finished run is never repeated and an
interrupted one resumes where it stopped, so the same call continues a comparison, and a wider one extends it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from holdfast.comparisons.comparison_result import Chosen, Comparison, write_comparison
from holdfast.comparisons.plans import Axes, ComparisonPlan, GridCell, plan_study, study_cells, study_engine
from holdfast.comparisons.recipes import read_recipe
from holdfast.comparisons.single_run import (
    CellOutcome,
    CellTask,
    held_out_score,
    is_finished,
    require_groups,
    train_cell,
    train_cells,
)
from holdfast.data import Dataset
from holdfast.data.given_items import name_of
from holdfast.data.result_folders import refuse_foreign
from holdfast.data.usable_data import admitted
from holdfast.errors import HoldfastError, require
from holdfast.executors import Executor, make_executor
from holdfast.executors.executor_protocol import ThisProcess
from holdfast.executors.leases import run_folder, sweep_all
from holdfast.files import LOCK
from holdfast.reports import RunFiles, read_runs, write_findings, write_report
from holdfast.reports.arms import Arm
from holdfast.reports.report_tables import BASELINE, ROLE
from holdfast.reports.run_files import COMPARISON, FINDINGS, is_run
from holdfast.settings import (
    DATA_READING_KEYS,
    DataSettings,
    TrainSettings,
    build,
    layered,
    read_config,
    read_environment,
)
from holdfast.settings.command_settings import EngineSettings, split_engine
from holdfast.settings.device_defaults import open_on_device
from holdfast.settings.fields import columns_text
from holdfast.settings.training import CellRule
from holdfast.settings.training_defaults import TrainingFacts, choose_defaults, open_settings
from holdfast.train.folder import changed_settings, recorded
from holdfast.train.preparing import fingerprint, from_run, load_data, prepare
from holdfast.train.progress import LiveTable, Progress, make_progress
from holdfast.train.step_parts import Diverged


def compare(
    data: Any = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    config: str | Path | None = None,
    study: str | None = None,
    methods: Sequence[str] = (),
    vary: Axes | None = None,
    grid: Axes | None = None,
    baseline: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    choose: CellRule = "val-average",
    overwrite: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Train methods or settings over several seeds and compare them with a baseline.

    Each combination of settings is a cell; ``holdfast.comparisons.plans.make_plan`` says how they are made.

    data: what ``holdfast.data.load`` takes, or what it returned; by default what the settings name. settings: the base
    settings, with the names of ``holdfast train``'s flags; they override the file ``config``, which overrides
    ``recipe``. study: a name or a .yaml file that gives what is not given here. only: labels of the cells to train, if
    not all.

    Where to train is set by ``parallel``, ``threads``, ``engine``, ``address`` and ``lease``
    (``holdfast.settings.command_settings``). parallel: trainings at once: a number, or "auto" for as many as fit; each
    in its own process and, on a CPU, with ``threads`` threads (default: 1), so that the numbers do not depend on
    how many there are. By default all are trained in this process, one after the other. engine: "ray" trains on the
    cluster at ``address``. The same call may be made on several machines at once if they share the folder ``out``: each
    trains what the others do not. lease: seconds without a sign of life after which a training that another began is
    taken over (60).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     quick = {"seeds": 1, "epochs": 1, "device": "cpu", "progress": False}
    ...     found = compare("digits", out=place, methods=["erm", "mixup"], **quick)
    >>> [arm.label for arm in found.arms]
    ['erm', 'mixup']
    """
    where, settings = split_engine(settings)
    if isinstance(settings.get("columns"), Mapping):
        settings["columns"] = columns_text(settings["columns"])
    if isinstance(data, str | PathLike):
        data, settings = None, settings | {"data": str(data)}
    if isinstance(data, Dataset):
        unused = ", ".join(f"{name} {settings[name]}" for name in DATA_READING_KEYS if name in settings)
        require(
            not unused, f"{unused}: not for a set in memory, which is taken as given; give it to holdfast.data.load"
        )
        data = admitted(data, training=True)
    if data is not None:
        settings["data"] = data.name if isinstance(data, Dataset) else name_of(data)
    file = read_config(Path(config), settings) if config else {}
    values = layered(read_recipe(recipe) if recipe else {}, file, settings)
    cells = study_cells(study)
    require(not (cells and (recipe or config or methods)), f"the study {study} lists its cells; give no others")
    given: dict[str, Any] = {"methods": methods, "vary": vary, "grid": grid, "baseline": baseline}
    given["recipes"] = {label: build(TrainSettings, layered(own, settings)) for label, own in cells.items()}
    plan, each = plan_study(build(TrainSettings, values), study, seeds=seeds, only=only, **given)
    shown = make_progress(progress)
    how: dict[str, Any] = {"choose": choose, "overwrite": overwrite, "where": study_engine(where, study)}
    return carry_out(plan, Path(out), data=data, seeds=each, progress=shown, **how)


def carry_out(
    plan: ComparisonPlan,
    out: Path,
    *,
    data: Any = None,
    seeds: int = 3,
    choose: CellRule = "val-average",
    overwrite: bool = False,
    where: EngineSettings | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Train what a plan asks for, as far as it is not there yet, and write the report. data: instead of what it
    names."""
    progress = progress or Progress()
    require(seeds >= 1, f"seeds must be >= 1, got {seeds}")
    require(not is_run(out), f"{out} is a run itself; choose another --out, a folder to put runs into")
    refuse_foreign(out, (COMPARISON, "*/run.yaml", f"*/{LOCK}"), data=plan.baseline.settings.data.name)
    jobs = [job for cell in plan.cells for job in _jobs(cell, out, seeds, anew=overwrite)]
    if not overwrite:
        for _, job, folder in jobs:
            _require_same(run_folder(out, folder.name), job)

    @cache
    def opened(own: DataSettings) -> Dataset:
        return data if isinstance(data, Dataset) else load_data(replace(plan.baseline.settings, data=own), data)

    todo = (cell for cell, _, folder in jobs if overwrite or not is_finished(folder))
    loaded, known = _require_trainable(todo, opened)
    for found in loaded.values():
        require_groups(choose, found)
    if not overwrite:
        _require_one_data(jobs, loaded)
    settled = plan.settled(lambda cell: _settled(cell, jobs, known))
    plan = ComparisonPlan(tuple(cell for cell in plan.cells if cell.label in settled.labels))
    jobs = [job for job in jobs if job[0] in plan.cells]
    if said := settled.unequal_epochs():
        progress.note(said)
    shared = None if data is None else {job.data: opened(job.data) for _, job, _ in jobs}
    where = where or EngineSettings()
    place = make_executor(where, device=plan.baseline.settings.loop.device, calls=len(jobs))
    failed: dict[str, str] = {}
    for task, outcome in _trained(jobs, place, shared, overwrite=overwrite, lease=where.lease, progress=progress):
        # Extreme values may diverge: that is a result. What already the baseline cannot do is a mistake.
        if outcome.state == "diverged" and task.label == plan.baseline.label:
            raise Diverged(outcome.error)
        if outcome.state == "diverged":
            failed[task.name] = outcome.error
            progress.note(f"{task.name} failed: {outcome.error}")
        require(
            (task.place / FINDINGS).exists() or task.name in failed,
            f"{task.settings.data.name} has no test set, so there is nothing to compare on; give data that has one",
        )
    failed = {folder.name: failed[folder.name] for _, _, folder in jobs if folder.name in failed}
    sweep_all(out)
    _mark(out, {folder.name for cell, _, folder in jobs if cell is plan.baseline})
    done = Comparison(out, _arms(jobs), *_choose(plan, jobs, choose, opened), failed)
    write_comparison(done)
    write_report(read_runs([out]), out / "report.html")
    return done


def _trained(
    jobs: Sequence[Job],
    place: Executor,
    data: dict[DataSettings, Dataset] | None,
    *,
    overwrite: bool,
    lease: float,
    progress: Progress,
) -> Iterator[tuple[CellTask, CellOutcome]]:
    """Everything that is not finished yet, with what came of it, as it ends."""
    numbers = {folder.name: number for number, (_, _, folder) in enumerate(jobs, start=1)}
    todo = [
        CellTask(folder.name, folder.parent, job, label=cell.label, overwrite=overwrite)
        for cell, job, folder in jobs
        if overwrite or not is_finished(folder)
    ]
    if isinstance(place, ThisProcess):

        def announced(task: CellTask, data: Any) -> CellOutcome:
            progress.note(f"{numbers[task.name]} of {len(jobs)}: {task.label}, seed {task.settings.loop.seed}")
            return train_cell(task, data, progress=progress)

        yield from train_cells(todo, place, call=announced, data=data, lease=lease)
    elif todo:
        with LiveTable(progress, len(todo)) as table:
            for task, outcome in train_cells(todo, place, data=data, lease=lease, show=table.show):
                table.ended(f"{task.label}, seed {task.settings.loop.seed}", outcome.notes)
                yield task, outcome


Job = tuple[GridCell, TrainSettings, Path]


def folder_name(cell: GridCell, settings: TrainSettings) -> str:
    """A run's folder: the label and the seed.

    >>> folder_name(GridCell("lff+biasadv lam=0.25", TrainSettings()), TrainSettings())
    'lff+biasadv-lam0.25-seed0'
    """
    plain = cell.label.replace(" ", "-").replace("=", "")
    safe = re.sub(r"[^\w.+-]", "_", plain, flags=re.ASCII)[:80]
    mark = "" if safe == plain else f"-{zlib.crc32(plain.encode()):08x}"  # two labels never share a folder
    return f"{safe}{mark}-seed{settings.loop.seed}"


def _jobs(cell: GridCell, out: Path, seeds: int, *, anew: bool) -> list[Job]:
    """One training per seed. What a cell leaves open is as it was chosen for those of its seeds that were begun."""
    first, settings = cell.settings.loop.seed, cell.settings
    seeded = [replace(settings, loop=replace(settings.loop, seed=first + i)) for i in range(seeds)]
    folders = [out / folder_name(cell, job) for job in seeded]
    now = (run_folder(out, folder.name) for folder in folders)
    begun = [folder for folder in now if (folder / "run.yaml").exists() and not anew]
    left = [*open_settings(settings), *open_on_device(settings)]
    settle = partial(recorded, begun[0]) if begun and left else lambda job: job
    return [(cell, settle(job), folder) for job, folder in zip(seeded, folders, strict=True)]


def _settled(cell: GridCell, jobs: Sequence[Job], known: Mapping[object, TrainingFacts]) -> TrainSettings:
    """The settings of a cell with what was chosen for it, or will be."""
    job = next(job for own, job, _ in jobs if own is cell)
    job = replace(job, loop=replace(job.loop, seed=cell.settings.loop.seed))
    return choose_defaults(job, known[_basis(cell)]).settings if open_settings(job) else job


def _basis(cell: GridCell) -> object:
    """What the defaults of a training follow from."""
    return cell.settings.resolved().data, cell.settings.model


def _require_same(folder: Path, settings: TrainSettings) -> None:
    """Refuse, before anything runs, to mix in a run that was trained with other settings."""
    if not (folder / "run.yaml").exists():
        return
    changed = changed_settings(folder, settings)
    require(
        not changed,
        f"{folder} was trained with other settings ({changed}); choose another --out, or train all anew with "
        "--overwrite",
    )


def _require_trainable(
    cells: Iterable[GridCell], opened: Callable[[DataSettings], Dataset]
) -> tuple[dict[DataSettings, Dataset], dict[object, TrainingFacts]]:
    """Refuse, before anything runs, what cannot be trained on its data, such as a method that needs groups; else the
    data, and what is known of the trainings."""
    loaded: dict[DataSettings, Dataset] = {}
    known: dict[object, TrainingFacts] = {}
    asked: set[object] = set()
    for cell in cells:
        settings = cell.settings.resolved()
        question = (settings.data, settings.model, settings.method.name, settings.loop.select)
        if question in asked:
            continue
        asked.add(question)
        if settings.data not in loaded:
            loaded[settings.data] = opened(cell.settings.data)
        data = loaded[settings.data]
        try:
            with torch.random.fork_rng(devices=[]):
                known[_basis(cell)] = prepare(from_run(settings), data).chosen.facts
        except HoldfastError as error:
            raise HoldfastError(f"{cell.label} cannot be trained on {data.name}: {error}") from error
    return loaded, known


def _require_one_data(jobs: Sequence[Job], loaded: Mapping[DataSettings, Dataset]) -> None:
    """Refuse to compare what was trained before the data was changed with what is trained after."""
    known = {settings: fingerprint(data) for settings, data in loaded.items()}
    for _, job, folder in jobs:
        if (sha := read_environment(run_folder(folder.parent, folder.name)).get("data_sha256")) is not None:
            require(
                known.setdefault(job.resolved().data, sha) == sha,
                f"the data has changed since {folder} was trained; put it back, choose another --out, or train all "
                "anew with --overwrite",
            )


def _mark(out: Path, names: set[str]) -> None:
    """Say in the findings which runs are the baseline, so that a report from files alone knows it."""
    for path in out.glob("*/findings.json"):
        files = RunFiles.read(path.parent)
        role = {ROLE: BASELINE} if path.parent.name in names else {}
        model = {k: v for k, v in files.model.items() if k != ROLE} | role
        if model != files.model:
            write_findings(path, files.findings, model=model, data=files.data)


def _arms(jobs: Sequence[Job]) -> tuple[Arm, ...]:
    runs: dict[str, list[RunFiles]] = {}
    for cell, _, folder in jobs:
        if is_finished(folder):
            runs.setdefault(cell.label, []).append(RunFiles.read(folder))
    return tuple(Arm.of(label, members, i) for i, (label, members) in enumerate(runs.items()))


def _choose(
    plan: ComparisonPlan, jobs: Sequence[Job], rule: CellRule, opened: Callable[[DataSettings], Dataset]
) -> tuple[Chosen | None, str]:
    """The cell with the highest mean score on held-out data over its seeds; cells with a missing seed are out."""
    if len({cell.settings.data for cell in plan.cells}) > 1:
        return None, "no cell is chosen: they differ in their data"
    unfair = {"oracle-test", "val-worst-group"} - {rule}
    if any(cell.settings.loop.select in unfair for cell in plan.cells):
        return None, "no cell is chosen: their epochs were, with labels that a choice may not use"
    if not any("val_accuracy" in record for record in RunFiles.read(jobs[0][2]).metrics):
        return None, "no cell is chosen: nothing is held out to choose on (--val 0.1 does)"
    data = opened(plan.baseline.settings.data)
    require_groups(rule, data)
    scores: dict[str, list[float]] = {}
    short = {cell.label for cell, _, folder in jobs if not is_finished(folder)}
    for cell, settings, folder in jobs:
        if cell.label not in short:
            scores.setdefault(cell.label, []).append(held_out_score(folder, settings, data, rule))
    means = {label: fmean(own) for label, own in scores.items()}
    best = [label for label, mean in means.items() if mean == max(means.values())]
    chosen = Chosen(best[0] if len(best) == 1 else None, rule, {label: tuple(own) for label, own in scores.items()})
    if chosen.label is None:
        return chosen, f"no cell is chosen: by {rule} on held-out data these are level: {', '.join(best)}"
    labels = "the group labels of that data were" if rule == "val-worst-group" else "no group labels were"
    why = (
        f"{chosen.label} is chosen by {rule} on held-out data, which has whatever shortcut the training data has; "
        f"{labels} used, and the test set played no part"
    )
    return chosen, why
