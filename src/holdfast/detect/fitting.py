"""Learning what is normal: the models a choice of scores needs, the scores themselves, and their threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from holdfast.data.loaders import Images, check_images
from holdfast.detect.detectors import make_detector
from holdfast.detect.features import look_at
from holdfast.detect.fused import NAMES, Fused
from holdfast.detect.monitor import Monitor, make_sight
from holdfast.detect.threshold import Threshold, rank_of
from holdfast.errors import require, unknown
from holdfast.models import ModelCard
from holdfast.models.resolution import resolve
from holdfast.models.vae import VAESettings
from holdfast.rng import derive
from holdfast.train.rotation import rotation_card, train_rotation
from holdfast.train.unlabelled import MinimiseSettings, train_vae

FUSED: Final = ("reconstruction", "knn", "mahalanobis")
"""What ``fused`` joins without labels: damaged pixels show in the first, foreign meaning in the distances."""
FUSED_CLASSIFIER: Final = ("reconstruction", "knn", "energy")
"""What ``fused`` joins around a classifier."""
OF_VAE: Final = frozenset({"reconstruction", "kl", "regret"})


def fit_monitor(
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
) -> Monitor:
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
    needs = {need for member in members for need in member.needs}
    require(0 < held_out < 1, f"held_out must be in (0, 1), got {held_out}")
    require(
        classifier is not None or "logits" not in needs,
        f"{', '.join(names)}: scores of logits need a classifier; give one, or choose other scores",
    )
    require(
        classifier is None or "rotation" not in needs,
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
    if needs & OF_VAE or (classifier is None and "features" in needs and shape[1] != shape[2]):
        settings = vae or VAESettings((shape[0], shape[1], shape[2]))
        say(f"training a {settings.network} VAE with {settings.latent} latent dimensions on {len(train)} images")
        loop = vae_loop or MinimiseSettings(seed=seed)
        trained = train_vae(_chosen(images, train), settings, loop, device=device).model
    network, kind = classifier, "classifier"
    if network is None and needs & {"features", "rotation"} and shape[1] == shape[2]:
        say(f"training {encoder} to predict rotations on {len(train)} images")
        loop = encoder_loop or MinimiseSettings(epochs=10, lr=2e-3, schedule="cosine", seed=seed)
        built = train_rotation(_chosen(images, train), loop, model=encoder, changes=changes, device=device)
        network, kind, card = built.model, "rotation", rotation_card(built, (shape[0], shape[1], shape[2]))
    sight = make_sight(trained, network, kind, needs=needs)
    seen = [look_at(sight, _chosen(images, part)) for part in (train, scale, level)]
    fused = Fused([make_detector(name, sight) for name in names], combine=combine)
    fused.fit_features(seen[0], labels=None if labels is None else labels[train], held_out=seen[1])
    threshold = Threshold.from_normal(fused.score_features(seen[2]), false_alarm_rate=false_alarm_rate)
    return Monitor((shape[0], shape[1], shape[2]), fused, threshold, trained, network, kind, card)


def _names(scores: str | Sequence[str], classifier: bool) -> list[str]:
    names = [scores] if isinstance(scores, str) else list(scores)
    require(bool(names), f"no score named; give one of {', '.join(NAMES)}")
    for name in names:
        if name not in NAMES:
            raise unknown("score", name, NAMES)
    if names == [Fused.name]:
        return list(FUSED_CLASSIFIER if classifier else FUSED)
    require(Fused.name not in names, "fused is a choice of its own; name either it or single scores")
    return names


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
