"""``holdfast shortcuts``: which training samples contradict the shortcut that models take; without group labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.data import Dataset
from holdfast.devices import kernels, resolve_device
from holdfast.errors import require
from holdfast.files import writable_folder
from holdfast.settings import TrainSettings, build
from holdfast.shortcuts import shortcut_files
from holdfast.shortcuts.clusters import Cluster, clusters_of
from holdfast.shortcuts.findings import findings_of
from holdfast.shortcuts.mixture import Share
from holdfast.shortcuts.opening import kept_model, open_source, run_folder
from holdfast.shortcuts.ranking import rank
from holdfast.shortcuts.result import Shortcuts
from holdfast.shortcuts.watch import Sighting, take, watch
from holdfast.train.progress import Progress

__all__ = ["Cluster", "Share", "Shortcuts", "Sighting", "shortcuts"]


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
    names: str | None = None,
    label: str | None = None,
    group: str | None = None,
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
    then, and its own model is shown beside the others. data: instead of the data that the run names, or that it had in
    memory.
    model: the network's name ("convnet" by default), or a biased model that is trained already, which is taken instead
    of training any. reuse: take the biased model that a run of lff or jtt kept in its checkpoint.
    batch_size: 64 by default for fewer than 10,000 samples, else 128. clusters: kinds to sort the suspected samples
    into; one a class by default, ten at most. root, image_size, conflict, names, label, group, data_seed:
    as for ``load``.
    """
    for name, value in {"epochs": epochs, "seeds": seeds, "resamples": resamples}.items():
        require(value >= 1, f"{name} must be >= 1, got {value}")
    require(clusters is None or clusters >= 1, f"clusters must be >= 1, got {clusters}")
    require(batch_size is None or batch_size >= 1, f"batch_size must be >= 1, got {batch_size}")
    place = None if out is None else writable_folder(out)
    if place is not None and not overwrite:
        there = [
            name for name in (shortcut_files.CSV, shortcut_files.JSON, shortcut_files.PAGE) if (place / name).exists()
        ]
        require(
            not there, f"{place} already holds {', '.join(there)}; replace with --overwrite or choose another --out"
        )
    progress, where = progress or Progress(), resolve_device(device)
    run = None if isinstance(source, Dataset) else run_folder(source)
    require(run is not None or not reuse, f"reuse needs the folder of a run, and {source} is none")
    require(not (reuse and isinstance(model, nn.Module)), "reuse and a model of your own exclude each other; give one")
    given: dict[str, Any] = {"root": root, "image_size": image_size, "conflict": conflict, "data_seed": data_seed}
    given |= {"names": names, "label": label, "group": group}
    base, dataset, own = open_source(source, data, given, model=model)
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
    taken = model if isinstance(model, nn.Module) else kept_model(run) if reuse and run else None
    sightings = _sightings(settings, dataset, taken, seeds=seeds, device=where, progress=progress)
    found = rank(settings, dataset, sightings, resamples=resamples, seed=seed)
    with kernels(precision, deterministic=False):
        found = replace(found, clusters=clusters_of(found, clusters, device=where))
        shown = {"biased": sightings[0].biased}
        if sightings[0].debiased is not None:
            shown["debiased"] = sightings[0].debiased
        if own is not None:
            shown["the run's own"] = own.to(where)
        found = replace(found, findings=findings_of(found, shown))
    for note in found.notes:
        progress.note(note)
    if place is not None:
        shortcut_files.write(found, place)
    return found


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
