"""What a detector is: fitted on what is normal, it gives a number an image, the higher the stranger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from holdfast.data.loaders import Images
from holdfast.detect.features import ClassifierSight, Seen, Sight, look_at
from holdfast.errors import HoldfastError, require

REMEDIES: Mapping[str, str] = {
    "features": "give a classifier or an encoder",
    "logits": "give a classifier",
    "reconstruction": "give a VAE",
    "kl": "give a VAE",
    "regret": "give a VAE and VAESight(..., regret=20)",
    "rotation": "give an encoder trained by train_rotation",
}


class Detector:
    """A score and what it must know of normal data.

    needs: fields of :class:`Seen` it reads; the first is what a bare tensor is taken for. sight: what turns images
    into them, for ``fit`` and ``score``. state: the tensors that fitting made; settings: what it was told.
    """

    name: ClassVar[str]
    needs: tuple[str, ...]
    learns: ClassVar[bool] = True
    """Whether there is anything to fit."""

    def __init__(self, sight: Sight | None = None) -> None:
        self.sight = sight
        self.state: dict[str, Tensor] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def fit(self, images: Images, *, labels: Tensor | None = None) -> Self:
        """Learn from normal images; labels (N,) where the detector can use classes (a split brings its own)."""
        return self.fit_features(look_at(self._sight, images), labels=labels)

    def score(self, images: Images) -> Tensor:
        """(N,) how anomalous each image is."""
        return self.score_features(look_at(self._sight, images))

    def fit_features(self, seen: Seen | Tensor, *, labels: Tensor | None = None) -> Self:
        """Learn from what was seen in normal images: features, or logits for a score of logits."""
        seen = self._given(seen)
        require(len(seen) > 0, f"{self.name} needs normal data to fit on, got none")
        if labels is not None:
            require(
                labels.shape == (len(seen),),
                f"{self.name} needs one label for each of {len(seen)} samples, got shape {tuple(labels.shape)}",
            )
            seen = seen.beside(Seen(labels=labels))
        self._learn(seen)
        return self

    def score_features(self, seen: Seen | Tensor) -> Tensor:
        """(N,) scores of what was seen in images, without looking at them again."""
        seen = self._given(seen)
        require(not self.learns or bool(self.state), f"{self.name} has not been fitted; call fit first")
        for name in self.needs:
            value, known = getattr(seen, name), self.state.get(f"width/{name}")
            if known is not None and value.ndim == 2:
                require(
                    value.shape[1] == int(known),
                    f"{self.name} was fitted on {name} of width {int(known)}, got {value.shape[1]}; "
                    "score with the model it was fitted with",
                )
        return self._score(seen).float()

    def _learn(self, seen: Seen) -> None:
        made = self._fit(seen)
        widths = {f"width/{n}": torch.tensor(v.shape[1]) for n in self.needs if (v := getattr(seen, n)).ndim == 2}
        self.state = {**made, **widths} if self.learns else {}

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        return {}

    def _score(self, seen: Seen) -> Tensor:
        raise NotImplementedError

    def _given(self, seen: Seen | Tensor) -> Seen:
        if isinstance(seen, Tensor):
            require(
                len(self.needs) == 1,
                f"{self.name} needs {' and '.join(self.needs)}; give them as Seen(...)",
            )
            seen = Seen(**{self.needs[0]: seen})
        for name in self.needs:
            value = getattr(seen, name)
            if value is None:
                raise HoldfastError(f"{self.name} needs {name}, which was not computed; {REMEDIES[name]}")
            wide = name in ("features", "logits")
            require(
                value.ndim == (2 if wide else 1),
                f"{name} must have shape {'(N, D)' if wide else '(N,)'}, got {tuple(value.shape)}",
            )
            bad = ~torch.isfinite(value.flatten(1) if wide else value[:, None]).all(1)
            if bad.any():
                raise HoldfastError(f"{name} of sample {int(bad.nonzero()[0])} are NaN or infinite; check the model")
        return seen

    @property
    def _sight(self) -> Sight:
        if self.sight is None:
            raise HoldfastError(
                f"{self.name} was made without a model to look at images with; give it one, or use "
                "fit_features and score_features"
            )
        return self.sight


def there(value: Tensor | None) -> Tensor:
    assert value is not None  # the base class has checked
    return value


def classes_of(seen: Seen) -> Tensor:
    return torch.zeros(len(seen), dtype=torch.int64) if seen.labels is None else seen.labels


def head_of(sight: Sight | None) -> tuple[Tensor, Tensor] | None:
    parts: Sequence[Any] = getattr(sight, "parts", (sight,))
    return next((part.head for part in parts if isinstance(part, ClassifierSight)), None)
