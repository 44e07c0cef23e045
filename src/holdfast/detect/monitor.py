"""A fitted detector that can be kept: its models, its scores, its threshold, and the images it is for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from holdfast import __version__
from holdfast.data.splits import ArraySplit, Split
from holdfast.detect.changes import CHANGES
from holdfast.detect.detectors import make_detector
from holdfast.detect.fused import NAMES, Fused
from holdfast.detect.loop import LoopSettings
from holdfast.detect.rotation import train_rotation
from holdfast.detect.seen import (
    ClassifierSight,
    Images,
    JointSight,
    RotationSight,
    Seen,
    Sight,
    VAESight,
    batches,
    look_at,
)
from holdfast.detect.threshold import Threshold
from holdfast.detect.vae import train_vae
from holdfast.errors import HoldfastError, require, unknown
from holdfast.files import write_atomic
from holdfast.models import Built, ModelCard, Normalised, load_model, save_model
from holdfast.models.files import read_tensors
from holdfast.models.heads import find_head, width
from holdfast.models.normalise import numbers
from holdfast.models.vae import VAE, VAESettings
from holdfast.rng import derive

CARD: Final = "detector.json"
STATE: Final = "detector.safetensors"
VAE_WEIGHTS: Final = "vae.safetensors"
ENCODER: Final = "encoder"
FORMAT: Final = 1
FUSED: Final = ("reconstruction", "knn", "mahalanobis")
"""What ``fused`` joins without labels: damaged pixels show in the first, foreign meaning in the distances."""
FUSED_CLASSIFIER: Final = ("reconstruction", "knn", "energy")
"""What ``fused`` joins around a classifier."""
OF_VAE: Final = frozenset({"reconstruction", "kl", "regret"})
REGRET_STEPS: Final = 20


@dataclass(frozen=True, eq=False)
class Report:
    """One row an image: score, whether it is above the threshold, and which scores made it so."""

    scores: Tensor
    flags: Tensor
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Monitor:
    """Looks at images of one shape and says how anomalous they are.

    shape: (C, H, W). kind: ``rotation`` or ``classifier``, where there is an encoder. classes: the classifier's.
    """

    shape: tuple[int, int, int]
    detector: Fused
    threshold: Threshold
    vae: VAE | None = None
    encoder: nn.Module | None = None
    kind: str = "rotation"
    card: ModelCard | None = None

    @property
    def sight(self) -> Sight:
        return make_sight(self.vae, self.encoder, self.kind, needs=self.detector.needs)

    def score(self, images: Images) -> Tensor:
        """(N,) scores: z-scores of held-out normal data, so 0 is ordinary."""
        return self.report(images).scores

    def report(self, images: Images, *, batch_size: int = 256, workers: int = 0) -> Report:
        """Score, flag and reason of each image."""
        parts = list(self.stream(images, batch_size=batch_size, workers=workers))
        require(bool(parts), "there is no image to score; give at least one")
        return Report(
            torch.cat([part.scores for part in parts]),
            torch.cat([part.flags for part in parts]),
            tuple(reason for part in parts for reason in part.reasons),
        )

    def stream(self, images: Images, *, batch_size: int = 256, workers: int = 0) -> Iterator[Report]:
        """Reports batch by batch: memory does not grow with the number of images."""
        if not isinstance(images, Tensor):
            self.check(images.shape)
        sight = self.sight
        for x in batches(images, sight.device, batch_size=batch_size, workers=workers):
            self.check(tuple(x.shape[1:]))
            yield self.judge(sight.look(x).to("cpu"))

    def judge(self, seen: Seen) -> Report:
        """What was seen, judged without looking again."""
        z = self.detector.z_scores(seen)
        scores = self.detector.score_features(seen)
        flags = self.threshold.flag(scores)
        names = [member.name for member in self.detector.members]
        return Report(scores, flags, tuple(_reason(row, names, bool(f)) for row, f in zip(z, flags, strict=True)))

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse images that the detector was not made for."""
        own, other = self.shape, shape
        words = {1: "grey", 3: "colour"}
        if len(other) == 3 and own[0] != other[0]:
            raise HoldfastError(
                f"this detector is for {words.get(own[0], own[0])} images, and these are "
                f"{words.get(other[0], other[0])}; convert them, or fit a detector on such images"
            )
        require(
            own == tuple(other),
            f"this detector is for images of {own[1]}x{own[2]} pixels, and these have "
            f"{'x'.join(map(str, other[1:]))}; bring them to that size (--image-size {own[1]})",
        )

    def save(self, folder: str | Path) -> None:
        """Write the folder; the card comes last, so that a folder with a card is whole."""
        folder = Path(folder)
        require(
            self.encoder is None or self.card is not None, "only encoders from build_model can be saved with a detector"
        )
        state = {name: value.contiguous().clone() for name, value in self.detector.all_state().items()}
        write_atomic(folder / STATE, save(state))
        if self.vae is not None:
            weights = {n: v.detach().cpu().clone(memory_format=torch.contiguous_format)
                       for n, v in self.vae.state_dict().items()}  # fmt: skip
            write_atomic(folder / VAE_WEIGHTS, save(weights))
        if self.encoder is not None:
            assert self.card is not None
            save_model(folder / ENCODER, self.encoder, card=self.card)
        content = {
            "format": FORMAT,
            "holdfast": __version__,
            "shape": list(self.shape),
            "detector": self.detector.settings,
            "threshold": self.threshold.to_json(),
            "vae": None if self.vae is None else self.vae.settings.to_json(),
            "encoder": None if self.encoder is None else self.kind,
        }
        write_atomic(folder / CARD, (json.dumps(content, indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: str | Path, *, device: str | torch.device = "cpu") -> Monitor:
        """A detector from its folder."""
        folder = Path(folder)
        require((folder / CARD).is_file(), f"no detector in {folder}: {CARD} is missing; fit one first")
        try:
            content = json.loads((folder / CARD).read_bytes())
            require(
                content.get("format") == FORMAT,
                f"{folder / CARD} has format {content.get('format')}; this version reads {FORMAT}",
            )
            channels, height, width = content["shape"]
            detector = Fused.from_settings(content["detector"]).load_state(read_tensors(folder / STATE))
            vae = None
            if content["vae"] is not None:
                vae = VAE(VAESettings.from_json(content["vae"]))
                vae.load_state_dict(read_tensors(folder / VAE_WEIGHTS))
                vae = vae.to(device).eval()
            threshold = Threshold.from_json(content["threshold"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise HoldfastError(f"cannot read the detector in {folder}: {error}; fit it again") from error
        encoder, card = load_model(folder / ENCODER) if content["encoder"] else (None, None)
        return cls(
            (channels, height, width),
            detector,
            threshold,
            vae,
            None if encoder is None else encoder.to(device),
            content["encoder"] or "rotation",
            card,
        )


def make_sight(vae: VAE | None, encoder: nn.Module | None, kind: str, *, needs: Collection[str]) -> Sight:
    """What the given models see together. Beside an encoder's features, a VAE gives its terms only.

    needs: fields of :class:`Seen` that will be asked for; turning images and fitting codes cost several passes.
    """
    parts: list[Sight] = []
    if encoder is not None:
        turned = kind == "rotation" and "rotation" in needs
        parts.append(RotationSight(encoder) if turned else ClassifierSight(encoder))
    if vae is not None:
        parts.append(VAESight(vae, features=encoder is None, regret=REGRET_STEPS if "regret" in needs else 0))
    require(bool(parts), "a detector needs a VAE or an encoder to look with")
    return parts[0] if len(parts) == 1 else JointSight(tuple(parts))


def fit_monitor(
    images: Images,
    *,
    scores: str | Sequence[str] = "fused",
    labels: Tensor | None = None,
    classifier: nn.Module | None = None,
    card: ModelCard | None = None,
    vae: VAESettings | None = None,
    vae_loop: LoopSettings | None = None,
    encoder: str = "convnet",
    encoder_loop: LoopSettings | None = None,
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
    changes: it also learns to tell changes (:mod:`holdfast.detect.changes`).
    held_out: share of the images that nothing is trained on: one half of it gives centre and scale of each score, the
    other the threshold. false_alarm_rate: share of normal images that may be flagged.
    """
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
    shape = tuple(images.shape[-3:])
    say = note or (lambda text: None)
    trained = None
    if needs & OF_VAE or (classifier is None and "features" in needs and shape[1] != shape[2]):
        settings = vae or VAESettings((shape[0], shape[1], shape[2]))
        say(f"training a {settings.network} VAE with {settings.latent} latent dimensions on {len(train)} images")
        loop = vae_loop or LoopSettings(seed=seed)
        trained = train_vae(_chosen(images, train), settings, loop, device=device).model
    network, kind = classifier, "classifier"
    if network is None and needs & {"features", "rotation"} and shape[1] == shape[2]:
        say(f"training {encoder} to predict rotations on {len(train)} images")
        loop = encoder_loop or LoopSettings(epochs=10, lr=2e-3, schedule="cosine", seed=seed)
        built = train_rotation(_chosen(images, train), loop, model=encoder, changes=changes, device=device)
        network, kind, card = built.model, "rotation", rotation_card(built, (shape[0], shape[1], shape[2]))
    sight = make_sight(trained, network, kind, needs=needs)
    seen = [look_at(sight, _chosen(images, part)) for part in (train, scale, level)]
    fused = Fused([make_detector(name, sight) for name in names], combine=combine)
    fused.fit_features(seen[0], labels=None if labels is None else labels[train], held_out=seen[1])
    threshold = Threshold.from_normal(fused.score_features(seen[2]), false_alarm_rate=false_alarm_rate)
    return Monitor((shape[0], shape[1], shape[2]), fused, threshold, trained, network, kind, card)


def rotation_card(built: Built, shape: tuple[int, int, int]) -> ModelCard:
    model: Normalised = built.model
    turns = ("0°", "90°", "180°", "270°")
    names = (*turns, *CHANGES)[: width(find_head(model)[1])]
    return ModelCard(
        name=built.name,
        num_classes=len(names),
        classes=names,
        in_channels=shape[0],
        image_size=(shape[1], shape[2]),
        mean=numbers(model.mean),
        std=numbers(model.std),
    )


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


def _reason(z: Tensor, names: Sequence[str], flagged: bool) -> str:
    """Which scores stand out, the worst first."""
    order = z.argsort(descending=True).tolist()
    shown = [f"{names[i]} {float(z[i]):+.1f} sd" for i in order if z[i] > 2] if flagged else []
    if flagged and not shown:
        shown = [f"{names[order[0]]} {float(z[order[0]]):+.1f} sd"]
    return "; ".join(shown)


def as_split(images: Tensor) -> Split:
    """Bare uint8 images as a split without labels."""
    none = torch.full((len(images),), -1)
    return ArraySplit(images, none, none)


__all__: Sequence[Any] = ["Monitor", "Report", "as_split", "fit_monitor", "make_sight"]
