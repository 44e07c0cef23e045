"""What each job of the VAE study does: the report's own runs, and ours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from holdfast.data.anomalies import AnomalySet
from holdfast.data.splits import ArraySplit
from holdfast.detect.describe import probe
from holdfast.detect.detectors import make_detector
from holdfast.detect.evaluation import auroc, evaluate
from holdfast.detect.few_labels import Mistakes, accuracy, train_few_labels
from holdfast.detect.fused import Fused
from holdfast.detect.loop import LoopSettings
from holdfast.detect.monitor import FUSED, rotation_card
from holdfast.detect.pictures import strip
from holdfast.detect.rotation import train_rotation
from holdfast.detect.seen import ClassifierSight, JointSight, RotationSight, Sight, VAESight, look_at
from holdfast.detect.threshold import Threshold
from holdfast.detect.vae import train_vae
from holdfast.files import write_atomic
from holdfast.models import load_model, save_model
from holdfast.models.files import read_tensors
from holdfast.models.vae import VAE, VAESettings, report_settings
from holdfast.rng import derive
from holdfast.settings.methods import FixMatch

REPORT_CUT: Final = 0.3
"""Where the report cut its min-max scaled scores, having looked at the test sets."""
SHOWN: Final = 10
"""Images of a strip of originals and reconstructions."""
DRAWN: Final = ("elbo", "fused", "fused, local", "fused, with labels")
"""Scores of which every value is kept, for histograms and curves."""

Record = dict[str, Any]


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


QUICK: Final = StudySettings(
    seeds=1,
    epochs=5,
    batch_size=20,
    our_epochs=20,
    rotation_epochs=8,
    head_epochs=20,
    label_epochs=20,
    fixmatch_epochs=10,
    fixmatch_ratio=2,
    model="convnet",
    precision="fp32",
)
"""The whole study on the embedded digits in a minute of one core."""


@dataclass(frozen=True, eq=False)
class Bench:
    """What a job works with. folder: where the models that several jobs of a seed share are kept."""

    data: AnomalySet
    seed: int
    settings: StudySettings
    folder: Path

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """(to train on, held out) of the unlabelled images: a tenth, at least 100, is never trained on."""
        split = self.data.unlabeled
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(derive(self.seed, "study/held-out")))
        kept = max(100, len(split) // 10)
        return split.images[order[kept:]], split.images[order[:kept]]

    def loop(self, epochs: int, batch_size: int, lr: float, weight_decay: float = 0.0, **rest: Any) -> LoopSettings:
        return LoopSettings(
            epochs, batch_size, lr, weight_decay, precision=self.settings.precision, seed=self.seed, **rest
        )

    def vae(self) -> VAE:
        """Our VAE of the training images: read where it was kept, else trained and kept."""
        path, s = self.folder / "vae.safetensors", self.settings
        made = VAESettings(self.data.unlabeled.shape, latent=32)
        if path.is_file():
            model = VAE(made)
            model.load_state_dict(read_tensors(path))
            return model.to(s.device).eval()
        loop = self.loop(s.our_epochs, s.batch_size, 1e-3, schedule="cosine")
        model = train_vae(self.parts[0], made, loop, device=s.device).model
        tensors = {n: v.cpu().clone(memory_format=torch.contiguous_format) for n, v in model.state_dict().items()}
        write_atomic(path, save(tensors))
        return model

    def encoder(self, *, changes: bool = False) -> nn.Module:
        """The encoder that learned rotations (and changes) of the training images, kept in the same way."""
        folder, s = self.folder / ("encoder-changes" if changes else "encoder"), self.settings
        if not (folder / "model.json").is_file():
            loop = self.loop(s.rotation_epochs, 128, 2e-3, 1e-4, schedule="cosine")
            built = train_rotation(self.parts[0], loop, model=s.model, changes=changes, device=s.device)
            save_model(folder, built, card=rotation_card(built, self.data.unlabeled.shape))
        return load_model(folder)[0].to(s.device)


def report_job(bench: Bench, *, latent: int, lr: float, heads: bool = False, learned: bool = False) -> Record:
    """The report's network and training; with its fixed σ², or with σ learned and everything else as it was."""
    data, s = bench.data, bench.settings
    shape = data.unlabeled.shape
    vae_settings = VAESettings(shape, "report", latent) if learned else report_settings(shape, latent=latent)
    train, held = bench.parts
    begun = time.perf_counter()
    trained = train_vae(train, vae_settings, bench.loop(s.epochs, s.batch_size, lr), device=s.device)
    seconds = time.perf_counter() - begun
    sight = VAESight(trained.model)
    normal = look_at(sight, held)
    record: Record = {
        "settings": {**vae_settings.to_json(), "lr": lr, "epochs": s.epochs},
        "train_seconds": seconds,
        "history": list(trained.history),
        "held_out": float(make_detector("elbo").score_features(normal).mean()),
        "sigma": trained.model.sigma,
        "scores": {},
        "values": {"elbo": {}},
        "reconstructions": _reconstructions(trained.model, held[:SHOWN]),
    }
    for split, images in _test_sets(data):
        seen, truth = look_at(sight, images), data.anomalous(images)
        for name in ("elbo", "reconstruction", "kl"):
            detector = make_detector(name)
            found, level = detector.score_features(seen), Threshold.from_normal(detector.score_features(normal))
            record["scores"].setdefault(name, {})[split] = _judged(found, truth, images, data, level)
            if name == "elbo":
                record["values"][name][split] = _values(found, truth)
                record.setdefault("report_cut", {})[split] = _report_cut(found, truth)
    record["map"] = _map(trained.model, bench)
    if heads:
        record["heads"] = _heads(trained.model, bench)
    return record


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
    record["reconstructions"] = _reconstructions(vae, bench.parts[1][:SHOWN])
    return record | _scored(JointSight((RotationSight(encoder), VAESight(vae, features=False))), members, bench)


def labelled_job(bench: Bench) -> Record:
    """The same beside a classifier that FixMatch made of the 2,000 labelled images."""
    labelled = bench.data.labeled
    parts = (RotationSight(bench.encoder()), VAESight(bench.vae(), features=False))
    classifier = _few("fixmatch", labelled.images, labelled.labels, bench, unlabeled=bench.parts[0])
    return _scored(JointSight((*parts, ClassifierSight(classifier))), WITH_LABELS, bench)


def few_labels_job(bench: Bench, way: str, *, started: bool = False) -> Record:
    """A classifier from the labelled images and the normal ones of the first test set, judged on the second.

    started: from the encoder that learned rotations and changes, with fewer unlabelled images a step and more steps.
    """
    images, labels, test = _labelled(bench.data)
    model = _few(way, images, labels, bench, unlabeled=bench.data.unlabeled.images, started=started)
    hits, loss = accuracy(model, test, test.labels, device=bench.settings.device)
    name = f"{way} from rotations and changes" if started else way
    return {"labels": len(labels), "accuracy": {name: hits}, "loss": {name: loss}}


def _scored(sight: Sight, members: Mapping[str, tuple[str, ...]], bench: Bench) -> Record:
    """Each choice of scores fitted on the training images, scaled and given its threshold on held-out ones, judged."""
    data, (train, held) = bench.data, bench.parts
    seen, kept = look_at(sight, train), look_at(sight, held)
    scale, level = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    views = [(split, images, look_at(sight, images)) for split, images in _test_sets(data)]
    found: Record = {"scores": {}, "values": {}}
    for name, own in members.items():
        combine = "max" if name.endswith(LARGEST) else "mean"
        detector = Fused([make_detector(member) for member in own], combine=combine)
        detector.fit_features(seen, held_out=scale)
        threshold = Threshold.from_normal(detector.score_features(level))
        for split, images, view in views:
            scores, truth = detector.score_features(view), data.anomalous(images)
            found["scores"].setdefault(name, {})[split] = _judged(scores, truth, images, data, threshold)
            if name in DRAWN:
                found["values"].setdefault(name, {})[split] = _values(scores, truth)
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
        loop=bench.loop(epochs, 64, 2e-3, 1e-4, schedule="cosine"),
        fixmatch=FixMatch(ratio=max(1, s.fixmatch_ratio // 2) if started else s.fixmatch_ratio),
        flip=s.flip,
        device=s.device,
    ).model


def _heads(vae: VAE, bench: Bench) -> Record:
    """The report's classifier on the frozen encoder, with each of its mistakes, and fine-tuned without them."""
    s, (images, labels, test) = bench.settings, _labelled(bench.data)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive(bench.seed, "study/80-20")))
    kept, rest = order[: round(0.8 * len(labels))], order[round(0.8 * len(labels)) :]  # as the report split them
    ways = {
        "frozen, all mistakes": ("frozen", Mistakes(True, True, True)),
        "frozen, no activation in the head": ("frozen", Mistakes(linear_head=True)),
        "frozen, both mistakes": ("frozen", Mistakes(True, True)),
        "frozen, softmax before the loss": ("frozen", Mistakes(softmax_before_loss=True)),
        "frozen, z drawn at random": ("frozen", Mistakes(sampled_z=True)),
        "frozen, no mistakes": ("frozen", Mistakes()),
        "fine-tuned, no mistakes": ("fine-tuned", Mistakes()),
    }
    found: Record = {"accuracy": {}, "loss": {}, "history": {}}
    for name, (way, mistakes) in ways.items():
        made = train_few_labels(
            way,
            images[kept],
            labels[kept],
            num_classes=len(bench.data.classes),
            vae=vae,
            mistakes=mistakes,
            loop=bench.loop(s.head_epochs, s.batch_size, 1e-3),
            validation=(images[rest], labels[rest]),
            device=s.device,
        )
        found["history"][name] = list(made.history)
        found["accuracy"][name], found["loss"][name] = accuracy(
            made.model, test, test.labels, seed=bench.seed, device=s.device
        )
    return found


def _map(vae: VAE, bench: Bench) -> Record:
    """How well the classes lie apart in μ, and in the random z that the report drew instead; the points of two."""
    labelled = bench.data.labeled
    with torch.no_grad():
        x = (labelled.images.float() / 255).to(bench.settings.device)
        parts = [vae.encode(part) for part in torch.split(x, 500)]
    mean, log_var = (torch.cat(p).cpu() for p in zip(*parts, strict=True))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(derive(bench.seed, "study/map")))
    places = {"mean": mean, "drawn": mean + (0.5 * log_var).exp() * noise}
    found: Record = {name: probe(z, labelled.labels, seed=bench.seed) for name, z in places.items()}
    if mean.shape[1] == 2:
        found["points"] = {name: _rounded(z) for name, z in places.items()} | {"labels": labelled.labels.tolist()}
    return found


@torch.no_grad()
def _reconstructions(vae: VAE, images: Tensor) -> list[str]:
    """Originals and what the VAE makes of them, each a strip as base64 PNG."""
    x = (images.float() / 255).to(next(vae.parameters()).device)
    decoded = vae.decode(vae(x)).float().clamp(0, 1).mul(255).round().to(torch.uint8).cpu()
    return [strip(images), strip(decoded)]


def _labelled(data: AnomalySet) -> tuple[Tensor, Tensor, ArraySplit]:
    first, second = (s.subset((~data.anomalous(s)).nonzero().flatten()) for s in data.sets[:2])
    images = torch.cat([data.labeled.images, first.images])
    return images, torch.cat([data.labeled.labels, first.labels]), second


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
            by_kind[kind] = auroc(scores[own | ~truth], truth[own | ~truth])
    return {
        **{k: [e.value, e.low, e.high] for k, e in found.estimates.items()},
        "threshold": threshold.value,
        "confusion": found.confusion,
        "auroc by kind": by_kind,
    }


def _values(scores: Tensor, truth: Tensor) -> dict[str, Any]:
    return {"normal": _rounded(scores[~truth]), "anomalous": _rounded(scores[truth])}


def _rounded(values: Tensor, digits: int = 4) -> Any:
    """Numbers of a tensor as nested lists, short in JSON."""
    return [round(v, digits) for v in values.tolist()] if values.ndim == 1 else [_rounded(row) for row in values]


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
