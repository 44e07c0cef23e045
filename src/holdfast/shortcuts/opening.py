"""Where a shortcut is looked for: a set, or a run with its data, its network and the biased model it kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.data import Dataset, load
from holdfast.errors import HoldfastError, require
from holdfast.models import load_model
from holdfast.settings import TrainSettings, read_environment
from holdfast.train.api import load_data
from holdfast.train.folder import RunFolder, read_settings


def open_source(
    source: str | Path | Dataset,
    data: str | Path | Dataset | None,
    given: Mapping[str, Any],
    *,
    model: str | nn.Module | None = None,
) -> tuple[TrainSettings, Dataset, nn.Module | None]:
    """The settings to start from, the data, and the trained model of a run that is finished.

    data, model: instead of those that a run names. given: how to load the data.
    """
    run = None if isinstance(source, Dataset) else run_folder(source)
    require(run is not None or data is None, "data goes with a run; without one, the source is the data")
    if isinstance(data or source, Dataset) or (run is not None and data is None):
        _require_untold(given, source)
    if run is not None:
        _require_named(run, data=data, model=model)
        settings, dataset, own = _open_run(run, data, given)
    else:
        settings, own = TrainSettings(), None
        dataset = source if isinstance(source, Dataset) else load(source, **given)
    _check(dataset)
    return settings, dataset, own


def run_folder(source: str | Path) -> Path | None:
    """The folder of a run, or None for anything else; unlike Path.is_file, also for names no file could have."""
    return Path(source) if os.path.isfile(os.path.join(source, "run.yaml")) else None


def kept_model(run: Path) -> nn.Module:
    """The biased model in the checkpoint of a run."""
    own = read_environment(run).get("own_model")
    require(
        own is None,
        f"{run} was trained with a module of its own, {own}, and so was its biased model, which only Python can build; "
        "drop --reuse",
    )
    require((run / "model.json").is_file(), f"{run} is not finished; train it to its end, or drop --reuse")
    state = RunFolder(run).checkpoints.load()
    kept = {} if state is None else state["method"]
    inner = {k.removeprefix("biased."): v for k, v in kept.items() if k.startswith("biased.")}
    method = read_settings(run / "run.yaml").method.name
    require(bool(inner), f"{run} kept no biased model (its method is {method}); drop --reuse, and some are trained")
    model, _ = load_model(run)
    model.load_state_dict(inner)
    return model


def _require_named(run: Path, **given: object) -> None:
    """Refuse to take other data, or another network, for what was handed to a run in Python."""
    recorded = read_environment(run)
    own = {kind: recorded.get(f"own_{kind}") for kind, value in given.items() if value is None}
    require(own.get("data") is None, f"{run} was trained on a set in memory, {own.get('data')}; give it with --data")
    require(
        own.get("model") is None,
        f"{run} was trained with a module of its own, {own.get('model')}, which its folder does not hold; name a "
        "network with --model",
    )


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


def _require_untold(given: Mapping[str, Any], source: object) -> None:
    """Refuse what would be ignored: a set in memory is as it is, and a run recorded what it loaded."""
    usual = {"root": given["root"], "data_seed": 0}
    told = next((f"{name} {value}" for name, value in given.items() if value != usual.get(name)), None)
    whose = "the data in memory is as it is" if isinstance(source, Dataset) else f"{source} has settings of its own"
    require(told is None, f"{told} is for data that is loaded here, and {whose}; leave it out or name a set with data")


def _check(data: Dataset) -> None:
    """Refuse what has no shortcut to find."""
    n = len(data.train)
    require(n >= 2, f"{data.name} has {n} training samples; a shortcut shows in the training split: give one")
    classes = len(set(data.train.labels.tolist()))
    require(
        classes >= 2, f"{data.name} has {classes} class in training; a shortcut is between classes: give two or more"
    )
