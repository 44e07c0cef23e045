"""``holdfast shortcuts``: which training samples contradict the shortcut that models take; without group labels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data import Dataset, load
from holdfast.data.splits import aligned_groups
from holdfast.detect.evaluation import evaluate
from holdfast.errors import HoldfastError, require
from holdfast.experiment.shortcuts import files
from holdfast.experiment.shortcuts.clusters import Cluster, features, k_means, most_frequent
from holdfast.experiment.shortcuts.mixture import Share, estimate_share
from holdfast.experiment.shortcuts.watch import Sighting, take, watch
from holdfast.metrics import Estimate
from holdfast.models import load_model
from holdfast.rng import derive
from holdfast.settings import TrainSettings, build
from holdfast.train.api import load_data, resolve_device
from holdfast.train.folder import RunFolder, read_settings
from holdfast.train.precision import kernels
from holdfast.train.progress import Progress
from holdfast.types import Finding

__all__ = ["Cluster", "Share", "Shortcuts", "Sighting", "shortcuts"]

SHOWN = 6
"""Pictures of a cluster on the page."""
MOST_CLUSTERS = 10
MOST_CLUSTERED = 20_000
"""Suspected samples that are clustered, the likeliest first."""
BINS = 40
CLEAR = 0.5
"""A sample is suspected from this probability on."""


@dataclass(frozen=True, eq=False)
class Shortcuts:
    """What contradicts the shortcut, for the N samples of the training split of ``data``.

    score: (N,) in [0, 1]: 1 − p(y | x) of the biased models, the mean over seeds and epochs. order: (N,) positions, the
    highest score first. wrong: (N,) share of epochs and seeds in which a biased model predicts another class.
    difficulty: (N,) LfF's relative difficulty at the end, the mean over seeds; None for a model taken as it is.
    share: how many conflict. member: (N,) probability of being one of them. taken_for: (N,) what the biased models
    say at the end. clusters: the suspected ones by kind. judged: average precision against the group labels, base_rate:
    what a random order would get; None without. notes: what the user should hear. findings: all of it for a report.
    """

    data: Dataset
    settings: TrainSettings
    score: Tensor
    order: Tensor
    wrong: Tensor
    difficulty: Tensor | None
    share: Share
    taken_for: Tensor
    sightings: tuple[Sighting, ...]
    clusters: tuple[Cluster, ...] = ()
    judged: Estimate | None = None
    base_rate: float | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def member(self) -> Tensor:
        return self.share.member

    @property
    def average_precision(self) -> float | None:
        return None if self.judged is None else self.judged.value


def shortcuts(
    source: str | Path | Dataset,
    *,
    out: str | Path | None = None,
    data: str | Path | Dataset | None = None,
    model: str | nn.Module | None = None,
    reuse: bool = False,
    epochs: int = 10,
    seeds: int = 2,
    seed: int = 0,
    batch_size: int | None = None,
    lr: float = 1e-3,
    clusters: int | None = None,
    root: str | None = None,
    image_size: int | None = None,
    conflict: float | None = None,
    data_seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    channels_last: bool = False,
    compile: bool = False,
    resamples: int = 200,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Shortcuts:
    """Rank the training samples by how strongly they contradict the shortcut; no group label is used for it.

    Biased models (LfF's, with generalised cross-entropy) learn what is easy; a sample that they keep getting wrong,
    over epochs and seeds, does not fit it. out: a folder for shortcuts.csv, shortcuts.json and shortcuts.html; without
    one nothing is written.

    source: a data set, what ``holdfast.data.load`` takes, or the folder of a run: its data and kind of network are used
    then, and its own model is shown beside the others. data: instead of the data that the run names.
    model: the network's name ("convnet" by default), or a biased model that is trained already, which is taken instead
    of training any. reuse: take the biased model that a run of lff or jtt kept in its checkpoint.
    batch_size: 64 by default for fewer than 10,000 samples, else 128. clusters: kinds to sort the suspected samples
    into; one a class by default, ten at most. root, image_size, conflict, data_seed: as for ``load``.
    """
    for name, value in {"epochs": epochs, "seeds": seeds, "resamples": resamples}.items():
        require(value >= 1, f"{name} must be >= 1, got {value}")
    require(clusters is None or clusters >= 1, f"clusters must be >= 1, got {clusters}")
    place = None if out is None else Path(out)
    if place is not None and not overwrite:
        there = [name for name in (files.CSV, files.JSON, files.PAGE) if (place / name).exists()]
        require(
            not there, f"{place} already holds {', '.join(there)}; replace with --overwrite or choose another --out"
        )
    progress, where = progress or Progress(), resolve_device(device)
    run = None if isinstance(source, Dataset) else _run_folder(source)
    require(run is not None or data is None, "data goes with a run; without one, the source is the data")
    require(run is not None or not reuse, f"reuse needs the folder of a run, and {source} is none")
    require(not (reuse and isinstance(model, nn.Module)), "reuse and a model of your own exclude each other; give one")
    given: dict[str, Any] = {"root": root, "image_size": image_size, "conflict": conflict, "data_seed": data_seed}
    if isinstance(data or source, Dataset) or (run is not None and data is None):
        _require_untold(given, source)
    if run is not None:
        base, dataset, own = _open_run(run, data, given)
    else:
        base, own = TrainSettings(), None
        dataset = source if isinstance(source, Dataset) else load(source, **given)
    _check(dataset)
    settings = build(
        TrainSettings,
        {
            "model": model if isinstance(model, str) else base.model.name,
            "pretrained": base.model.pretrained,
            "weights": base.model.weights,
            "method": "lff",
            "optimizer": "adam",
            "lr": lr,
            "weight_decay": 0.0,
            "schedule": "constant",
            "epochs": epochs,
            "batch_size": batch_size or (64 if len(dataset.train) < 10_000 else 128),
            "eval_every": 0,
            "device": device,
            "precision": precision,
            "channels_last": channels_last,
            "compile": compile,
            "seed": seed,
            "workers": base.data.workers,
            "loader": base.data.loader,
        },
    )
    taken = model if isinstance(model, nn.Module) else _kept_model(run, dataset) if reuse and run else None
    sightings = _sightings(settings, dataset, taken, seeds=seeds, device=where, progress=progress)
    found = _ranked(settings, dataset, sightings, resamples=resamples, seed=seed)
    with kernels(precision, deterministic=False):
        found = replace(found, clusters=_clusters(found, clusters, device=where))
        shown = {"biased": sightings[0].biased}
        if sightings[0].debiased is not None:
            shown["debiased"] = sightings[0].debiased
        if own is not None:
            shown["the run's own"] = own.to(where)
        found = replace(found, findings=_findings(found, shown))
    for note in found.notes:
        progress.note(note)
    if place is not None:
        files.write(found, place)
    return found


def _require_untold(given: Mapping[str, Any], source: object) -> None:
    """Refuse what would be ignored: a set in memory is as it is, and a run recorded what it loaded."""
    default = {"image_size": None, "conflict": None, "data_seed": 0}
    told = next((f"{k} {given[k]}" for k, usual in default.items() if given[k] != usual), None)
    whose = "the data in memory is as it is" if isinstance(source, Dataset) else f"{source} has settings of its own"
    require(told is None, f"{told} is for data that is loaded here, and {whose}; leave it out or name a set with data")


def _run_folder(source: str | Path) -> Path | None:
    """The folder of a run, or None for anything else; unlike Path.is_file, also for names no file could have."""
    return Path(source) if os.path.isfile(os.path.join(source, "run.yaml")) else None


def _open_run(
    run: Path, data: str | Path | Dataset | None, given: Mapping[str, Any]
) -> tuple[TrainSettings, Dataset, nn.Module | None]:
    """A run's settings, its data, and its trained model where it is finished."""
    settings = read_settings(run / "run.yaml")
    own, card = load_model(run) if (run / "model.json").is_file() else (None, None)
    if isinstance(data, Dataset):
        dataset = data
    elif data is not None:
        dataset = load(data, **given)
    else:
        named = (
            settings if given["root"] is None else replace(settings, data=replace(settings.data, root=given["root"]))
        )
        try:
            dataset = load_data(named)
        except HoldfastError as error:
            raise HoldfastError(f"the data of {run} is not there: {error}; name its place with --data") from error
    require(
        card is None or card.classes == dataset.classes,
        f"the model of {run} was not trained on {dataset.name}: the classes differ; give its data with --data",
    )
    return settings, dataset, own


def _kept_model(run: Path, data: Dataset) -> nn.Module:
    """The biased model in the checkpoint of a run."""
    require((run / "model.json").is_file(), f"{run} is not finished; train it to its end, or drop --reuse")
    state = RunFolder(run).checkpoints.load()
    kept = {} if state is None else state["method"]
    inner = {k.removeprefix("biased."): v for k, v in kept.items() if k.startswith("biased.")}
    method = read_settings(run / "run.yaml").method.name
    require(bool(inner), f"{run} kept no biased model (its method is {method}); drop --reuse, and some are trained")
    model, _ = load_model(run)
    model.load_state_dict(inner)
    return model


def _check(data: Dataset) -> None:
    """Refuse what has no shortcut to find."""
    n = len(data.train)
    require(n >= 2, f"{data.name} has {n} training samples; a shortcut shows in the training split: give one")
    classes = len(set(data.train.labels.tolist()))
    require(
        classes >= 2, f"{data.name} has {classes} class in training; a shortcut is between classes: give two or more"
    )


def _sightings(
    settings: TrainSettings,
    data: Dataset,
    taken: nn.Module | None,
    *,
    seeds: int,
    device: torch.device,
    progress: Progress,
) -> tuple[Sighting, ...]:
    if taken is not None:
        return (take(taken, settings, data, device=device),)
    made = []
    for i in range(seeds):
        if seeds > 1:
            progress.note(f"biased model {i + 1} of {seeds}")
        seeded = replace(settings, loop=replace(settings.loop, seed=settings.loop.seed + i))
        made.append(watch(seeded, data, device=device, progress=progress))
    return tuple(made)


def _ranked(
    settings: TrainSettings, data: Dataset, sightings: tuple[Sighting, ...], *, resamples: int, seed: int
) -> Shortcuts:
    score = torch.stack([s.surprise for s in sightings]).mean(0)
    require(bool(score.isfinite().all()), "the biased model's outputs are not finite; try a lower --lr")
    difficulties = [s.difficulty for s in sightings if s.difficulty is not None]
    share = estimate_share(score, resamples=resamples, seed=derive(seed, "shortcuts/share"))
    taken_for = torch.stack([s.probabilities for s in sightings]).mean(0).argmax(1)
    labels, groups = data.train.labels, data.train.groups
    judged, base_rate = None, None
    known = groups >= 0
    conflicting = known & (groups != aligned_groups(labels, groups, data.num_classes)[labels])
    if bool(conflicting.any()) and not bool(conflicting[known].all()):
        drawn = derive(seed, "shortcuts/precision")
        judged = evaluate(score[known], conflicting[known], resamples=resamples, seed=drawn).ranking["ap"]
        base_rate = float(conflicting[known].double().mean())
    return Shortcuts(
        data=data,
        settings=settings,
        score=score,
        order=score.argsort(descending=True, stable=True),
        wrong=torch.stack([s.wrong for s in sightings]).mean(0),
        difficulty=torch.stack(difficulties).mean(0) if difficulties else None,
        share=share,
        taken_for=taken_for,
        sightings=sightings,
        judged=judged,
        base_rate=base_rate,
        notes=_notes(sightings, labels, share),
    )


def _notes(sightings: tuple[Sighting, ...], labels: Tensor, share: Share) -> tuple[str, ...]:
    """When not to believe the ranking."""
    notes = []
    right = float(torch.stack([s.probabilities.argmax(1) == labels for s in sightings]).double().mean())
    chance = float(torch.bincount(labels).max()) / len(labels)
    if right < chance + 0.5 * (1 - chance):
        notes.append(
            f"the biased models get only {100 * right:.0f} % of the training samples right: there may be no simple "
            "shortcut, or they need more --epochs or another --lr"
        )
    if share.value > 0.5:
        notes.append(
            f"{100 * share.value:.0f} % of the samples do not fit what the biased models learned: that is no shortcut "
            "with exceptions; read the ranking as plain difficulty"
        )
    if right > 0.999 and share.value < 2 / len(labels):
        notes.append(
            "the biased models get every training sample right: nothing contradicts what they learned; lower --epochs, "
            "or there is no exception to find"
        )
    return tuple(notes)


def _clusters(found: Shortcuts, count: int | None, *, device: torch.device) -> tuple[Cluster, ...]:
    data, split = found.data, found.data.train
    suspected = found.order[found.member[found.order] >= CLEAR][:MOST_CLUSTERED]
    if not len(suspected):
        return ()
    wanted = count or min(data.num_classes, MOST_CLUSTERS)
    points = features(found.sightings[0].biased, split, suspected, device=device)
    kinds = k_means(points, wanted, seed=derive(found.settings.loop.seed, "shortcuts/clusters"))
    made = []
    for number in range(int(kinds.max()) + 1):
        own = suspected[kinds == number]
        label = most_frequent(split.labels[own], data.classes)
        taken_for = most_frequent(found.taken_for[own], data.classes)
        assert label is not None
        assert taken_for is not None
        group = most_frequent(split.groups[own], data.group_names)
        made.append(Cluster(number, tuple(own.tolist()), label, taken_for, group))
    return tuple(made)


def _findings(found: Shortcuts, models: dict[str, nn.Module]) -> tuple[Finding, ...]:
    data, n, loop = found.data, len(found.score), found.settings.loop
    trained = found.difficulty is not None
    settings = {
        "model": found.settings.model.name,
        "biased models": len(found.sightings) if trained else "taken as they are",
        "epochs": loop.epochs if trained else None,
        "score": "1 - p(y|x) of the biased models, mean over seeds and epochs",
        "seed": loop.seed,
    }
    share = found.share
    evidence: dict[str, Any] = {"histogram": _histogram(found), "notes": list(found.notes)}
    made = [Finding("shortcuts", "conflicting-share", share.value, n, share.low, share.high, {}, settings, evidence)]
    if found.judged is not None and found.base_rate is not None:
        known = int((data.train.groups >= 0).sum())
        ap, lift = found.judged, {"lift": found.judged.value / found.base_rate}
        made.append(Finding("shortcuts", "average-precision", ap.value, known, ap.low, ap.high, {}, settings, lift))
        made.append(Finding("shortcuts", "base-rate", found.base_rate, known, settings=settings))
    for cluster in found.clusters:
        part = torch.tensor(cluster.positions[:SHOWN])
        evidence = {
            "label": list(cluster.label),
            "taken_for": list(cluster.taken_for),
            "group": None if cluster.group is None else list(cluster.group),
            "rows": files.rows(data.train, part, models, found),
        }
        size = len(cluster.positions)
        where = {"cluster": str(cluster.number)}
        made.append(Finding("shortcuts", "cluster-size", float(size), size, where=where, evidence=evidence))
    ends = {"top": found.order[: 2 * SHOWN], "bottom": found.order[-SHOWN:]}
    rows = {name: files.rows(data.train, part, models, found) for name, part in ends.items()}
    return (*made, Finding("shortcuts", "ends", None, 0, settings=settings, evidence=rows))


def _histogram(found: Shortcuts) -> dict[str, list[int]]:
    """Samples by score in equal bins over [0, 1]: all, and both sides of the shortcut where groups tell."""
    labels, groups = found.data.train.labels, found.data.train.groups
    at = (found.score * BINS).long().clamp(max=BINS - 1)
    parts = {"all": torch.ones_like(labels, dtype=torch.bool)}
    if found.judged is not None:
        usual = groups == aligned_groups(labels, groups, found.data.num_classes)[labels]
        parts = {"aligned": usual, "conflicting": ~usual & (groups >= 0)}
    return {name: torch.bincount(at[chosen], minlength=BINS).tolist() for name, chosen in parts.items()}
