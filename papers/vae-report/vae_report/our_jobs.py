"""Our runs: a VAE with σ learned beside an encoder that learned rotations, and classifiers from few labels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn

from holdfast.detect.detectors import make_detector
from holdfast.detect.evaluation import Threshold
from holdfast.detect.features import (
    ClassifierExtractor,
    FeatureExtractor,
    JointExtractor,
    RotationExtractor,
    VAEExtractor,
    extract,
)
from holdfast.detect.fitted_detector import Fused
from holdfast.detect.fitting import FUSED_LABEL_FREE as FUSED
from holdfast.methods.fixmatch import FixMatch
from vae_report.bench import Bench
from vae_report.few_labels import accuracy, train_few_labels
from vae_report.judging import DRAWN, SHOWN, Record, judged, reconstructions, test_sets, values

ALONE: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("elbo", "reconstruction", "kl", "rotation", "knn", "mahalanobis")},
    "fused": FUSED,
    "fused reconstruction+knn": ("reconstruction", "knn"),
    "fused with rotation": (*FUSED, "rotation"),
    "fused with rotation, largest": (*FUSED, "rotation"),
}
"""Scores that need no label."""
LARGEST: Final = ", largest"
"""How a choice ends whose score is the largest of its members' instead of their mean."""
LOCAL: Mapping[str, tuple[str, ...]] = {
    "local-reconstruction": ("local-reconstruction",),
    "fused, local": ("local-reconstruction", "knn", "mahalanobis", "rotation"),
    "fused, local, largest": ("local-reconstruction", "knn", "mahalanobis", "rotation"),
}
"""Scores that compare each image's reconstruction with that of similar ones."""
WITH_LABELS: Mapping[str, tuple[str, ...]] = {
    "knn, with labels": ("knn",),
    "energy, with labels": ("energy",),
    "fused, with labels": (*FUSED, "energy"),
    "fused with rotation, with labels": (*FUSED, "rotation", "energy"),
}
"""Scores that also look through a classifier of the labelled images; the test sets have no part in it."""


def our_job(bench: Bench, *, changes: bool = False, members: Mapping[str, tuple[str, ...]] = ALONE) -> Record:
    """A strided VAE with σ learned and an encoder that learned rotations; their scores alone and fused."""
    begun = time.perf_counter()
    vae, encoder = bench.vae(), bench.encoder(changes=changes)
    record: Record = {"train_seconds": time.perf_counter() - begun, "sigma": vae.sigma}
    record["reconstructions"] = reconstructions(vae, bench.parts[1][:SHOWN])
    return record | _scored(
        JointExtractor((RotationExtractor(encoder), VAEExtractor(vae, features=False))), members, bench
    )


def labelled_job(bench: Bench) -> Record:
    """The same beside a classifier that FixMatch made of the 2,000 labelled images."""
    labelled = bench.data.labeled
    parts = (RotationExtractor(bench.encoder()), VAEExtractor(bench.vae(), features=False))
    classifier = _few("fixmatch", labelled.images, labelled.labels, bench, unlabeled=bench.parts[0])
    return _scored(JointExtractor((*parts, ClassifierExtractor(classifier))), WITH_LABELS, bench)


def few_labels_job(bench: Bench, way: str, *, started: bool = False) -> Record:
    """A classifier from the labelled images and the normal ones of the first test set, judged on the second.

    started: from the encoder that learned rotations and changes, with fewer unlabelled images a step and more steps.
    """
    images, labels, test = bench.labelled
    model = _few(way, images, labels, bench, unlabeled=bench.data.unlabeled.images, started=started)
    hits, loss = accuracy(model, test, test.labels, device=bench.settings.device)
    name = f"{way} from rotations and changes" if started else way
    return {"labels": len(labels), "accuracy": {name: hits}, "loss": {name: loss}}


def _scored(extractor: FeatureExtractor, members: Mapping[str, tuple[str, ...]], bench: Bench) -> Record:
    """Each choice of scores fitted on the training images, scaled and given its threshold on held-out ones, judged."""
    data, (train, held) = bench.data, bench.parts
    seen, kept = extract(extractor, train), extract(extractor, held)
    scale, level = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    views = [(split, images, extract(extractor, images)) for split, images in test_sets(data)]
    found: Record = {"scores": {}, "values": {}}
    for name, own in members.items():
        combine = "max" if name.endswith(LARGEST) else "mean"
        detector = Fused([make_detector(member) for member in own], combine=combine)
        detector.fit_features(seen, held_out=scale)
        threshold = Threshold.from_normal(detector.score_features(level))
        for split, images, view in views:
            scores, truth = detector.score_features(view), data.anomalous(images)
            found["scores"].setdefault(name, {})[split] = judged(scores, truth, images, data, threshold)
            if name in DRAWN:
                found["values"].setdefault(name, {})[split] = values(scores, truth)
    return found


def _few(
    way: str, images: Tensor, labels: Tensor, bench: Bench, *, unlabeled: Tensor, started: bool = False
) -> nn.Module:
    s = bench.settings
    epochs = s.fixmatch_epochs * (3 if started else 1) if way == "fixmatch" else s.label_epochs
    encoder = bench.encoder(changes=True) if started else bench.encoder() if way == "rotation" else None
    return train_few_labels(
        way,
        images,
        labels,
        num_classes=len(bench.data.classes),
        encoder=encoder,
        unlabeled=unlabeled,
        model=s.model,
        loop=bench.loop(epochs, 64, 2e-3, 1e-4, schedule="cosine", optimizer="adamw"),
        fixmatch=FixMatch(ratio=max(1, s.fixmatch_ratio // 2) if started else s.fixmatch_ratio),
        flip=s.flip,
        device=s.device,
    ).model
