"""The VAE report as a study: its own runs with its mistakes on and off, and ours beside them.

Every job is one JSON file; a job whose file is there is not run again, so a study can be stopped and continued.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data.anomalies import AnomalySet
from holdfast.data.splits import ArraySplit
from holdfast.detect.describe import probe
from holdfast.detect.detectors import make_detector
from holdfast.detect.evaluation import Estimate, evaluate
from holdfast.detect.few_labels import FixMatch, Mistakes, accuracy, train_few_labels
from holdfast.detect.fused import Fused
from holdfast.detect.loop import LoopSettings
from holdfast.detect.monitor import FUSED
from holdfast.detect.rotation import train_rotation
from holdfast.detect.seen import ClassifierSight, JointSight, RotationSight, Sight, VAESight, look_at
from holdfast.detect.threshold import Threshold
from holdfast.detect.vae import train_vae
from holdfast.errors import HoldfastError
from holdfast.files import write_atomic
from holdfast.models.vae import VAE, VAESettings, report_settings
from holdfast.rng import derive

REPORT_CUT = 0.3
"""Where the report cut its min-max scaled scores, having looked at the test sets."""
LATENTS = (16, 2, 32)
RATES = (1e-2, 1e-4, 1e-5)


@dataclass(frozen=True)
class StudySettings:
    """Sizes of a study; the defaults are the report's and, beyond it, ours.

    epochs, batch_size: of the report's VAE. our_epochs: of our VAE. rotation_epochs, label_epochs, fixmatch_epochs:
    of the encoder, the supervised classifiers and FixMatch. model: network of encoder and classifiers. first_seed:
    where seeds begin; not at 0, because what ``fused`` joins was chosen with sight of the sets of seeds 0 and 1.
    """

    seeds: int = 3
    first_seed: int = 10
    epochs: int = 100
    batch_size: int = 100
    our_epochs: int = 100
    rotation_epochs: int = 10
    head_epochs: int = 100
    label_epochs: int = 60
    fixmatch_epochs: int = 30
    fixmatch_ratio: int = 7
    model: str = "cifar-resnet18"
    precision: str = "bf16"
    device: str = "cpu"
    flip: bool = False


Record = dict[str, Any]
Make = Callable[[int], AnomalySet]
Job = Callable[[AnomalySet, int], Record]


def jobs(settings: StudySettings) -> Iterator[tuple[str, Job]]:
    """Name and function of each job of a seed; what the report's conclusions rest on comes first."""

    def report(**changes: Any) -> Job:
        return lambda data, seed: report_job(data, seed, settings, **{"latent": 16, "lr": 1e-3, **changes})

    yield "report-latent16-lr0.001", report(heads=True)
    yield "ours", lambda data, seed: our_job(data, seed, settings)
    yield "report-learned-sigma", report(learned=True)
    for latent in LATENTS[1:]:
        yield f"report-latent{latent}-lr0.001", report(latent=latent)
    for rate in RATES:
        yield f"report-latent16-lr{rate:g}", report(lr=rate)


def run_study(
    make: Make,
    out: str | Path,
    settings: StudySettings | None = None,
    *,
    minutes: float | None = None,
    note: Callable[[str], None] | None = None,
) -> list[Record]:
    """Run every job that has no result yet, seed by seed, and return all results there are.

    make: the data of a seed. minutes: no job is started after so long; run again to continue.
    """
    settings, out, say = settings or StudySettings(), Path(out), note or (lambda text: None)
    started = time.perf_counter()
    for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
        data: AnomalySet | None = None
        for name, job in jobs(settings):
            path = out / f"{name}-seed{seed}.json"
            if path.exists():
                continue
            if minutes is not None and time.perf_counter() - started > 60 * minutes:
                say("out of time: run the same command again to continue")
                return read_study(out)
            data = data or make(seed)
            begun = time.perf_counter()
            try:
                record = job(data, seed)
            except HoldfastError as error:  # a rate that diverges is a result too
                record = {"error": str(error)}
            record = {"job": name, "seed": seed, "seconds": time.perf_counter() - begun, **record}
            write_atomic(path, (json.dumps(record) + "\n").encode())
            say(f"{name} seed {seed}: {record['seconds']:.1f} s {headline(record)}")
    return read_study(out)


def read_study(folder: str | Path) -> list[Record]:
    """All results of a folder."""
    return [json.loads(path.read_bytes()) for path in sorted(Path(folder).glob("*-seed*.json"))]


def report_job(
    data: AnomalySet,
    seed: int,
    s: StudySettings,
    *,
    latent: int,
    lr: float,
    heads: bool = False,
    learned: bool = False,
) -> Record:
    """The report's network and training; with its fixed σ², or with σ learned and everything else as it was."""
    shape = data.unlabeled.shape
    vae_settings = VAESettings(shape, "report", latent) if learned else report_settings(shape, latent=latent)
    loop = LoopSettings(s.epochs, s.batch_size, lr, precision=s.precision, seed=seed)
    begun = time.perf_counter()
    train, held = _held_out(data.unlabeled, seed)
    trained = train_vae(train, vae_settings, loop, device=s.device)
    seconds = time.perf_counter() - begun
    sight = VAESight(trained.model)
    normal = look_at(sight, held)
    scores = {name: make_detector(name) for name in ("elbo", "reconstruction", "kl")}
    record: Record = {
        "settings": {**vae_settings.to_json(), "lr": lr, "epochs": s.epochs},
        "train_seconds": seconds,
        "history": list(trained.history),
        "sigma": trained.model.sigma,
        "scores": {},
    }
    for split, images in _test_sets(data):
        seen, truth = look_at(sight, images), data.anomalous(images)
        for name, detector in scores.items():
            found, level = detector.score_features(seen), Threshold.from_normal(detector.score_features(normal))
            record["scores"].setdefault(name, {})[split] = _judged(found, truth, images, data, level)
        record.setdefault("report_cut", {})[split] = _report_cut(scores["elbo"].score_features(seen), truth)
    record["map"] = _map(trained.model, data, seed, s.device)
    if heads:
        record["heads"] = _heads(trained.model, data, seed, s)
    return record


ALONE: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("elbo", "reconstruction", "kl", "rotation", "knn", "mahalanobis")},
    "fused": FUSED,
    "fused reconstruction+knn": ("reconstruction", "knn"),
    "fused with rotation": (*FUSED, "rotation"),
}
"""Scores that need no label."""
WITH_LABELS: Mapping[str, tuple[str, ...]] = {
    "knn, with labels": ("knn",),
    "energy, with labels": ("energy",),
    "fused, with labels": (*FUSED, "energy"),
    "fused with rotation, with labels": (*FUSED, "rotation", "energy"),
}
"""Scores that also look through a classifier of the labelled images; the test sets have no part in it."""


def our_job(data: AnomalySet, seed: int, s: StudySettings) -> Record:
    """A strided VAE with σ learned, an encoder that learned rotations, a classifier; their scores alone and fused."""
    train, held = _held_out(data.unlabeled, seed)
    begun = time.perf_counter()
    vae_loop = LoopSettings(s.our_epochs, s.batch_size, 1e-3, schedule="cosine", precision=s.precision, seed=seed)
    trained = train_vae(train, VAESettings(data.unlabeled.shape, latent=32), vae_loop, device=s.device)
    record: Record = {"train_seconds": time.perf_counter() - begun, "history": list(trained.history)}
    loop = LoopSettings(s.rotation_epochs, 128, 2e-3, 1e-4, schedule="cosine", precision=s.precision, seed=seed)
    encoder = train_rotation(train, loop, model=s.model, device=s.device).model
    record |= {"sigma": trained.model.sigma, **_labels(encoder, data, seed, s)}
    parts: tuple[Sight, ...] = (RotationSight(encoder), VAESight(trained.model, features=False))
    record["scores"] = _scored(JointSight(parts), ALONE, data, train, held)
    labelled = data.labeled
    classifier = _few("fixmatch", labelled.images, labelled.labels, data, seed, s, encoder, unlabeled=train)
    both = JointSight((*parts, ClassifierSight(classifier)))
    record["scores"] |= _scored(both, WITH_LABELS, data, train, held)
    return record


def _scored(
    sight: Sight, members: Mapping[str, tuple[str, ...]], data: AnomalySet, train: Tensor, held: Tensor
) -> Record:
    """Each choice of scores fitted on the training images, scaled and given its threshold on held-out ones, judged."""
    seen, kept = look_at(sight, train), look_at(sight, held)
    scale, level = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    views = [(split, images, look_at(sight, images)) for split, images in _test_sets(data)]
    found: Record = {}
    for name, own in members.items():
        detector = Fused([make_detector(member) for member in own]).fit_features(seen, held_out=scale)
        threshold = Threshold.from_normal(detector.score_features(level))
        for split, images, view in views:
            judged = _judged(detector.score_features(view), data.anomalous(images), images, data, threshold)
            found.setdefault(name, {})[split] = judged
    return found


def _few(
    way: str,
    images: Tensor,
    labels: Tensor,
    data: AnomalySet,
    seed: int,
    s: StudySettings,
    encoder: nn.Module,
    unlabeled: Tensor,
) -> nn.Module:
    epochs = s.fixmatch_epochs if way == "fixmatch" else s.label_epochs
    return train_few_labels(
        way,
        images,
        labels,
        num_classes=len(data.classes),
        encoder=encoder,
        unlabeled=unlabeled,
        model=s.model,
        loop=LoopSettings(epochs, 64, 2e-3, 1e-4, schedule="cosine", precision=s.precision, seed=seed),
        fixmatch=FixMatch(ratio=s.fixmatch_ratio),
        flip=s.flip,
        device=s.device,
    ).model


def _labels(encoder: nn.Module, data: AnomalySet, seed: int, s: StudySettings) -> Record:
    """Classifiers from the labelled images and the normal ones of the first test set, judged on the second."""
    images, labels, test = _labelled(data)
    record: Record = {"labels": len(labels), "accuracy": {}, "loss": {}}
    for way in ("supervised", "rotation", "fixmatch"):
        model = _few(way, images, labels, data, seed, s, encoder, unlabeled=data.unlabeled.images)
        record["accuracy"][way], record["loss"][way] = accuracy(model, test, test.labels, device=s.device)
    return record


def _heads(vae: VAE, data: AnomalySet, seed: int, s: StudySettings) -> Record:
    """The report's classifier on the frozen encoder, with each of its mistakes, and fine-tuned without them."""
    images, labels, test = _labelled(data)
    kept = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive(seed, "study/80-20")))
    kept = kept[: round(0.8 * len(labels))]  # the report validates on the rest
    loop = LoopSettings(s.head_epochs, s.batch_size, 1e-3, precision=s.precision, seed=seed)
    ways = {
        "frozen, both mistakes": ("frozen", Mistakes(True, True)),
        "frozen, softmax before the loss": ("frozen", Mistakes(softmax_before_loss=True)),
        "frozen, z drawn at random": ("frozen", Mistakes(sampled_z=True)),
        "frozen, no mistakes": ("frozen", Mistakes()),
        "fine-tuned, no mistakes": ("fine-tuned", Mistakes()),
    }
    found: Record = {"accuracy": {}, "loss": {}}
    for name, (way, mistakes) in ways.items():
        model = train_few_labels(
            way, images[kept], labels[kept], num_classes=len(data.classes), vae=vae, mistakes=mistakes, loop=loop,
            device=s.device,
        ).model  # fmt: skip
        found["accuracy"][name], found["loss"][name] = accuracy(model, test, test.labels, seed=seed, device=s.device)
    return found


def _map(vae: VAE, data: AnomalySet, seed: int, device: str) -> Record:
    """How well the classes lie apart in μ, and in the random z that the report drew instead."""
    with torch.no_grad():
        x = (data.labeled.images.float() / 255).to(device)
        parts = [vae.encode(part) for part in torch.split(x, 500)]
    mean, log_var = (torch.cat(p).cpu() for p in zip(*parts, strict=True))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(derive(seed, "study/map")))
    drawn = mean + (0.5 * log_var).exp() * noise
    return {name: probe(z, data.labeled.labels, seed=seed) for name, z in (("mean", mean), ("drawn", drawn))}


def _labelled(data: AnomalySet) -> tuple[Tensor, Tensor, ArraySplit]:
    first, second = (s.subset((~data.anomalous(s)).nonzero().flatten()) for s in data.sets[:2])
    images = torch.cat([data.labeled.images, first.images])
    return images, torch.cat([data.labeled.labels, first.labels]), second


def _held_out(split: ArraySplit, seed: int) -> tuple[Tensor, Tensor]:
    """A tenth of the unlabelled images (at least 100) is never trained on."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(derive(seed, "study/held-out")))
    kept = max(100, len(split) // 10)
    return split.images[order[kept:]], split.images[order[:kept]]


def _test_sets(data: AnomalySet) -> Iterator[tuple[str, ArraySplit]]:
    for i, split in enumerate(data.sets):
        yield f"set {i + 1}", split
    yield "pooled", data.pooled()


def _judged(scores: Tensor, truth: Tensor, split: ArraySplit, data: AnomalySet, threshold: Threshold) -> Record:
    found = evaluate(scores, truth, threshold=threshold)
    by_kind = {}
    for number, kind in enumerate(data.kinds):
        own = split.groups == number
        if own.any():
            by_kind[kind] = evaluate(scores[own | ~truth], truth[own | ~truth], resamples=0).ranking["auroc"].value
    return {
        **{k: _plain(e) for k, e in found.estimates.items()},
        "confusion": found.confusion,
        "auroc by kind": by_kind,
    }


def _plain(estimate: Estimate) -> list[float | None]:
    return [estimate.value, estimate.low, estimate.high]


def _report_cut(scores: Tensor, truth: Tensor) -> Record:
    """The report's decision: scores scaled to [0, 1] over the test set itself, cut at 0.3."""
    scaled = (scores - scores.min()) / (scores.max() - scores.min())
    flags = scaled > REPORT_CUT
    return {
        "anomalies found": int((flags & truth).sum()),
        "anomalies": int(truth.sum()),
        "normal passed": int((~flags & ~truth).sum()),
        "normal": int((~truth).sum()),
    }


def headline(record: Record) -> str:
    """The figure that matters of a job, for a log."""
    if "error" in record:
        return str(record["error"])
    parts = []
    for name in ("elbo", "fused", "fused, with labels"):
        if name in record.get("scores", {}):
            pooled = record["scores"][name]["pooled"]
            parts.append(f"{name} AUROC {pooled['auroc'][0]:.3f} AP {pooled['ap'][0]:.3f}")
    for source in (record, record.get("heads", {})):
        parts += [f"{way} {value:.3f}" for way, value in source.get("accuracy", {}).items()]
    return ", ".join(parts)
