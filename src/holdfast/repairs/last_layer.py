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

STEPS = 4000
ROUND = 200
"""Steps between two choices of the features that take part."""
POWER_STEPS = 40
SLACK = 1e-3
"""By how much of l1 a gradient may exceed it where a feature is left out."""
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
    """As :func:`fit_head`, P problems on the same samples at once, which costs little more than one.

    weights: (P, N), or (1, N) for all; each row adds up to 1. l1, l2: P of each.

    By FISTA (Beck and Teboulle, 2009) with restarts, which needs no library and no choice of a step: the curvature of
    softmax is at most one half. With l1 a round of steps takes only the features that any problem uses or would
    use next, and their gradients decide at its end who joins and who leaves.
    """
    x = torch.cat([features.double(), features.new_ones(len(features), 1).double()], 1)
    n, d = x.shape
    p = len(l1)
    w = (x.new_full((1, n), 1 / n) if weights is None else weights.double()).expand(p, n)
    hot = torch.nn.functional.one_hot(labels, num_classes).double().T
    first, second = (torch.tensor(list(own), dtype=torch.float64)[:, None, None] for own in (l1, l2))
    target, drawn = x.new_zeros(num_classes, d), second.repeat(1, 1, d)
    if towards is None:
        drawn[:, :, -1] = 0  # the bias is free
    else:
        target = torch.cat([towards.weight.double(), towards.bias.double()[:, None]], 1)
    shrunk = first.repeat(1, 1, d)
    shrunk[:, :, -1] = 0
    at = target.repeat(p, 1, 1)
    sparse, left = min(l1) > 0, torch.arange(p)  # left: problems that are not solved yet
    columns = torch.arange(d)
    for _ in range(STEPS // ROUND):
        smooth = _Smooth(x[:, columns], hot, w[left], drawn[left][:, :, columns], target[:, columns])
        reached, solved = _descend(smooth, at[left][:, :, columns], shrunk[left][:, :, columns], tolerance)
        at[left[:, None], :, columns] = reached.transpose(1, 2)
        if sparse:
            whole = _Smooth(x, hot, w[left], drawn[left], target).gradient(at[left])
            wanted = whole.abs() > shrunk[left] * (1 + SLACK)
            idle = torch.ones(d, dtype=torch.bool)
            idle[columns] = False
            solved &= ~(wanted & idle).any(2).any(1)
            columns = ((at[left] != 0) | wanted).any(0).any(0).nonzero().flatten()
        left = left[~solved]
        if not len(left):
            break
    return [LinearHead(own[:, :-1], own[:, -1]) for own in at]


@dataclass(frozen=True, eq=False)
class _Smooth:
    """Σ wᵢ·CEᵢ + l2/2·‖W − W₀‖² of P problems: x (N, D), hot (K, N), w (P, N), l2 (P, 1, D), target (K, D)."""

    x: Tensor
    hot: Tensor
    w: Tensor
    l2: Tensor
    target: Tensor

    def gradient(self, at: Tensor) -> Tensor:
        """(P, K, D)."""
        p, k, d = at.shape
        errors = ((at.reshape(p * k, d) @ self.x.T).view(p, k, -1).softmax(1) - self.hot) * self.w[:, None]
        return (errors.view(p * k, -1) @ self.x).view(p, k, d) + self.l2 * (at - self.target)

    def curvature(self) -> Tensor:
        """(P, 1, 1) at least the largest there is: by power iteration, whose value is too low by under a tenth here."""
        v = self.x.new_ones(len(self.w), self.x.shape[1]) + 0.1 * torch.arange(self.x.shape[1]).sin()
        for _ in range(POWER_STEPS):
            v = v / v.norm(dim=1, keepdim=True)
            v = (v @ self.x.T * self.w) @ self.x
        largest: Tensor = 1.1 * 0.5 * v.norm(dim=1)[:, None, None] + self.l2.amax(2, keepdim=True)
        return largest


def _descend(smooth: _Smooth, at: Tensor, shrunk: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """At most ROUND steps from here, and which problems (P,) are solved. shrunk: l1 (P, 1, D)."""
    step = 1 / smooth.curvature()
    threshold = step * shrunk
    ahead, momentum = at, torch.ones_like(step)
    for _ in range(ROUND):
        new = ahead - step * smooth.gradient(ahead)
        new = new.sign() * (new.abs() - threshold).clamp_min(0)
        moved = new - at
        over = ((ahead - new) * moved).sum((1, 2), keepdim=True) > 0  # momentum has overshot
        following = (1 + (1 + 4 * momentum**2).sqrt()) / 2
        ahead = torch.where(over, at, new + (momentum - 1) / following * moved)
        momentum = torch.where(over, 1.0, following)
        at = torch.where(over, at, new)
        far = moved.abs().amax((1, 2)) > tolerance * at.abs().amax((1, 2)).clamp_min(1)
        unsolved = over.flatten() | far
        if not bool(unsolved.any()):
            break
    return at, ~unsolved


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
