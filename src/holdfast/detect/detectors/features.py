"""Detectors that measure how far features lie from what is normal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.detect import scores
from holdfast.detect.covariance import shrunk_covariance, whitening
from holdfast.detect.detectors.base import Detector, classes_of, head_of, there
from holdfast.detect.features import Seen, Sight
from holdfast.errors import require

LEAST_SPREAD = 0.01
"""Least local standard deviation that counts, as a share of the whole one: a few equal neighbours say nothing."""


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
        bank = self._prepared(there(seen.features))
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
        x = self._prepared(there(seen.features)).detach().to(bank.vectors)
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
        return super()._fit(seen) | {"reconstruction": there(seen.reconstruction).detach().double()}

    def _score(self, seen: Seen) -> Tensor:
        near = self.state["reconstruction"][self._nearest(seen)[1]]
        scale = near.std(1).clamp(min=float(self.state["reconstruction"].std()) * LEAST_SPREAD + 1e-12)
        return (there(seen.reconstruction).double() - near.mean(1)) / scale

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
        x, labels = there(seen.features).double(), classes_of(seen)
        means = torch.stack([x[labels == label].mean(0) for label in torch.unique(labels)])
        return {"means": means, "whitening": self._whitening(x - means[torch.unique(labels, return_inverse=True)[1]])}

    def _score(self, seen: Seen) -> Tensor:
        x = there(seen.features).double()
        return scores.mahalanobis(x, self.state["means"].to(x), self.state["whitening"].to(x)).amin(1)

    def _whitening(self, centred: Tensor) -> Tensor:
        require(len(centred) >= 2, f"{self.name} needs at least 2 normal samples, got {len(centred)}")
        return whitening(shrunk_covariance(centred, shrinkage=self.shrinkage)[0])


class RelativeMahalanobis(Mahalanobis):
    """The least of: squared distance to a class mean, less that to the mean of all (Ren et al., 2021)."""

    name = "relative-mahalanobis"

    def _fit(self, seen: Seen) -> dict[str, Tensor]:
        x = there(seen.features).double()
        require(
            len(torch.unique(classes_of(seen))) >= 2,
            "relative-mahalanobis needs labels of at least two classes: with one, both its distances are the same; "
            "use mahalanobis",
        )
        mean = x.mean(0, keepdim=True)
        return {**super()._fit(seen), "mean": mean, "background": self._whitening(x - mean)}

    def _score(self, seen: Seen) -> Tensor:
        x = there(seen.features).double()
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
        x, logits = there(seen.features).double(), there(seen.logits).double()
        head = self.head or head_of(self.sight)
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
        x, logits = there(seen.features).double(), there(seen.logits).double()
        kept = {name: self.state[name].to(x) for name in ("origin", "residual", "alpha")}
        return scores.vim(x, logits, **kept)
