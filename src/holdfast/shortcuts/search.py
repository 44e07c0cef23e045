"""``holdfast.find_shortcuts``: open the data or the run, train biased models on it, rank its training samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.data import Dataset, load
from holdfast.data.result_folders import refuse_foreign
from holdfast.devices import kernels, resolve_device
from holdfast.errors import HoldfastError, require
from holdfast.files import writable_folder
from holdfast.models import load_model
from holdfast.settings import TrainSettings, build, handed_over, read_environment
from holdfast.shortcuts.biased_models import score_biased_model, train_biased_model
from holdfast.shortcuts.conflicting_samples import Shortcuts, clusters_of, rank
from holdfast.shortcuts.shortcut_alarm import held_out_test
from holdfast.shortcuts.shortcut_files import CSV, JSON, PAGE, findings_of, write
from holdfast.train.folder import RunFolder, read_settings
from holdfast.train.preparing import load_data
from holdfast.train.progress import Progress, make_progress


def find_shortcuts(
    source: Any,
    *,
    out: str | Path | None = None,
    data: Any = None,
    model: str | nn.Module | None = None,
    reuse: bool = False,
    epochs: int = 10,
    seeds: int = 2,
    seed: int = 0,
    batch_size: int | None = None,
    lr: float = 1e-3,
    clusters: int | None = None,
    test: bool = True,
    device: str = "auto",
    precision: str = "fp32",
    channels_last: bool = False,
    compile: bool = False,
    resamples: int = 200,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    **loading: Any,
) -> Shortcuts:
    """Rank the training samples by how likely they are bias-conflicting; no group label is used for it.

    Biased models (LfF's, with generalised cross-entropy) learn the shortcut; a sample that they keep getting wrong,
    over epochs and seeds, conflicts with it, or is hard, or has a wrong label. out: a folder for shortcuts.csv,
    shortcuts.json and shortcuts.html; without one nothing is written. test: whether there is a shortcut at all, by
    training on two halves of the data; not where a biased model is given or reused.

    source: a data set, what ``holdfast.data.load`` takes, or the folder of a run: its data and kind of network are used
    then, and its own model is shown beside the others. data: instead of the data that the run names, or that it had in
    memory. model: the network's name ("convnet" by default), or a biased model that is trained already, which is used
    instead of training any. reuse: use the biased model that a run of lff or jtt kept in its checkpoint. batch_size: 64
    by default for fewer than 10,000 samples, else 128. clusters: of the suspected samples; one per class by default,
    ten at most. loading: root, image_size, conflict, names, label, group, columns, data_seed and confine, as for
    ``load``.

    >>> quick = {"image_size": 8, "epochs": 1, "seeds": 1, "clusters": 1, "resamples": 2, "test": False}
    >>> found = find_shortcuts("coloured-digits", device="cpu", **quick)
    >>> found.order[:20].shape
    torch.Size([20])
    """
    counts = {"epochs": epochs, "seeds": seeds, "resamples": resamples, "clusters": clusters, "batch_size": batch_size}
    for name, value in counts.items():
        require(value is None or value >= 1, f"{name} must be >= 1, got {value}")
    folder = None if out is None else writable_folder(out)
    if folder is not None and not overwrite:
        there = ", ".join(name for name in (CSV, JSON, PAGE) if (folder / name).exists())
        require(not there, f"{folder} already holds {there}; replace with --overwrite or choose another --out")
    bar, where = make_progress(progress), resolve_device(device)
    run = None
    if isinstance(source, str | os.PathLike) and os.path.isfile(
        os.path.join(source, "run.yaml")
    ):  # Path.is_file may raise
        run = Path(source)
    if folder is not None:
        refuse_foreign(folder, (CSV, JSON, PAGE), data=source if run is None else data)
    require(run is not None or not reuse, f"reuse needs the folder of a run, and {source} is not one")
    require(not (reuse and isinstance(model, nn.Module)), "reuse and a model of your own exclude each other; give one")
    base, dataset, own = _open(source, run, data, loading, model=model)
    settings = biased_training(
        len(dataset.train),
        model=model if isinstance(model, str) else base.model.name,
        pretrained=base.model.pretrained,
        weights=base.model.weights,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        device=device,
        precision=precision,
        channels_last=channels_last,
        compile=compile,
        seed=seed,
        workers=base.data.workers,
        loader=base.data.loader,
    )
    given = model if isinstance(model, nn.Module) else _kept_model(run) if reuse and run else None
    models = [] if given is None else [score_biased_model(given, settings, dataset, device=where)]
    for i in range(seeds if given is None else 0):
        if seeds > 1:
            bar.note(f"biased model {i + 1} of {seeds}")
        seeded = replace(settings, loop=replace(settings.loop, seed=seed + i))
        models.append(train_biased_model(seeded, dataset, device=where, progress=bar))
    tested = held_out_test(settings, dataset, device=where, progress=bar) if test and given is None else None
    found = rank(settings, dataset, tuple(models), tested, resamples=resamples, seed=seed)
    with kernels(precision, deterministic=False):
        found = replace(found, clusters=clusters_of(found, clusters))
        shown = {"biased": models[0].biased, "debiased": models[0].debiased, "the run's own": own}
        kept = {name: shown_model.to(where) for name, shown_model in shown.items() if shown_model is not None}
        found = replace(found, findings=findings_of(found, kept))
    for note in found.notes:
        bar.note(str(note))
    if folder is not None:
        write(found, folder)
    return found


def biased_training(
    samples: int, *, lr: float = 1e-3, epochs: int = 10, batch_size: int | None = None, **settings: Any
) -> TrainSettings:
    """How biased models are trained on so many samples."""
    usual = {"method": "lff", "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "eval_every": 0}
    usual |= {"precision": "fp32", "channels_last": False, "compile": False}  # rankings stay comparable over devices
    size = batch_size or (64 if samples < 10_000 else 128)
    return build(TrainSettings, usual | {"lr": lr, "epochs": epochs, "batch_size": size} | settings)


def _open(
    source: Any,
    run: Path | None,
    data: Any,
    options: Mapping[str, Any],
    *,
    model: str | nn.Module | None,
) -> tuple[TrainSettings, Dataset, nn.Module | None]:
    """The settings to start from, the data, and the trained model of a run that is finished.

    data, model: instead of those that a run names. options: how to load the data.
    """
    require(run is not None or data is None, "data goes with a run; without one, the source is the data")
    if isinstance(source if data is None else data, Dataset) or (run is not None and data is None):
        _require_defaults(options, source)
    settings, own, card = TrainSettings(), None, None
    if run is not None:
        _require_named(run, data=data, model=model)
        settings = read_settings(run / "run.yaml")
        own, card = load_model(run) if (run / "model.json").is_file() else (None, None)
    given = source if run is None else data
    if isinstance(given, Dataset):
        dataset = given
    elif given is not None:
        dataset = load(given, **options)
    else:
        own_data = settings.data
        if options.get("root") is not None:
            own_data = replace(own_data, root=options["root"])
        try:
            confine = own_data.confine or options.get("confine", False)
            dataset = load_data(replace(settings, data=replace(own_data, confine=confine)))
        except HoldfastError as error:
            raise HoldfastError(f"the data of {run} is not there: {error}; name its place with --data") from error
    require(
        card is None or card.classes == dataset.classes,
        f"the model of {run} was not trained on {dataset.name}: the classes differ; give its data with --data",
    )
    n, classes = len(dataset.train), len(set(dataset.train.labels.tolist()))
    require(n >= 2, f"{dataset.name} has {n} training samples; a shortcut shows in the training split: give one")
    require(
        classes >= 2, f"{dataset.name} has {classes} class in training; a shortcut is between classes: give two or more"
    )
    return settings, dataset, own


def _require_defaults(options: Mapping[str, Any], source: object) -> None:
    """Refuse options that would be ignored: data in memory is loaded already, and a run recorded what it loaded."""
    usual = {"root": options.get("root"), "confine": options.get("confine"), "data_seed": 0}
    given = next((f"{name} {value}" for name, value in options.items() if value != usual.get(name)), None)
    whose = "this data is in memory already" if isinstance(source, Dataset) else f"{source} has settings of its own"
    require(
        given is None, f"{given} is for data that is loaded here, and {whose}; leave it out or name a set with data"
    )


def _require_named(run: Path, **given: object) -> None:
    """Refuse to use other data, or another network, instead of what was handed to a run in Python."""
    recorded = read_environment(run)
    own = {kind: handed_over(recorded, kind) for kind, value in given.items() if value is None}
    require(own.get("data") is None, f"{run} was trained on a set in memory, {own.get('data')}; give it with --data")
    require(
        own.get("model") is None,
        f"{run} was trained with a module of its own, {own.get('model')}, which its folder does not hold; name a "
        "network with --model",
    )


def _kept_model(run: Path) -> nn.Module:
    """The biased model in the checkpoint of a run."""
    own = handed_over(read_environment(run), "model")
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
