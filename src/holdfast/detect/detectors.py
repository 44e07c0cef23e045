"""Detectors: fit on normal data, then score. Higher is more anomalous, for every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from holdfast.detect import scores
from holdfast.detect.covariance import shrunk_covariance, whitening
from holdfast.detect.seen import ClassifierSight, Images, Seen, Sight, look_at
from holdfast.errors import HoldfastError, require, unknown


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


LEAST_SPREAD = 0.01
"""Least local standard deviation that counts, as a share of the whole one: a few equal neighbours say nothing."""

REMEDIES: Mapping[str, str] = {
    "features": "give a classifier or an encoder",
    "logits": "give a classifier",
    "reconstruction": "give a VAE",
    "kl": "give a VAE",
    "regret": "give a VAE and VAESight(..., regret=20)",
    "rotation": "give an encoder trained by train_rotation",
}


class MSP(Detector):
    """1 − the classifier's confidence."""

    name = "msp"
    needs = ("logits",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return scores.msp(_there(seen.logits))


class MaxLogit(Detector):
    """−the largest logit."""

    name = "max-logit"
    needs = ("logits",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return scores.max_logit(_there(seen.logits))


class Energy(Detector):
    """−log Σ exp of the logits."""

    name = "energy"
    needs = ("logits",)
    learns = False

    def __init__(self, sight: Sight | None = None, *, temperature: float = 1.0) -> None:
        super().__init__(sight)
        require(temperature > 0, f"temperature must be > 0, got {temperature}")
        self.temperature = temperature

    @property
    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def _score(self, seen: Seen) -> Tensor:
        return scores.energy(_there(seen.logits), temperature=self.temperature)


class KNN(Detector):
    """Distance to the k-th nearest normal sample (Sun et al., 2022).

    normalise: put features on the unit sphere first, as the paper does.
    """

    name = "knn"
    needs: tuple[str, ...] = ("features",)

    def __init__(self, sight: Sight | None = None, *, k: int = 5, normalise: bool = True) -> None:
        super().__init__(sight)
        require(k >= 1, f"k must be >= 1, got {k}")
        self.k, self.normalise = k, normalise

    @property
    def settings(self) -> dict[str, Any]:
        return {"k": self.k, "normalise": self.normalise}

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        bank = self._prepared(_there(seen.features))
        require(
            len(bank) >= self.least,
            f"{self.name} needs at least {self.least} normal samples, got {len(bank)}"
            + ("; lower k" if self.least == self.k else ""),
        )
        made = scores.Bank.of(bank.detach().float())
        return {"vectors": made.vectors, "centre": made.centre, "norms": made.norms}

    def _score(self, seen: Seen) -> Tensor:
        return self._nearest(seen)[0][:, -1]

    def _nearest(self, seen: Seen) -> tuple[Tensor, Tensor]:
        bank = scores.Bank(*(self.state[name] for name in ("vectors", "centre", "norms")))
        x = self._prepared(_there(seen.features)).detach().to(bank.vectors)
        return scores.neighbours(x, bank, k=min(self.k, len(bank.vectors)))

    @property
    def least(self) -> int:
        """How many normal samples it takes."""
        return self.k

    def _prepared(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=1) if self.normalise else x


class LocalReconstruction(KNN):
    """−log p(x|z) at z = μ, in standard deviations of what the k most similar normal images (of fewer, all) have.

    Some normal things are harder to draw than others: a bag with a pattern is no anomaly, a shoe as badly drawn is.
    """

    name = "local-reconstruction"
    needs = ("features", "reconstruction")

    def __init__(self, sight: Sight | None = None, *, k: int = 50, normalise: bool = True) -> None:
        super().__init__(sight, k=k, normalise=normalise)
        require(k >= 2, f"k must be >= 2 to have a standard deviation, got {k}")

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        return super()._fit(seen) | {"reconstruction": _there(seen.reconstruction).detach().double()}

    def _score(self, seen: Seen) -> Tensor:
        near = self.state["reconstruction"][self._nearest(seen)[1]]
        scale = near.std(1).clamp(min=float(self.state["reconstruction"].std()) * LEAST_SPREAD + 1e-12)
        return (_there(seen.reconstruction).double() - near.mean(1)) / scale

    @property
    def least(self) -> int:
        return 2


class Mahalanobis(Detector):
    """Squared Mahalanobis distance to the nearest class mean, one covariance for all classes (Lee et al., 2018).

    Without labels there is one class. shrinkage: None is Ledoit and Wolf's, which needs no more samples than
    features; 0 is the plain covariance.
    """

    name = "mahalanobis"
    needs = ("features",)

    def __init__(self, sight: Sight | None = None, *, shrinkage: float | None = None) -> None:
        super().__init__(sight)
        self.shrinkage = shrinkage

    @property
    def settings(self) -> dict[str, Any]:
        return {"shrinkage": self.shrinkage}

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        x, labels = _there(seen.features).double(), _classes(seen)
        means = torch.stack([x[labels == label].mean(0) for label in torch.unique(labels)])
        return {"means": means, "whitening": self._whitening(x - means[torch.unique(labels, return_inverse=True)[1]])}

    def _score(self, seen: Seen) -> Tensor:
        x = _there(seen.features).double()
        return scores.mahalanobis(x, self.state["means"].to(x), self.state["whitening"].to(x)).amin(1)

    def _whitening(self, centred: Tensor) -> Tensor:
        require(len(centred) >= 2, f"{self.name} needs at least 2 normal samples, got {len(centred)}")
        return whitening(shrunk_covariance(centred, shrinkage=self.shrinkage)[0])


class RelativeMahalanobis(Mahalanobis):
    """The least of: squared distance to a class mean, less that to the mean of all (Ren et al., 2021)."""

    name = "relative-mahalanobis"

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        x = _there(seen.features).double()
        require(
            len(torch.unique(_classes(seen))) >= 2,
            "relative-mahalanobis needs labels of at least two classes: with one, both its distances are the same; "
            "use mahalanobis",
        )
        mean = x.mean(0, keepdim=True)
        return {**super()._fit(seen), "mean": mean, "background": self._whitening(x - mean)}

    def _score(self, seen: Seen) -> Tensor:
        x = _there(seen.features).double()
        background = scores.mahalanobis(x, self.state["mean"].to(x), self.state["background"].to(x))[:, 0]
        return scores.mahalanobis(x, self.state["means"].to(x), self.state["whitening"].to(x)).amin(1) - background


class ViM(Detector):
    """Energy plus what of the features lies outside their principal space (Wang et al., 2022).

    head: (weight (K, D), bias (K,)) of the layer that makes logits; a classifier's own by default. dimension: of the
    principal space; None is the paper's choice (1000 from 2048 features on, 512 from 768 on, else half).
    """

    name = "vim"
    needs = ("features", "logits")

    def __init__(
        self,
        sight: Sight | None = None,
        *,
        head: tuple[Tensor, Tensor] | None = None,
        dimension: int | None = None,
    ) -> None:
        super().__init__(sight)
        self.head, self.dimension = head, dimension

    @property
    def settings(self) -> dict[str, Any]:
        return {"dimension": self.dimension}

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        x, logits = _there(seen.features).double(), _there(seen.logits).double()
        head = self.head or _head_of(self.sight)
        require(head is not None, "vim needs the classifier's head; give head=(weight, bias), or a classifier")
        assert head is not None
        weight, bias = (t.to(x) for t in head)
        width = x.shape[1]
        dimension = self.dimension or (1000 if width >= 2048 else 512 if width >= 768 else max(1, width // 2))
        require(dimension < width, f"dimension must be below the {width} features, got {dimension}")
        origin = -torch.linalg.pinv(weight) @ bias
        centred = x - origin
        vectors = torch.linalg.eigh(centred.T @ centred / len(x)).eigenvectors
        residual = vectors[:, : width - dimension]  # eigh sorts upwards: the least variance comes first
        left = (centred @ residual).norm(dim=1).mean()
        alpha = logits.amax(1).mean() / left.clamp(min=1e-12)
        return {"origin": origin, "residual": residual, "alpha": alpha}

    def _score(self, seen: Seen) -> Tensor:
        x, logits = _there(seen.features).double(), _there(seen.logits).double()
        kept = {name: self.state[name].to(x) for name in ("origin", "residual", "alpha")}
        return scores.vim(x, logits, **kept)


class Elbo(Detector):
    """−ELBO at z = μ: reconstruction plus KL."""

    name = "elbo"
    needs = ("reconstruction", "kl")
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return _there(seen.reconstruction) + _there(seen.kl)


class Reconstruction(Detector):
    """−log p(x|z) at z = μ."""

    name = "reconstruction"
    needs = ("reconstruction",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return _there(seen.reconstruction)


class KL(Detector):
    """KL(q(z|x) ‖ p(z))."""

    name = "kl"
    needs = ("kl",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return _there(seen.kl)


class LikelihoodRegret(Detector):
    """How much the bound gains when q(z|x) is fitted to the image alone."""

    name = "likelihood-regret"
    needs = ("regret",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return _there(seen.regret)


class Rotation(Detector):
    """How badly a rotation-predicting encoder recognises the turns of the image (Hendrycks et al., 2019)."""

    name = "rotation"
    needs = ("rotation",)
    learns = False

    def _score(self, seen: Seen) -> Tensor:
        return _there(seen.rotation)


DETECTORS: dict[str, type[Detector]] = {
    kind.name: kind
    for kind in (
        MSP, MaxLogit, Energy, KNN, Mahalanobis, RelativeMahalanobis, ViM,
        Elbo, Reconstruction, KL, LikelihoodRegret, Rotation, LocalReconstruction,
    )
}  # fmt: skip
"""Every single score by name; ``fused`` joins several of them."""


def make_detector(name: str, sight: Sight | None = None, **settings: Any) -> Detector:
    """A detector by name."""
    if name not in DETECTORS:
        raise unknown("detector", name, DETECTORS)
    return DETECTORS[name](sight, **settings)


def _there(value: Tensor | None) -> Tensor:
    assert value is not None  # the base class has checked
    return value


def _classes(seen: Seen) -> Tensor:
    return torch.zeros(len(seen), dtype=torch.int64) if seen.labels is None else seen.labels


def _head_of(sight: Sight | None) -> tuple[Tensor, Tensor] | None:
    parts: Sequence[Any] = getattr(sight, "parts", (sight,))
    return next((part.head for part in parts if isinstance(part, ClassifierSight)), None)
