"""``holdfast.fit``: from data and settings to a trained model in a run folder. Open this file to change the arguments
of ``fit``, or what a run leaves behind; ``preparing.py`` makes what a training begins with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.data import Dataset
from holdfast.data.given_data import KINDS, is_given
from holdfast.data.given_items import name_of
from holdfast.data.usable_data import admitted, write_unreadable
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.files import at_home
from holdfast.models import ModelCard, save_model
from holdfast.models.heads import freeze_backbone
from holdfast.models.saved_model import CARD, TENSORS, save_weights
from holdfast.models.sources.python import maker_name
from holdfast.rng import derive
from holdfast.settings import DATA_READING_KEYS, MethodSettings, TrainSettings, build, flatten
from holdfast.settings.device_defaults import DEVICE_KEYS
from holdfast.settings.fields import columns_text
from holdfast.settings.training_defaults import CHOSEN_KEYS
from holdfast.trackers import Tracking
from holdfast.train.distributed import Ranks, continued, joined
from holdfast.train.engine import Trainer
from holdfast.train.folder import RunFolder, claim
from holdfast.train.preparing import OwnModel, fingerprint, from_run, load_data, prepare, pretrain
from holdfast.train.progress import Progress, make_progress
from holdfast.train.run_result import Run
from holdfast.train.threads import fitting_threads


def fit(
    data: Any,
    *,
    model: str | Path | OwnModel | Run = "convnet",
    method: str | Mapping[str, Any] | MethodSettings = "erm",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Train a model.

    data: what ``holdfast.data.load`` takes (a name, a path, arrays, a torch ``Dataset`` or ``DataLoader``, a Hugging
    Face ``Dataset`` or ``DatasetDict``), or what it returned. model: a name; ``python:package.module:function``; a run,
    as its folder or as :func:`fit` returned it, to start from its weights; a module of your own that maps images in
    [0, 1] to logits; or a class or function that makes one, called with ``num_classes`` where it takes that. out: the
    run folder; without one nothing is written. settings: all others, with the names and defaults of ``holdfast
    train``'s flags. Those of the method and the ascent go with its name: ``ascent={"name": "sam", "rho": 0.1}`` is
    ``--ascent sam --ascent.rho 0.1``.

    For a module of your own, the folder gets the weights (a state dict in model.safetensors) but not the code that
    builds it: load the state dict into your module to use it. Methods with an auxiliary network train a copy of it, or
    call your class or function again.

    >>> import torch
    >>> images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    >>> run = fit((images, labels), epochs=1, device="cpu", progress=False)
    >>> len(run.data.train), len(run.data.test)
    (32, 8)
    """
    if isinstance(model, Run):
        kept = model.out is not None and (model.out / CARD).is_file()
        model = str(model.out) if kept else deepcopy(model.model)  # the run in hand stays as it is
    model = str(model) if isinstance(model, Path) else model
    kinds = "a name such as 'convnet', a run, a module, or a class or function that makes one"
    require(isinstance(model, str) or callable(model), f"model must be {kinds}, got {model!r}")
    named: dict[str, Any] = {"method": method, **settings}
    if isinstance(settings.get("columns"), Mapping):
        named["columns"] = columns_text(settings["columns"])
    own_data: Dataset | None = None
    own_model = None if isinstance(model, str) else model
    if isinstance(data, Dataset):
        unused = ", ".join(f"{name} {settings[name]}" for name in DATA_READING_KEYS if name in settings)
        require(
            not unused, f"{unused}: not for a set in memory, which is taken as it is; give it to holdfast.data.load"
        )
        own_data = admitted(data, training=True)
    elif is_given(data):
        named["data"] = name_of(data)
    else:
        require(isinstance(data, str | os.PathLike), f"data must be {KINDS}, got {type(data).__name__}")
        named["data"] = str(data)
    if own_model is None:
        named["model"] = model
    resolved, show = build(TrainSettings, named), make_progress(progress)
    resolved.require_unlabeled_used()
    own_data = load_data(resolved, data) if is_given(data) else own_data
    return train(resolved, data=own_data, model=own_model, out=out, resume=resume, overwrite=overwrite, progress=show)


def train(
    settings: TrainSettings,
    *,
    data: Dataset | None = None,
    model: OwnModel | None = None,
    out: str | Path | RunFolder | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    tracking: Tracking | None = None,
) -> Run:
    """Train with resolved settings. Data and model may be given ready-made; else the settings name them.

    out: the run folder; or one that the caller has claimed and uses afterwards. tracking: that of the settings, where
    the caller has more to record in it.

    >>> from holdfast.settings import TrainSettings, build
    >>> run = train(build(TrainSettings, {"data": "digits", "epochs": 1, "device": "cpu"}))
    >>> run.settings.loop.epochs
    1
    """
    with joined(settings.loop.device) as ranks:
        options: dict[str, Any] = {"data": data, "model": model, "out": out, "resume": resume, "overwrite": overwrite}
        return _train(settings, progress=progress, tracking=tracking, ranks=ranks, **options)


def _train(
    settings: TrainSettings,
    *,
    data: Dataset | None,
    model: OwnModel | None,
    out: str | Path | RunFolder | None,
    resume: bool,
    overwrite: bool,
    progress: Progress | None,
    tracking: Tracking | None,
    ranks: Ranks | None,
) -> Run:
    """The training of one process or one rank; of several ranks the first has the folder, and speaks."""
    quiet = ranks is not None and not ranks.first
    resume, overwrite = continued(ranks, resume=resume, overwrite=overwrite)
    progress = Progress() if quiet or progress is None else progress
    loop = settings.loop
    device = resolve_device(loop.device) if ranks is None else ranks.device
    able = loop.capture != "on" or device.type == "cuda"
    require(able, f"capture on needs a CUDA device, and the device is {device}; use --capture auto")
    settings = from_run(settings.resolved())
    found = _beyond_settings(settings, data, model)
    claimed: AbstractContextManager[RunFolder | None] = (
        nullcontext(None if quiet else out)  # type: ignore[arg-type]
        if out is None or quiet or isinstance(out, RunFolder)
        else claim(out, resume=resume, overwrite=overwrite, data=settings.data.name)
    )
    watched: AbstractContextManager[Tracking] = (
        nullcontext(tracking or Tracking()) if quiet or tracking is not None else Tracking.of(loop, note=progress.note)
    )
    with claimed as folder, watched as tracking:
        settings = settings if folder is None else folder.continued(settings)
        if ranks is not None:  # the first alone knows what was chosen when the run began
            flat = flatten(settings)
            chosen = {key: flat[key] for key in (*CHOSEN_KEYS, *DEVICE_KEYS)}
            settings = build(TrainSettings, flat | (ranks.from_first(chosen) or {}))
        if data is None:
            with nullcontext() if ranks is None else ranks.one_first():
                data = load_data(settings)
        for note in map(str, data.notes):
            progress.note(note)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(derive(loop.seed, "weights"))
            made = prepare(settings, data, model=model, progress=progress)
            settings, network, state = made.settings, made.network, made.state
            frozen = [] if settings.model.freeze == "none" else freeze_backbone(network)
            sha = fingerprint(data) if folder is not None or ranks is not None else ""
            if ranks is not None:
                ranks.require_same("the training data", sha)
            known = device.type == "cpu" and made.built is not None  # a module of the caller's is not called for this
            small = fitting_threads(network, data.shape, settings.loop.batch_size) if known else nullcontext()
            with small:
                if folder is not None:
                    folder.open(settings, {"data_sha256": sha, **found, **made.chosen.recorded()})
                    write_unreadable(folder.path, data.unreadable)
                fresh = folder is None or folder.checkpoints.newest is None
                if ranks is not None:  # ranks pretrain alike, each by itself
                    fresh = bool((ranks.from_first({"fresh": fresh}) or {})["fresh"])
                if settings.model.pretrain != "none" and fresh:
                    progress.note(f"pretraining ({settings.model.pretrain}) on images without labels")
                    pretrain(network, data, settings, device=device, note=progress.note)
                torch.manual_seed(derive(loop.seed, "model"))
                shown: dict[str, Any] = {"folder": folder, "progress": progress, "tracking": tracking}
                trainer = Trainer(settings, data, network, state, device=device, ranks=ranks, **shown)
                with progress:
                    trainer.run()
            if ranks is not None:
                ranks.part()
        network.eval()
        for p in frozen:
            p.requires_grad_(True)
        card = None if made.built is None else ModelCard.of(made.built, data.classes, data.shape, data.group_names)
        if folder is not None and card is not None:
            save_model(folder.path, network, card=card)
        elif folder is not None:
            progress.note(_save_own(folder.path, network))
    place, epoch, history = folder.path if folder else None, trainer.best.get("epoch"), tuple(trainer.history)
    return Run(network, data, settings, history, place, state, card, epoch, made.chosen, handed="own_data" in found)


def _save_own(folder: Path, network: nn.Module) -> str:
    """Store what can be stored of a module of the caller's; returns a note on what that is."""
    name = type(network).__name__
    if save_weights(folder, network):
        how = "load_state_dict(safetensors.torch.load_file(...)) brings them back into one"
        return f"{folder / TENSORS} holds the weights of this {name}; what builds it is not stored: {how}"
    return f"this {name} holds more than plain tensors; keep the model yourself: the folder has it for resume=True only"


def _beyond_settings(settings: TrainSettings, data: Dataset | None, model: OwnModel | None) -> dict[str, str]:
    """What a run records beside its settings: what was handed over in Python, and the path of data that has one."""
    found = {} if model is None else {"own_model": maker_name(model)}
    path = at_home(settings.data.name)
    if data is not None:
        found["own_data"] = data.name
    elif os.path.exists(path):
        found["data_path"] = os.path.abspath(path)
    return found
