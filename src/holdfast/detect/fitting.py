"""Fit a detector on normal images: train the models that the scores need, fit the scores, set the threshold.

``fit`` is what ``holdfast detect fit`` calls; ``fit_detector`` takes the parts as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Images, check_images
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.detect.detectors import FUSED, check_scores, make_detector
from holdfast.detect.features import extract
from holdfast.detect.fitted_detector import CARD, DETECTOR_FOLDER, FittedDetector, make_extractor
from holdfast.detect.fused import Fused
from holdfast.detect.output_places import ImageSource, shape_for
from holdfast.detect.threshold import Threshold, rank_of
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.files import writable_folder
from holdfast.models import ModelCard, load_model
from holdfast.models.resolution import resolve
from holdfast.models.vae import VAESettings
from holdfast.rng import derive
from holdfast.train.rotation import rotation_card, train_rotation
from holdfast.train.unlabelled import MinimiseSettings, train_vae

FUSED_LABEL_FREE: Final = ("reconstruction", "knn", "mahalanobis")
"""What ``fused`` joins without labels: damaged pixels show in the first, images of other classes in the distances."""
FUSED_CLASSIFIER: Final = ("reconstruction", "knn", "energy")
"""What ``fused`` joins around a classifier."""
VAE_TERMS: Final = frozenset({"reconstruction", "kl", "regret"})


def fit(
    data: Tensor | ImageSource,
    *,
    out: str | Path | None = None,
    scores: str | Sequence[str] = FUSED,
    run: str | Path | None = None,
    root: str | Path | None = None,
    image_size: int | None = None,
    network: str = "strided",
    latent: int = 16,
    beta: float = 1.0,
    sigma: float | None = None,
    encoder: str = "convnet",
    changes: bool = False,
    epochs: int = 20,
    encoder_epochs: int = 10,
    batch_size: int = 128,
    lr: float = 1e-3,
    combine: str = "mean",
    held_out: float = 0.2,
    false_alarm_rate: float = 0.05,
    seed: int = 0,
    device: str = "auto",
    precision: str = "fp32",
    note: Callable[[str], None] | None = None,
) -> FittedDetector:
    """Learn what is normal from ``data``, every image of which is.

    data: a name, path, split or data set, or images (N, C, H, W). out: the folder to write the detector to. run: a
    trained run whose classifier is to be watched; its features are scored then, and the detector is written into the
    run unless ``out`` says otherwise, where ``predict`` finds it. scores: ``fused``, or names of detectors.
    Everything else is as in ``holdfast detect fit --help``.
    """
    place = None
    if out is not None or run is not None:
        place = writable_folder(Path(run or "") / DETECTOR_FOLDER if out is None else out)
        require(not (place / CARD).exists(), f"{place} holds a detector already; choose another place")
    where = resolve_device(device)
    classifier, card = (None, None) if run is None else load_model(run)
    images: Images = data if isinstance(data, Tensor) else open_unlabelled(
        data, root=root, shape=shape_for(card), image_size=image_size
    )  # fmt: skip
    channels, height, width = images.shape[-3:]
    fitted = fit_detector(
        images,
        scores=scores,
        classifier=None if classifier is None else classifier.to(where),
        card=card,
        vae=VAESettings((channels, height, width), network, latent, sigma, beta),
        vae_loop=MinimiseSettings(epochs, batch_size, lr, precision=precision, seed=seed),
        encoder=encoder,
        encoder_loop=MinimiseSettings(
            encoder_epochs, batch_size, 2 * lr, schedule="cosine", precision=precision, seed=seed
        ),
        changes=changes,
        combine=combine,
        held_out=held_out,
        false_alarm_rate=false_alarm_rate,
        seed=seed,
        device=where,
        note=note,
    )
    if place is not None:
        fitted.save(place)
    return fitted


def fit_detector(
    images: Images,
    *,
    scores: str | Sequence[str] = "fused",
    labels: Tensor | None = None,
    classifier: nn.Module | None = None,
    card: ModelCard | None = None,
    vae: VAESettings | None = None,
    vae_loop: MinimiseSettings | None = None,
    encoder: str = "convnet",
    encoder_loop: MinimiseSettings | None = None,
    changes: bool = False,
    combine: str = "mean",
    held_out: float = 0.2,
    false_alarm_rate: float = 0.05,
    seed: int = 0,
    device: str | torch.device = "cpu",
    note: Callable[[str], None] | None = None,
) -> FittedDetector:
    """Learn what is normal from images that all are.

    scores: one name, several, or ``fused`` for the default choice. labels: (N,) classes, for scores that can use them;
    a split brings its own. classifier: a trained model whose features and logits are scored, with its card where the
    detector shall be saved; without one, an encoder learns to predict rotations of these images, if a score needs it.
    changes: it also learns to tell changes (:mod:`holdfast.train.rotation`).
    held_out: share of the images that nothing is trained on: one half of it gives centre and scale of each score, the
    other the threshold. false_alarm_rate: share of normal images that may be flagged.
    """
    check_images(images)
    names = _names(scores, classifier is not None)
    members = [make_detector(name) for name in names]
    reads = {field for member in members for field in member.reads}
    require(0 < held_out < 1, f"held_out must be in (0, 1), got {held_out}")
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
    train, scale, level = _parts(images, held_out, seed)
    rank_of(false_alarm_rate, len(level))  # what cannot be is said before anything is trained
    if classifier is None:
        resolve(encoder)
    shape = tuple(images.shape[-3:])
    say = note or (lambda text: None)
    trained = None
    if reads & VAE_TERMS or (classifier is None and "features" in reads and shape[1] != shape[2]):
        settings = vae or VAESettings((shape[0], shape[1], shape[2]))
        say(f"training a {settings.network} VAE with {settings.latent} latent dimensions on {len(train)} images")
        loop = vae_loop or MinimiseSettings(seed=seed)
        trained = train_vae(_chosen(images, train), settings, loop, device=device).model
    network, kind = classifier, "classifier"
    if network is None and reads & {"features", "rotation"} and shape[1] == shape[2]:
        say(f"training {encoder} to predict rotations on {len(train)} images")
        loop = encoder_loop or MinimiseSettings(epochs=10, lr=2e-3, schedule="cosine", seed=seed)
        built = train_rotation(_chosen(images, train), loop, model=encoder, changes=changes, device=device)
        network, kind, card = built.model, "rotation", rotation_card(built, (shape[0], shape[1], shape[2]))
    extractor = make_extractor(trained, network, kind, reads=reads)
    found = [extract(extractor, _chosen(images, part)) for part in (train, scale, level)]
    fused = Fused([make_detector(name, extractor) for name in names], combine=combine)
    fused.fit_features(found[0], labels=None if labels is None else labels[train], held_out=found[1])
    threshold = Threshold.from_normal(fused.score_features(found[2]), false_alarm_rate=false_alarm_rate)
    return FittedDetector((shape[0], shape[1], shape[2]), fused, threshold, trained, network, kind, card)


def _names(scores: str | Sequence[str], classifier: bool) -> list[str]:
    names = [scores] if isinstance(scores, str) else list(scores)
    check_scores(names)
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
