"""Fit a detector on normal images: train the models that the scores need, fit the scores, set the threshold.

``fit`` is what ``holdfast detect fit`` calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Images, check_images, evaluation_batch
from holdfast.data.result_folders import refuse_foreign
from holdfast.data.splits import Split
from holdfast.data.unlabelled_images import ImageSource, open_unlabelled
from holdfast.detect.detectors import FUSED, check_scores, make_detector
from holdfast.detect.evaluation import Threshold, rank_of
from holdfast.detect.features import ClassifierExtractor, extract, make_extractor
from holdfast.detect.fitted_detector import CARD, DETECTOR_FOLDER, FittedDetector, Fused, image_hashes
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.files import writable_folder
from holdfast.models import ModelCard, load_model
from holdfast.models.resolution import resolve
from holdfast.models.saved_model import shape_for
from holdfast.models.vae import VAESettings
from holdfast.parts import DETECTORS
from holdfast.rng import derive
from holdfast.settings.detect_settings import FitSettings, VAETrainingSettings
from holdfast.train.progress import Progress, make_progress
from holdfast.train.rotation import rotation_card, train_rotation
from holdfast.train.run_result import is_own_data, terms_of_run
from holdfast.train.unlabelled import MinimiseSettings, train_vae

FUSED_LABEL_FREE: Final = ("reconstruction", "knn", "mahalanobis")
"""What ``fused`` joins without labels: damaged pixels show in the first, images of other classes in the distances."""
FUSED_CLASSIFIER: Final = ("reconstruction", "knn", "energy")
VAE_TERMS: Final = frozenset({"reconstruction", "kl", "drawn", "regret"})


def fit(
    data: Tensor | ImageSource,
    *,
    labels: Tensor | None = None,
    classifier: nn.Module | None = None,
    card: ModelCard | None = None,
    vae_loop: MinimiseSettings | None = None,
    encoder_loop: MinimiseSettings | None = None,
    note: Callable[[str], None] | None = None,
    progress: bool | Progress | None = None,
    **settings: Any,
) -> FittedDetector:
    """Fit a detector on ``data``, in which every image is normal.

    data: a name, path, split or data set, images (N, C, H, W), or anything that :func:`holdfast.data.load` takes. If it
    has splits, the training split is used, never a test split; with ``run``, what that run was trained on if it is the
    same data. labels: (N,) classes, for scores that can use them; a split brings its own. classifier: a trained model
    whose features and logits are scored, on the device it is on; give its card as well to save the detector. vae_loop,
    encoder_loop: how to train each, where settings are not enough.

    settings: the fields of :class:`FitSettings` and :class:`VAETrainingSettings`, as in ``holdfast detect fit --help``.
    out: the folder to write the detector to. run: a trained run instead of a classifier; the detector is written into
    it unless ``out`` says otherwise, where ``predict`` finds it. Without a classifier, an encoder learns to predict
    rotations of these images, if a score needs it. held_out: share of the data that nothing is trained on; one half
    of it sets the centre and scale of each score, the other half the threshold. progress: a bar for
    every training; by default on a terminal and in a notebook.

    >>> import numpy as np
    >>> normal = np.random.default_rng(0).integers(0, 60, (80, 8, 8), dtype=np.uint8)
    >>> quick = {"epochs": 5, "lr": 1e-2, "batch_size": 8, "held_out": 0.5, "false_alarm_rate": 0.1, "device": "cpu"}
    >>> detector = fit(normal, scores="reconstruction", **quick)
    >>> detector.report(normal + 190).flagged
    80
    """
    given = {f.name: settings.pop(f.name) for f in fields(VAETrainingSettings) if f.name in settings}
    own, training = FitSettings(**settings), VAETrainingSettings(**given)
    place = None
    if own.out is not None or own.run is not None:
        place = writable_folder(Path(own.run or "") / DETECTOR_FOLDER if own.out is None else own.out)
        require(not (place / CARD).exists(), f"{place} holds a detector already; choose another place")
        refuse_foreign(place, (), data=data)
    device = resolve_device(str(training.device))
    if classifier is not None:
        device = ClassifierExtractor(classifier).device
    elif own.run is not None:
        classifier, card = load_model(own.run)
        classifier.to(device)
    say, shown = note or (lambda text: None), make_progress(progress)
    images: Images = data if isinstance(data, Tensor) else _opened(data, own, training, shape_for(card), say)
    check_images(images)
    names = _names(own.scores, classifier is not None)
    reads = {field for name in names for field in DETECTORS[name].reads}
    require(
        classifier is not None or "logits" not in reads,
        f"{', '.join(names)}: scores of logits need a classifier; give one, or choose other scores",
    )
    require(
        classifier is None or "rotation" not in reads,
        "the score rotation needs an encoder of its own; leave it out beside a classifier",
    )
    if labels is None and not isinstance(images, Tensor) and bool((images.labels >= 0).all()):
        labels = images.labels
    train, scale, level = _parts(images, own.held_out, training.seed)
    rank_of(own.false_alarm_rate, len(level))  # what cannot be is said before anything is trained
    if classifier is None:
        resolve(own.encoder)
    channels, height, width = images.shape[-3:]
    shape, square = (channels, height, width), height == width
    vae = VAESettings(shape, training.network, training.latent, own.sigma, own.beta)
    shared: dict[str, Any] = {"batch_size": training.batch_size, "precision": own.precision, "seed": training.seed}
    vae_loop = vae_loop or MinimiseSettings(training.epochs, lr=training.lr, **shared)
    encoder_loop = encoder_loop or MinimiseSettings(own.encoder_epochs, lr=2 * training.lr, schedule="cosine", **shared)
    trained = None
    if reads & VAE_TERMS or (classifier is None and "features" in reads and not square):
        say(f"training a {vae.network} VAE with {vae.latent} latent dimensions on {len(train)} images")
        with shown:
            trained = train_vae(_chosen(images, train), vae, vae_loop, device=device, progress=shown).model
    network, kind = classifier, "classifier"
    if network is None and reads & {"features", "rotation"} and square:
        say(f"training {own.encoder} to predict rotations on {len(train)} images")
        look: dict[str, Any] = {"model": own.encoder, "changes": own.changes, "device": device, "progress": shown}
        with shown:
            built = train_rotation(_chosen(images, train), encoder_loop, **look)
        network, kind, card = built.model, "rotation", rotation_card(built, shape)
    extractor = make_extractor(trained, network, kind, reads=reads)
    parts = [_chosen(images, part) for part in (train, scale, level)]
    size = evaluation_batch(shape, extractor.device)
    with shown:
        shown.begin("features", 1, sum(-(-len(part) // size) for part in parts), 0)
        found = [extract(extractor, part, batch_size=size, progress=shown) for part in parts]
    fused = Fused([make_detector(name, extractor) for name in names], combine=own.combine)
    fused.fit_features(found[0], labels=None if labels is None else labels[train], held_out=found[1])
    threshold = Threshold.from_normal(fused.score_features(found[2]), false_alarm_rate=own.false_alarm_rate)
    fitted = FittedDetector(shape, fused, threshold, trained, network, kind, card, image_hashes(images))
    if place is not None:
        fitted.save(place)
    return fitted


def _opened(
    data: ImageSource,
    own: FitSettings,
    training: VAETrainingSettings,
    shape: tuple[int, int, int] | None,
    note: Callable[[str], None],
) -> Split:
    """What to learn from: the training part, as a run that was trained on the same data cut it."""
    split, terms = own.split, None
    if own.run is not None and isinstance(data, (str, Path)) and (found := terms_of_run(own.run, data)) is not None:
        terms = found.reading()
        if split is None and is_own_data(own.run, data):
            split = "train"
            note(f"{own.run} was trained on {data}: only its training part is learned from")
    how: dict[str, Any] = {name: getattr(training, name) for name in ("root", "confine", "columns", "image_size")}
    return open_unlabelled(data, split=split, shape=shape, terms=terms, fitting=True, note=note, **how)


def _names(scores: str | Sequence[str], classifier: bool) -> list[str]:
    names = check_scores([scores] if isinstance(scores, str) else list(scores))
    return list(FUSED_CLASSIFIER if classifier else FUSED_LABEL_FREE) if names == [FUSED] else names


def _parts(images: Images, held_out: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions to train on, to scale with, and to set the threshold with; no image is in two of them."""
    n = len(images)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(derive(seed, "detect/held-out")))
    kept = round(n * held_out)
    require(
        kept >= 4 and n - kept >= 2,
        f"{n} images with held_out {held_out:g} leave {n - kept} to learn from and {kept} to hold out; "
        "at least 2 and 4 are needed",
    )
    held, train = order[:kept], order[kept:]
    return train.sort().values, held[: kept // 2].sort().values, held[kept // 2 :].sort().values


def _chosen(images: Images, index: Tensor) -> Images:
    return images[index] if isinstance(images, Tensor) else images.subset(index)
