"""New last layers for a trained network, from features alone: DFR where groups are known, AFR where they are not.

Pure functions of tensors in float64. Features are what the head is given, (N, D); a head makes logits (N, K) of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import Bounds, minimize  # type: ignore[import-untyped]
from torch import Tensor

from holdfast.errors import require

Array = npt.NDArray[np.float64]
STEPS = 3000
MEMORY = 20
"""Steps that L-BFGS keeps to estimate curvature."""
TOLERANCE = 1e-9
"""Of the change of the objective within a step."""
FEWEST = 10
"""Samples of a part that a new head is fitted on: with fewer it would say nothing."""


@dataclass(frozen=True, eq=False)
class LinearHead:
    """weight (K, D) and bias (K,), float64."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return features.double() @ self.weight.T + self.bias

    def on_raw(self, mean: Tensor, scale: Tensor) -> LinearHead:
        """The same head for features that are not standardised: it is fitted on (features − mean) / scale."""
        weight = self.weight / scale
        return LinearHead(weight, self.bias - weight @ mean)

    def divided(self, temperature: float) -> LinearHead:
        return LinearHead(self.weight / temperature, self.bias / temperature)

    @classmethod
    def mean_of(cls, heads: Sequence[LinearHead]) -> LinearHead:
        weights, biases = (torch.stack([getattr(h, name) for h in heads]).mean(0) for name in ("weight", "bias"))
        return cls(weights, biases)


def fit_head(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    weights: Tensor | None = None,
    l1: float = 0.0,
    l2: float = 0.0,
    towards: LinearHead | None = None,
    tolerance: float = TOLERANCE,
) -> LinearHead:
    """Multinomial logistic regression: argmin Σ wᵢ·CEᵢ + l1·‖W‖₁ + l2/2·‖W − W₀‖².

    weights: (N,) that add up to 1; equal by default. towards: the head (W₀, b₀) that l2 draws to, bias included;
    without one it draws the weights to 0 and leaves the bias free, as scikit-learn does.
    """
    own = None if weights is None else weights[None]
    return fit_heads(
        features, labels, num_classes=num_classes, weights=own, l1=[l1], l2=[l2], towards=towards, tolerance=tolerance
    )[0]


def fit_heads(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    weights: Tensor | None = None,
    l1: Sequence[float],
    l2: Sequence[float],
    towards: LinearHead | None = None,
    tolerance: float = TOLERANCE,
) -> list[LinearHead]:
    """As :func:`fit_head`, several problems on the same samples; each begins where the one before it ended.

    weights: (P, N), or (1, N) for all; each row adds up to 1. l1, l2: P of each.

    By L-BFGS-B. With l1 the weights are differences of two numbers that are not below 0, whose sum is the penalty: the
    objective is smooth then, and weights end at exactly 0. Features of one network are close to collinear; methods
    without curvature, FISTA among them, need thousands of steps there.
    """
    x, p, k = features.double().numpy(), len(l1), num_classes
    n, d = x.shape
    w = np.full((1, n), 1 / n) if weights is None else weights.double().numpy()
    w = np.broadcast_to(w, (p, n))
    hot = np.eye(k)[:, labels.numpy()]
    target = np.zeros((k, d + 1))
    if towards is not None:
        target = np.concatenate([towards.weight.numpy(), towards.bias.numpy()[:, None]], 1)
    made: dict[int, Array] = {}
    at = target.copy()
    for i in sorted(range(p), key=lambda i: -l1[i] - l2[i]):  # the strictest first: it is close to where all begin
        made[i] = at = _minimise(
            x, hot, w[i], at, l1=l1[i], l2=l2[i], target=target, free=towards is None, tolerance=tolerance
        )
    heads = (torch.from_numpy(made[i]) for i in range(p))
    return [LinearHead(own[:, :-1].clone(), own[:, -1].clone()) for own in heads]


def _minimise(
    x: Array, hot: Array, w: Array, start: Array, *, l1: float, l2: float, target: Array, free: bool, tolerance: float
) -> Array:
    """(K, D + 1) weights and biases. x: (N, D). hot: (K, N). w: (N,). free: whether l2 leaves the bias alone."""
    k, d = len(hot), x.shape[1]
    split = l1 > 0

    def joined(z: Array) -> Array:
        whole = z.reshape(-1, k, d + 1)
        at: Array = whole[0].copy()
        if split:
            at[:, :-1] -= whole[1, :, :-1]
        return at

    def objective(z: Array) -> tuple[float, Array]:
        at = joined(z)
        logits = at[:, :-1] @ x.T + at[:, -1:]
        logits -= logits.max(0)
        exponentials = np.exp(logits)
        total = exponentials.sum(0)
        errors = (exponentials / total - hot) * w
        apart = at - target
        if free:
            apart[:, -1] = 0
        gradient = np.concatenate([errors @ x, errors.sum(1, keepdims=True)], 1) + l2 * apart
        value = (w * (np.log(total) - (logits * hot).sum(0))).sum() + l2 / 2 * (apart**2).sum()
        if not split:
            return float(value), gradient.ravel()
        both = np.stack([gradient, -gradient])
        both[:, :, :-1] += l1
        both[1, :, -1] = 0  # the bias is the first of the two
        return float(value + l1 * (z.reshape(2, k, d + 1)[:, :, :-1]).sum()), both.ravel()

    first = start.copy()
    lower = np.full((1, k, d + 1), -np.inf)
    if split:
        first = np.stack([np.maximum(start, 0), np.maximum(-start, 0)])
        first[0, :, -1], first[1, :, -1] = start[:, -1], 0
        lower = np.zeros((2, k, d + 1))
        lower[0, :, -1] = -np.inf
    found = minimize(
        objective, first.ravel(), jac=True, method="L-BFGS-B", bounds=Bounds(lower.ravel(), np.inf),
        options={"maxiter": STEPS, "maxfun": 2 * STEPS, "maxcor": MEMORY, "ftol": tolerance, "gtol": 1e-9},
    )  # fmt: skip
    return joined(found.x)


def cells_of(labels: Tensor, groups: Tensor) -> Tensor:
    """(N,) class and group as one number, counted without gaps over those that there are."""
    places: Tensor = torch.unique(labels * (int(groups.max()) + 1) + groups, return_inverse=True)[1]
    return places


def balanced_subsample(cells: Tensor, *, generator: torch.Generator) -> Tensor:
    """Positions of equally many samples of every cell, as many as the smallest has, drawn without replacement."""
    least = int(torch.bincount(cells).min())
    order = torch.randperm(len(cells), generator=generator)
    kept = [order[cells[order] == cell][:least] for cell in range(int(cells.max()) + 1)]
    return torch.cat(kept).sort().values


def standardised(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(features of mean 0 and deviation 1, mean, deviation); a constant one keeps its scale."""
    mean, scale = features.double().mean(0), features.double().std(0, unbiased=False)
    scale = torch.where(scale > 1e-12, scale, 1.0)
    return (features.double() - mean) / scale, mean, scale


def dfr(
    features: Tensor,
    labels: Tensor,
    groups: Tensor,
    *,
    num_classes: int,
    strengths: Sequence[float],
    penalty: Literal["l1", "l2"] = "l1",
    balance: Literal["subsample", "weights"] = "subsample",
    repeats: int = 10,
    tolerance: float = TOLERANCE,
    generator: torch.Generator,
) -> list[LinearHead]:
    """Deep feature reweighting (Kirichenko et al., 2023): the mean of heads fitted on group-balanced subsamples.

    One head for each of strengths: C of logistic regression, the weight of the summed losses against the penalty; a
    smaller one is stricter. Features are standardised; heads are for the raw ones. repeats: subsamples. balance: with
    "weights" one head is fitted on all samples, of which every cell of class and group counts the same; for cells of
    a few samples, which would leave next to nothing of the others.
    """
    x, mean, scale = standardised(features)
    cells = cells_of(labels, groups)

    def fitted(index: Tensor, weights: Tensor | None) -> list[LinearHead]:
        rates, none = [1 / (c * len(index)) for c in strengths], [0.0] * len(strengths)
        l1, l2 = (rates, none) if penalty == "l1" else (none, rates)
        return fit_heads(
            x[index], labels[index], num_classes=num_classes, weights=weights, l1=l1, l2=l2, tolerance=tolerance
        )

    if balance == "weights":
        w = 1 / torch.bincount(cells)[cells].double()
        heads = [fitted(torch.arange(len(cells)), (w / w.sum())[None])]
    else:
        heads = [fitted(balanced_subsample(cells, generator=generator), None) for _ in range(repeats)]
    return [LinearHead.mean_of(own).on_raw(mean, scale) for own in zip(*heads, strict=True)]


def afr_weights(probabilities: Tensor, labels: Tensor, *, gamma: float) -> Tensor:
    """(N,) w ∝ exp(−γ·p_y) / N_y, which add up to 1: a sample counts more, the less sure the first model is of it.

    probabilities: (N, K) of the first model. N_y: how many samples have the class.
    """
    p = probabilities.double().gather(1, labels[:, None])[:, 0]
    w = (-gamma * p).exp() / torch.bincount(labels)[labels]
    return w / w.sum()


def afr(
    features: Tensor,
    labels: Tensor,
    head: LinearHead,
    *,
    candidates: Sequence[tuple[float, float]],
    tolerance: float = TOLERANCE,
) -> list[LinearHead]:
    """Automatic feature reweighting (Qiu et al., 2023): a weighted loss, and a pull towards the first head.

    One head for each of candidates: (γ, λ) in argmin Σ wᵢ·CEᵢ + λ·‖φ − φ₀‖². Weights are those of
    :func:`afr_weights`, of the first head's answers. The paper descends for a fixed number of steps; here the minimum
    is found, so that λ alone says how far the head may move.
    """
    p = head(features).softmax(1)
    w = torch.stack([afr_weights(p, labels, gamma=gamma) for gamma, _ in candidates])
    l2 = [2 * pull for _, pull in candidates]
    return fit_heads(
        features, labels, num_classes=len(head.bias), weights=w, l1=[0.0] * len(l2), l2=l2, towards=head,
        tolerance=tolerance,
    )  # fmt: skip


def folds_of(cells: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """(N,) a fold for each sample, such that every cell is spread over the folds as evenly as it can be."""
    order = torch.randperm(len(cells), generator=generator)
    ordered = order[cells[order].argsort(stable=True)]
    folds = torch.empty_like(cells)
    folds[ordered] = torch.arange(len(cells)) % count
    return folds


def cross_fitted(
    features: Tensor,
    cells: Tensor,
    fit: Callable[[Tensor], Sequence[LinearHead]],
    *,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """(M, N, K) logits of each sample by M heads that were fitted without it. fit: from positions to M heads."""
    require(len(cells) >= FEWEST, f"{len(cells)} held-out images are too few; give at least {FEWEST}")
    folds = folds_of(cells, min(count, len(cells)), generator=generator)
    made: list[Tensor] = []
    order: list[Tensor] = []
    for fold in range(int(folds.max()) + 1):
        inside = (folds == fold).nonzero().flatten()
        heads = fit((folds != fold).nonzero().flatten())
        made.append(torch.stack([head(features[inside]) for head in heads]))
        order.append(inside)
    return torch.cat(made, 1)[:, torch.cat(order).argsort()]


def group_scores(logits: Tensor, labels: Tensor, cells: Tensor) -> tuple[float, float]:
    """(worst, mean) accuracy over cells: what candidates are chosen by, the second where the first is equal."""
    correct = (logits.argmax(1) == labels).double()
    by_cell = torch.zeros(int(cells.max()) + 1, dtype=torch.float64).index_add_(0, cells, correct)
    shares = by_cell / torch.bincount(cells)
    return float(shares.min()), float(shares.mean())
