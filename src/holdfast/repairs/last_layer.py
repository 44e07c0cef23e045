"""New last layers for a trained network, from features alone: DFR where groups are known, AFR where they are not.

Pure functions of tensors in float64. Features are what the head is given, (N, D); a head makes logits (N, K) of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import require

STEPS = 2000
TOLERANCE = 1e-6
"""Of the largest change of a parameter within a step, relative to the largest parameter."""
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

    By FISTA (Beck and Teboulle, 2009) with restarts, which needs no library and no choice of a step: the curvature of
    softmax is at most one half.
    """
    x = torch.cat([features.double(), features.new_ones(len(features), 1).double()], 1)
    n, d = x.shape
    w = x.new_full((n,), 1 / n) if weights is None else weights.double()
    hot = torch.nn.functional.one_hot(labels, num_classes).double()
    penalised = x.new_ones(d)
    target = x.new_zeros(num_classes, d)
    if towards is None:
        penalised[-1] = 0
    else:
        target = torch.cat([towards.weight.double(), towards.bias.double()[:, None]], 1)
    curvature = 0.5 * float(torch.linalg.eigvalsh((x * w[:, None]).T @ x)[-1]) + l2
    step, shrink = 1 / curvature, l1 / curvature
    at = target.clone()
    ahead, momentum = at, 1.0
    for _ in range(STEPS):
        gradient = ((ahead @ x.T).softmax(0) - hot.T) * w @ x + l2 * penalised * (ahead - target)
        new = ahead - step * gradient
        if l1:
            new[:, :-1] = new[:, :-1].sign() * (new[:, :-1].abs() - shrink).clamp_min(0)
        moved = new - at
        if float(((ahead - new) * moved).sum()) > 0:  # momentum has overshot
            ahead, momentum = at, 1.0
            continue
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, at, momentum = new + (momentum - 1) / following * moved, new, following
        if float(moved.abs().max()) <= tolerance * max(1.0, float(at.abs().max())):
            break
    return LinearHead(at[:, :-1], at[:, -1])


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
    strength: float,
    penalty: Literal["l1", "l2"] = "l1",
    balance: Literal["subsample", "weights"] = "subsample",
    repeats: int = 10,
    tolerance: float = TOLERANCE,
    generator: torch.Generator,
) -> LinearHead:
    """Deep feature reweighting (Kirichenko et al., 2023): the mean of heads fitted on group-balanced subsamples.

    Features are standardised; the head is for the raw ones. strength: C of logistic regression, the weight of the
    summed losses against the penalty; a smaller one is stricter. repeats: subsamples. balance: with "weights" one head
    is fitted on all samples, of which every cell of class and group counts the same; for cells of a few samples, which
    would leave next to nothing of the others.
    """
    x, mean, scale = standardised(features)
    cells, how = cells_of(labels, groups), {"num_classes": num_classes, "tolerance": tolerance}
    if balance == "weights":
        w = 1 / torch.bincount(cells)[cells].double()
        penalties = {penalty: 1 / (strength * len(cells))}
        return fit_head(x, labels, weights=w / w.sum(), **how, **penalties).on_raw(mean, scale)  # type: ignore[arg-type]
    heads = []
    for _ in range(repeats):
        own = balanced_subsample(cells, generator=generator)
        penalties = {penalty: 1 / (strength * len(own))}
        heads.append(fit_head(x[own], labels[own], **how, **penalties))  # type: ignore[arg-type]
    return LinearHead.mean_of(heads).on_raw(mean, scale)


def afr_weights(probabilities: Tensor, labels: Tensor, *, gamma: float) -> Tensor:
    """(N,) w ∝ exp(−γ·p_y) / N_y, which add up to 1: a sample counts more, the less sure the first model is of it.

    probabilities: (N, K) of the first model. N_y: how many samples have the class.
    """
    p = probabilities.double().gather(1, labels[:, None])[:, 0]
    w = (-gamma * p).exp() / torch.bincount(labels)[labels]
    return w / w.sum()


def afr(features: Tensor, labels: Tensor, head: LinearHead, *, gamma: float, pull: float) -> LinearHead:
    """Automatic feature reweighting (Qiu et al., 2023): a weighted loss, and a pull towards the first head.

    pull: λ in argmin Σ wᵢ·CEᵢ + λ·‖φ − φ₀‖². Weights are those of :func:`afr_weights`, of the first head's answers.
    """
    w = afr_weights(head(features).softmax(1), labels, gamma=gamma)
    return fit_head(features, labels, num_classes=len(head.bias), weights=w, l2=2 * pull, towards=head)


def folds_of(cells: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """(N,) a fold for each sample, such that every cell is spread over the folds as evenly as it can be."""
    order = torch.randperm(len(cells), generator=generator)
    ordered = order[cells[order].argsort(stable=True)]
    folds = torch.empty_like(cells)
    folds[ordered] = torch.arange(len(cells)) % count
    return folds


def cross_fitted(
    features: Tensor, cells: Tensor, fit: Callable[[Tensor], LinearHead], *, count: int, generator: torch.Generator
) -> Tensor:
    """(N, K) logits of each sample by a head that was fitted without it. fit: from positions to a head."""
    require(len(cells) >= FEWEST, f"{len(cells)} held-out images are too few; give at least {FEWEST}")
    folds = folds_of(cells, min(count, len(cells)), generator=generator)
    logits: list[tuple[Tensor, Tensor]] = []
    for fold in range(int(folds.max()) + 1):
        inside = (folds == fold).nonzero().flatten()
        head = fit((folds != fold).nonzero().flatten())
        logits.append((inside, head(features[inside])))
    made = torch.empty(len(cells), logits[0][1].shape[1], dtype=torch.float64)
    for inside, own in logits:
        made[inside] = own
    return made


def group_scores(logits: Tensor, labels: Tensor, cells: Tensor) -> tuple[float, float]:
    """(worst, mean) accuracy over cells: what a strength is chosen by, the second where the first is equal."""
    correct = (logits.argmax(1) == labels).double()
    by_cell = torch.zeros(int(cells.max()) + 1, dtype=torch.float64).index_add_(0, cells, correct)
    shares = by_cell / torch.bincount(cells)
    return float(shares.min()), float(shares.mean())
