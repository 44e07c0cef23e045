"""Detectors that measure how far an image's features are from those of normal images: k-NN, Mahalanobis, ViM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.detect import scores
from holdfast.detect.detectors import Detector, there
from holdfast.errors import require
from holdfast.parts import detector

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.detect.features import FeatureExtractor, Features

LEAST_SPREAD = 0.01
"""Least local standard deviation that counts, as a share of the whole one: a few equal neighbours say nothing."""


@detector(
    "knn",
    aliases=("k-nearest-neighbours", "nearest-neighbours"),
    about="distance to the k-th nearest normal sample",
    reads=("features",),
    order=4,
)
class KNN(Detector):
    """Distance to the k-th nearest normal sample (Sun et al., 2022).

    normalise: put features on the unit sphere first, as the paper does.

    >>> import torch
    >>> KNN(k=1, normalise=False).fit_features(torch.zeros(2, 2)).score_features(torch.tensor([[3.0, 4.0]]))
    tensor([5.])
    """

    least: ClassVar[int | None] = None
    """How many normal samples it takes; None is k."""

    def __init__(self, extractor: FeatureExtractor | None = None, *, k: int = 5, normalise: bool = True) -> None:
        super().__init__(extractor)
        require(k >= 1, f"k must be >= 1, got {k}")
        self.k, self.normalise = k, normalise

    def learn(self, features: Features) -> dict[str, Tensor]:
        bank = self._prepared(there(features.features))
        least, remedy = (self.k, "; lower k") if self.least is None else (self.least, "")
        require(len(bank) >= least, f"{self.name} needs at least {least} normal samples, got {len(bank)}{remedy}")
        return dict(vars(scores.Bank.of(bank.detach().float())))

    def compute(self, features: Features) -> Tensor:
        return self._nearest(features)[0][:, -1]

    def _nearest(self, features: Features) -> tuple[Tensor, Tensor]:
        bank = scores.Bank(*(self.state[name] for name in ("vectors", "centre", "norms")))
        x = self._prepared(there(features.features)).detach().to(bank.vectors)
        return scores.neighbours(x, bank, k=min(self.k, len(bank.vectors)))

    def _prepared(self, x: Tensor) -> Tensor:
        import torch

        return torch.nn.functional.normalize(x, dim=1) if self.normalise else x


@detector(
    "local-reconstruction",
    about="reconstruction, against the most similar normal images",
    reads=("features", "reconstruction"),
    order=13,
)
class LocalReconstruction(KNN):
    """−log p(x|z) at z = μ, in standard deviations of what the k most similar normal images (of fewer, all) have.

    Some normal things are harder to draw than others: a patterned bag is normal, a shoe drawn as badly is not.

    >>> import torch
    >>> from holdfast.detect import Features
    >>> normal = Features(features=torch.eye(4), reconstruction=torch.tensor([1.0, 2.0, 3.0, 2.0]))
    >>> detector = LocalReconstruction(k=4).fit_features(normal)
    >>> detector.score_features(Features(features=torch.eye(4)[:1], reconstruction=torch.tensor([2.0])))
    tensor([0.])
    """

    least = 2

    def __init__(self, extractor: FeatureExtractor | None = None, *, k: int = 50, normalise: bool = True) -> None:
        super().__init__(extractor, k=k, normalise=normalise)
        require(k >= 2, f"k must be >= 2 to have a standard deviation, got {k}")

    def learn(self, features: Features) -> dict[str, Tensor]:
        return super().learn(features) | {"reconstruction": there(features.reconstruction).detach().double()}

    def compute(self, features: Features) -> Tensor:
        near = self.state["reconstruction"][self._nearest(features)[1]]
        scale = near.std(1).clamp(min=float(self.state["reconstruction"].std()) * LEAST_SPREAD + 1e-12)
        return (there(features.reconstruction).double() - near.mean(1)) / scale


@detector("mahalanobis", about="distance to the nearest class mean, in covariance units", reads=("features",), order=5)
class Mahalanobis(Detector):
    """Squared Mahalanobis distance to the nearest class mean, one covariance for all classes (Lee et al., 2018).

    Without labels there is one class. shrinkage: None is Ledoit and Wolf's, which needs no more samples than
    features; 0 is the plain covariance.

    >>> import torch
    >>> normal = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> Mahalanobis(shrinkage=0).fit_features(normal).score_features(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    tensor([0., 2.])
    """

    def __init__(self, extractor: FeatureExtractor | None = None, *, shrinkage: float | None = None) -> None:
        super().__init__(extractor)
        self.shrinkage = shrinkage

    def learn(self, features: Features) -> dict[str, Tensor]:
        x, means, own = self._means(features)
        return {"means": means, "whitening": scores.whitening(self._covariance(x - means[own]))}

    def compute(self, features: Features) -> Tensor:
        x = there(features.features).double()
        return scores.mahalanobis(x, self.state["means"].to(x), self.state["whitening"].to(x)).amin(1)

    def _means(self, features: Features) -> tuple[Tensor, Tensor, Tensor]:
        """(features (N, D), the mean of each class (K, D), which of them is whose (N,))."""
        import torch

        x, (labels, own) = there(features.features).double(), torch.unique(_classes(features), return_inverse=True)
        return x, torch.stack([x[own == k].mean(0) for k in range(len(labels))]), own

    def _covariance(self, centred: Tensor) -> Tensor:
        require(len(centred) >= 2, f"{self.name} needs at least 2 normal samples, got {len(centred)}")
        return scores.shrunk_covariance(centred, shrinkage=self.shrinkage)[0]


@detector(
    "relative-mahalanobis",
    aliases=("rmd",),
    about="the same, less the distance to the mean of all classes",
    reads=("features",),
    order=6,
)
class RelativeMahalanobis(Mahalanobis):
    """Squared distance to the nearest class mean, minus that to the mean of all (Ren et al., 2021).

    The covariance of all is that within classes, shrunk as it is, plus that of the means. Shrunk by itself it could be
    the smaller of the two along some direction, and what lies far out along it would score as normal.

    >>> import torch
    >>> normal, labels = torch.tensor([[-1.0], [-1.2], [1.0], [1.2]]), torch.tensor([0, 0, 1, 1])
    >>> detector = RelativeMahalanobis().fit_features(normal, labels=labels)
    >>> near, far = detector.score_features(torch.tensor([[1.1], [9.0]]))
    >>> bool(near < far)
    True
    """

    def learn(self, features: Features) -> dict[str, Tensor]:
        x, means, own = self._means(features)
        require(
            len(means) >= 2,
            "relative-mahalanobis needs labels of at least two classes: with one, both its distances are the same; "
            "use mahalanobis",
        )
        within, mean = self._covariance(x - means[own]), x.mean(0, keepdim=True)
        between = means[own] - mean
        background = scores.whitening(within + between.T @ between / len(x))
        return {"means": means, "whitening": scores.whitening(within), "mean": mean, "background": background}

    def compute(self, features: Features) -> Tensor:
        x = there(features.features).double()
        background = scores.mahalanobis(x, self.state["mean"].to(x), self.state["background"].to(x))[:, 0]
        return scores.mahalanobis(x, self.state["means"].to(x), self.state["whitening"].to(x)).amin(1) - background


@detector("vim", about="energy, plus the features outside their principal space", reads=("features", "logits"), order=7)
class ViM(Detector):
    """Energy plus what of the features lies outside their principal space (Wang et al., 2022).

    head: (weight (K, D), bias (K,)) of the layer that makes logits; a classifier's own by default. dimension: of the
    principal space; None is the paper's choice (1000 from 2048 features on, 512 from 768 on, else half).

    >>> import torch
    >>> from holdfast.detect import Features
    >>> normal, head = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), (torch.eye(2, 4), torch.zeros(2))
    >>> detector = ViM(head=head, dimension=2).fit_features(Features(features=normal, logits=normal[:, :2]))
    >>> both = Features(features=torch.cat([normal[:1], 100 * normal[:1]]), logits=torch.zeros(2, 2))
    >>> near, far = detector.score_features(both)
    >>> bool(near < far)
    True
    """

    def __init__(
        self,
        extractor: FeatureExtractor | None = None,
        *,
        head: tuple[Tensor, Tensor] | None = None,
        dimension: int | None = None,
    ) -> None:
        super().__init__(extractor)
        self.head, self.dimension = head, dimension

    @property
    def settings(self) -> dict[str, Any]:
        return {"dimension": self.dimension}

    def learn(self, features: Features) -> dict[str, Tensor]:
        import torch

        x, logits = there(features.features).double(), there(features.logits).double()
        parts: tuple[Any, ...] = getattr(self.extractor, "parts", (self.extractor,))
        head = self.head or next((part.head for part in parts if hasattr(part, "head")), None)
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
        alpha = logits.amax(1).mean() / (centred @ residual).norm(dim=1).mean().clamp(min=1e-12)
        return {"origin": origin, "residual": residual, "alpha": alpha}

    def compute(self, features: Features) -> Tensor:
        x, logits = there(features.features).double(), there(features.logits).double()
        return scores.vim(x, logits, **{name: self.state[name].to(x) for name in ("origin", "residual", "alpha")})


def _classes(features: Features) -> Tensor:
    import torch

    return torch.zeros(len(features), dtype=torch.int64) if features.labels is None else features.labels
