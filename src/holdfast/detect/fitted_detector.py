"""A fitted detector: its scores joined as one, its threshold, its models and its images; saved and loaded again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from holdfast import __version__
from holdfast.data.images import Unreadable
from holdfast.data.loaders import Images, check_images, float_batches
from holdfast.data.unlabelled_images import ImageSource, open_unlabelled
from holdfast.detect.detectors import FUSED, Detector, make_detector
from holdfast.detect.evaluation import Threshold
from holdfast.detect.features import FeatureExtractor, Features, make_extractor
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, require
from holdfast.files import filling, write_atomic
from holdfast.models import ModelCard, load_model, save_model
from holdfast.models.vae import VAE, VAESettings
from holdfast.models.weights import pack_tensors, read_tensors

CARD: Final = "detector.json"
STATE: Final = "detector.safetensors"
VAE_WEIGHTS: Final = "vae.safetensors"
ENCODER: Final = "encoder"
DETECTOR_FOLDER: Final = "detector"
FORMAT: Final = 1
KINDS: Final = ("rotation", "classifier")

SEEN: Final = "seen"
"""What the hashes of the images that a detector was fitted on are called among its tensors."""


COMBINE = ("mean", "max")

LOWEST: Final = -2.0
"""What a z-score is raised to, if lower, before it is averaged with others. About 2 % of normal data lies below where
scores are Gaussian, less where they are skewed to the right, as distances are; so the scores of normal data hardly
change."""


class Fused(Detector):
    """The mean (or the largest) of its members' z-scores, each limited from below before several are averaged.

    Corrupted pixels and images of other classes show in different scores; a z-score makes their units the same.
    Members learn from one part of the normal data, centre and scale come from the other: a distance to data that one
    was fitted on is too small to be typical. The limit, :data:`LOWEST`, is there because being unusually normal by one
    score is no evidence against what another one sees: a classifier may be very sure of noise.

    >>> import torch
    >>> from holdfast.detect import KNN, Mahalanobis
    >>> normal = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> detector = Fused([KNN(normalise=False), Mahalanobis()]).fit_features(normal)
    >>> bool(detector.score_features(5 + normal).min() > detector.score_features(normal).max())
    True
    """

    name = FUSED

    def __init__(
        self, members: Sequence[Detector], extractor: FeatureExtractor | None = None, *, combine: str = "mean"
    ) -> None:
        super().__init__(extractor)
        require(len(members) >= 1, "fused needs at least one member")
        names = [member.name for member in members]
        require(len(set(names)) == len(names), f"fused has a member twice: {', '.join(names)}")
        require(combine in COMBINE, f"combine must be one of {', '.join(COMBINE)}, got {combine!r}")
        self.members, self.combine = tuple(members), combine
        self.reads = tuple(dict.fromkeys(field for member in members for field in member.reads))

    @property
    def settings(self) -> dict[str, Any]:
        members = {m.name: m.settings for m in self.members}
        return {"combine": self.combine, "lowest": self.lowest, "members": members}

    @property
    def lowest(self) -> float | None:
        """The lowest z-score that a member can have in the mean; None where nothing is averaged."""
        return LOWEST if self.combine == "mean" and len(self.members) > 1 else None

    def fit(self, images: Images, *, labels: Tensor | None = None, held_out: Images | None = None) -> Self:
        kept = None if held_out is None else self._extract(held_out)
        return self.fit_features(self._extract(images), labels=labels, held_out=kept)

    def fit_features(
        self, features: Features | Tensor, *, labels: Tensor | None = None, held_out: Features | None = None
    ) -> Self:
        """Learn from normal data. held_out: normal data for centre and scale; by default every fifth sample."""
        features = self._checked(features)
        if labels is not None:
            features = features.beside(Features(labels=labels))
        if held_out is None:
            n = len(features)
            require(n >= 10, f"fused needs at least 10 normal samples to hold some out, got {n}")
            kept = torch.arange(n) % 5 == 4
            features, held_out = features[~kept], features[kept]
        require(len(held_out) >= 2, f"fused needs at least 2 held-out normal samples, got {len(held_out)}")
        for member in self.members:
            member.fit_features(features)
        values = self.member_scores(held_out).double()
        centre, scale = values.mean(0), values.std(0)
        for member, deviation in zip(self.members, scale.tolist(), strict=True):
            require(
                deviation > 0,
                f"{member.name} gives every held-out normal sample the same score, so it has no scale; leave it out "
                "(constant images?)",
            )
        self.state = {"centre": centre, "scale": scale}
        return self

    def member_scores(self, features: Features) -> Tensor:
        return torch.stack([member.score_features(features) for member in self.members], 1)

    def z_scores(self, features: Features) -> Tensor:
        """(N, M) how many standard deviations each score lies above what is normal."""
        require(bool(self.state), "fused has not been fitted; call fit first")
        return (self.member_scores(features).double() - self.state["centre"]) / self.state["scale"]

    def compute(self, features: Features) -> Tensor:
        z = self.z_scores(features)
        if self.lowest is not None:
            z = z.clamp(min=self.lowest)
        return z.mean(1) if self.combine == "mean" else z.amax(1)

    def all_state(self) -> dict[str, Tensor]:
        """Everything that fitting made, members included, under names of their own."""
        return {f"{d.name}/{name}": value for d in (self, *self.members) for name, value in d.state.items()}

    @classmethod
    def restored(cls, settings: dict[str, Any], state: dict[str, Tensor]) -> Fused:
        """From ``settings`` and :meth:`all_state`."""
        members = [make_detector(name, **own) for name, own in settings["members"].items()]
        made = cls(members, combine=settings["combine"])
        require(
            settings.get("lowest") == made.lowest,
            "an earlier version averaged its z-scores with another lower limit, or none, so its threshold does not "
            "fit; delete it and fit it again",
        )
        for detector in (made, *members):
            head = f"{detector.name}/"
            detector.state = {n.removeprefix(head): t for n, t in state.items() if n.startswith(head)}
        return made


@dataclass(frozen=True, eq=False, repr=False)
class ScoreReport:
    """One row per image: its score, whether it is above the threshold, and which scores made it so.

    z_scores: (N, M) each member's, in the detector's order. unreadable: files that have no row here, where
    skip_unreadable was given.
    """

    scores: Tensor
    flags: Tensor
    reasons: tuple[str, ...]
    z_scores: Tensor
    unreadable: tuple[Unreadable, ...] = ()

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        lost = f", {len(self.unreadable):,} unreadable" if self.unreadable else ""
        return f"<ScoreReport of {len(self):,} images: {self.flagged:,} flagged{lost}>"

    @property
    def flagged(self) -> int:
        return int(self.flags.sum())

    @classmethod
    def cat(cls, parts: Sequence[ScoreReport]) -> ScoreReport:
        scores, flags, z = (torch.cat([getattr(p, n) for p in parts]) for n in ("scores", "flags", "z_scores"))
        return cls(scores, flags, tuple(reason for part in parts for reason in part.reasons), z)


@dataclass(frozen=True, eq=False, repr=False)
class FittedDetector:
    """A fitted detector with its threshold, for images of one shape.

    shape: (C, H, W). kind: ``rotation`` or ``classifier``, where there is an encoder. card: the encoder's. seen: (N,)
    hashes of the images that it was fitted on, None where they are not known.
    """

    shape: tuple[int, int, int]
    detector: Fused
    threshold: Threshold
    vae: VAE | None = None
    encoder: nn.Module | None = None
    kind: str = "rotation"
    card: ModelCard | None = None
    seen: Tensor | None = None

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.detector.members)
        learned = "" if self.seen is None else f", fitted on {len(self.seen):,} images"
        return f"<FittedDetector of {names} for images {self.shape}{learned}; flags above {self.threshold.value:.3g}>"

    @property
    def extractor(self) -> FeatureExtractor:
        return make_extractor(self.vae, self.encoder, self.kind, reads=self.detector.reads)

    def score(self, images: Images | ImageSource) -> Tensor:
        """(N,) scores: z-scores of held-out normal data, so 0 is ordinary. images: a tensor (N, C, H, W), a split, or
        whatever :func:`fit` takes, arrays among it, which is brought to the detector's size."""
        return self.report(images).scores

    def report(
        self, images: Images | ImageSource, *, batch_size: int | None = None, workers: int | None = 0
    ) -> ScoreReport:
        parts = list(self.stream(images, batch_size=batch_size, workers=workers))
        require(bool(parts), "there is no image to score; give at least one")
        return ScoreReport.cat(parts)

    def stream(
        self, images: Images | ImageSource, *, batch_size: int | None = None, workers: int | None = 0
    ) -> Iterator[ScoreReport]:
        """Reports batch by batch: memory does not grow with the number of images."""
        if not isinstance(images, Tensor):
            images = open_unlabelled(images, shape=self.shape)
            check_images(images)
            self.check(images.shape)
        for x in float_batches(images, self.extractor.device, batch_size=batch_size, workers=workers):
            self.check(tuple(x.shape[1:]))
            yield self.report_batch(x)

    def report_batch(self, x: Tensor) -> ScoreReport:
        """The report of float images (B, C, H, W) on the detector's device."""
        features = self.extractor.extract(x).to("cpu")
        z, scores = self.detector.z_scores(features), self.detector.score_features(features)
        flags = self.threshold.flag(scores)
        names = [member.name for member in self.detector.members]
        reasons = tuple(_reason(row, names, bool(flag)) for row, flag in zip(z, flags, strict=True))
        return ScoreReport(scores, flags, reasons, z)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse images that the detector was not made for."""
        own, other = ({1: "grey", 3: "colour"}.get(channels, channels) for channels in (self.shape[0], shape[0]))
        require(
            len(shape) != 3 or own == other,
            f"this detector is for {own} images, and these are {other}; convert them, or fit a detector on such images",
        )
        require(
            self.shape == tuple(shape),
            f"this detector is for images of {self.shape[1]}x{self.shape[2]} pixels, and these have "
            f"{'x'.join(map(str, shape[1:]))}; bring them to that size",
        )

    def save(self, folder: str | Path) -> None:
        """Write the folder, whole or not at all."""
        require(
            self.encoder is None or self.card is not None, "only encoders from build_model can be saved with a detector"
        )
        content: dict[str, Any] = {"format": FORMAT, "holdfast": __version__, "shape": list(self.shape)}
        content |= {"detector": self.detector.settings, "threshold": asdict(self.threshold)}
        content["vae"] = None if self.vae is None else self.vae.settings.to_json()
        content["encoder"] = None if self.encoder is None else self.kind
        with filling(Path(folder)) as place:
            write_atomic(place / CARD, (json.dumps(content, indent=2) + "\n").encode())
            seen = {} if self.seen is None else {SEEN: self.seen}
            write_atomic(place / STATE, pack_tensors({**self.detector.all_state(), **seen}))
            if self.vae is not None:
                write_atomic(place / VAE_WEIGHTS, pack_tensors(self.vae.state_dict()))
            if self.encoder is not None:
                assert self.card is not None
                save_model(place / ENCODER, self.encoder, card=self.card)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | torch.device = "cpu") -> FittedDetector:
        folder = Path(folder)
        require((folder / CARD).is_file(), f"no detector in {folder}: {CARD} is missing; fit one first")
        try:
            content = json.loads((folder / CARD).read_bytes())
            require(
                content.get("format") == FORMAT,
                f"{folder / CARD} has format {content.get('format')}; this version reads {FORMAT}",
            )
            channels, height, width = content["shape"]
            state = read_tensors(folder / STATE)
            try:
                detector = Fused.restored(content["detector"], state)
            except HoldfastError as error:
                raise HoldfastError(f"cannot use the detector in {folder}: {error}") from error
            vae = None
            if content["vae"] is not None:
                vae = VAE(VAESettings.from_json(content["vae"]))
                vae.load_state_dict(read_tensors(folder / VAE_WEIGHTS))
                vae = vae.to(device).eval()
            threshold, kind = Threshold(**content["threshold"]), content["encoder"]
            require(kind in (None, *KINDS), f"{folder / CARD} has encoder {kind!r}; known: {', '.join(KINDS)}")
            encoder, card = load_model(folder / ENCODER) if kind else (None, None)
            encoder = None if encoder is None else encoder.to(device)
            seen, kind = state.get(SEEN), kind or KINDS[0]
            found = cls((channels, height, width), detector, threshold, vae, encoder, kind, card, seen)
            found.report(torch.zeros(1, channels, height, width))  # what does not fit together shows here
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
            raise HoldfastError(f"cannot read the detector in {folder}: {error!r}; fit it again") from error
        return found


def load_fitted(detector: str | Path | FittedDetector, *, device: str) -> FittedDetector:
    """A detector as it is, or from its folder onto a device, which may be ``auto``."""
    if isinstance(detector, FittedDetector):
        return detector
    return FittedDetector.load(detector, device=resolve_device(device))


def image_hashes(images: Images) -> Tensor:
    """(N,) int64: equal for equal pixels, and for no others but by a chance of one in 2**64."""
    found = []
    for x in float_batches(images, torch.device("cpu")):
        pixels = x.mul(255).round().to(torch.uint8).flatten(1).numpy()
        found += [int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest(), signed=True) for row in pixels]
    return torch.tensor(found, dtype=torch.int64)


def _reason(z: Tensor, names: Sequence[str], flagged: bool) -> str:
    first, *rest = z.argsort(descending=True).tolist()
    shown = [first, *(i for i in rest if z[i] > 2)] if flagged else []
    return "; ".join(f"{names[i]} {float(z[i]):+.1f} sd" for i in shown)
