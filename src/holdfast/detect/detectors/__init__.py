"""What a detector is: fitted on normal data, it gives one number per image, higher for more anomalous images.

Open this file to write a detector: subclass :class:`Detector` and declare it with ``holdfast.parts.detector``, in a
file here or in a package of your own (entry-point group ``holdfast``). These files import torch inside functions
only, so that ``holdfast detect fit --help`` can list the detectors fast.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.errors import HoldfastError, require, require_known
from holdfast.parts import DETECTORS

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.data.loaders import Images
    from holdfast.detect.features import FeatureExtractor, Features

REMEDIES: Mapping[str, str] = {
    "features": "give a classifier or an encoder",
    "logits": "give a classifier",
    "reconstruction": "give a VAE",
    "kl": "give a VAE",
    "drawn": "give a VAE and VAEExtractor(..., drawn=True)",
    "regret": "give a VAE and VAEExtractor(..., regret=20)",
    "rotation": "give an encoder trained by train_rotation",
}


class Detector:
    """A score of how anomalous an input is, and what it learned from normal data.

    A subclass implements :meth:`compute` and, if it learns something, :meth:`learn`. name, reads: from its
    declaration. extractor: turns images into features, for ``fit`` and ``score``. state: the tensors that fitting made;
    they are saved with the detector, and so are its settings.
    """

    name: ClassVar[str]
    reads: tuple[str, ...]
    learns: ClassVar[bool] = True
    """Whether there is anything to fit."""

    def __init__(self, extractor: FeatureExtractor | None = None) -> None:
        self.extractor = extractor
        self.state: dict[str, Tensor] = {}

    def learn(self, features: Features) -> dict[str, Tensor]:
        """What to remember of normal data: becomes ``state``."""
        return {}

    def compute(self, features: Features) -> Tensor:
        """(N,) how anomalous each sample is; what the detector reads is there, finite and of the right shape."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments that make such a detector again: those of ``__init__``, kept under their own names."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        return {p.name: getattr(self, p.name) for p in parameters if p.kind is p.KEYWORD_ONLY}

    def fit(self, images: Images, *, labels: Tensor | None = None) -> Self:
        """Learn from normal images; labels (N,) where the detector can use classes (a split brings its own)."""
        return self.fit_features(self._extract(images), labels=labels)

    def score(self, images: Images) -> Tensor:
        return self.score_features(self._extract(images))

    def fit_features(self, features: Features | Tensor, *, labels: Tensor | None = None) -> Self:
        """Learn from features of normal images; a bare tensor is the first of what the detector reads."""
        import torch

        features = self._checked(features)
        require(len(features) > 0, f"{self.name} needs normal data to fit on, got none")
        if labels is not None:
            require(
                labels.shape == (len(features),),
                f"{self.name} needs one label for each of {len(features)} samples, got shape {tuple(labels.shape)}",
            )
            features = features.beside(type(features)(labels=labels))
        made = self.learn(features)
        widths = {f"width/{n}": torch.tensor(v.shape[1]) for n in self.reads if (v := getattr(features, n)).ndim == 2}
        self.state = {**made, **widths} if self.learns else {}
        return self

    def score_features(self, features: Features | Tensor) -> Tensor:
        features = self._checked(features)
        require(not self.learns or bool(self.state), f"{self.name} has not been fitted; call fit first")
        for name in self.reads:
            value, known = getattr(features, name), self.state.get(f"width/{name}")
            if known is not None and value.ndim == 2:
                require(
                    value.shape[1] == int(known),
                    f"{self.name} was fitted on {name} of width {int(known)}, got {value.shape[1]}; "
                    "score with the model it was fitted with",
                )
        return self.compute(features).float()

    def _checked(self, features: Features | Tensor) -> Features:
        import torch

        from holdfast.detect.features import Features

        if isinstance(features, torch.Tensor):
            require(len(self.reads) == 1, f"{self.name} needs {' and '.join(self.reads)}; give them as Features(...)")
            features = Features(**{self.reads[0]: features})
        for name in self.reads:
            value = getattr(features, name)
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
        return features

    def _extract(self, images: Images) -> Features:
        from holdfast.detect.features import extract

        if self.extractor is None:
            raise HoldfastError(
                f"{self.name} was made without a model to extract features with; give it one, or use "
                "fit_features and score_features"
            )
        return extract(self.extractor, images)


def there(value: Tensor | None) -> Tensor:
    assert value is not None  # the base class has checked
    return value


FUSED = "fused"
"""The name of the default choice: not a score of its own, but several joined."""


def check_scores(names: Collection[str]) -> list[str]:
    """The declared names behind any spellings; what is neither ``fused``, alone, nor a detector is refused."""
    known = (FUSED, *DETECTORS)
    require(bool(names), f"no score named; give one of {', '.join(known)}")
    names = [DETECTORS[name].name if name in DETECTORS else name for name in names]
    for name in names:
        require_known("score", name, known)
    require(FUSED not in names or len(names) == 1, "fused is a choice of its own; name either it or single scores")
    return names


def make_detector(name: str, extractor: FeatureExtractor | None = None, **settings: Any) -> Detector:
    """A detector by its name, as ``holdfast list detectors`` shows it. settings: its own.

    >>> import torch
    >>> detector = make_detector("energy", temperature=1.0)
    >>> detector.score_features(torch.zeros(1, 2))  # -log 2
    tensor([-0.6931])
    """
    made: Detector = DETECTORS[name].made(extractor, **settings)
    return made
