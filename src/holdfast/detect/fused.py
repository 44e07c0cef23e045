"""Several scores as one: each z-scored on held-out normal data, then joined. Every fitted detector is one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from holdfast.data.loaders import Images
from holdfast.detect.detectors import FUSED, make_detector
from holdfast.detect.detectors.detector import Detector
from holdfast.detect.features import FeatureExtractor, Features
from holdfast.errors import require

COMBINE = ("mean", "max")


class Fused(Detector):
    """The mean (or the largest) of its members' z-scores.

    Corrupted pixels and images of other classes show in different scores; a z-score makes their units the same.
    Members learn from one part of the normal data, centre and scale come from the other: a distance to data that one
    was fitted on is too small to be typical.
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
        return {"combine": self.combine, "members": {m.name: m.settings for m in self.members}}

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
            require(
                len(features) >= 10, f"fused needs at least 10 normal samples to hold some out, got {len(features)}"
            )
            kept = torch.arange(len(features)) % 5 == 4
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
        """(N, M) the raw score of each member."""
        return torch.stack([member.score_features(features) for member in self.members], 1)

    def z_scores(self, features: Features) -> Tensor:
        """(N, M) how many standard deviations each score lies above what is normal."""
        require(bool(self.state), "fused has not been fitted; call fit first")
        return (self.member_scores(features).double() - self.state["centre"]) / self.state["scale"]

    def compute(self, features: Features) -> Tensor:
        z = self.z_scores(features)
        return z.mean(1) if self.combine == "mean" else z.amax(1)

    def all_state(self) -> dict[str, Tensor]:
        """Everything that fitting made, members included, under names of their own."""
        own = {f"fused/{name}": value for name, value in self.state.items()}
        return own | {f"{m.name}/{name}": value for m in self.members for name, value in m.state.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> Self:
        everyone: list[Detector] = [self, *self.members]
        for detector in everyone:
            head = f"{detector.name}/"
            detector.state = {n.removeprefix(head): t for n, t in tensors.items() if n.startswith(head)}
        return self

    @classmethod
    def from_settings(cls, settings: dict[str, Any], extractor: FeatureExtractor | None = None) -> Fused:
        members = [make_detector(name, extractor, **own) for name, own in settings["members"].items()]
        return cls(members, extractor, combine=settings["combine"])
