"""Confident learning: which labels are probably wrong, from held-out predictions. Open this file to change the rule.

Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR 70 (2021), written
from the paper's equations. ỹ is the given label, y* the true one, p̂(k; x) the held-out probability of class k.

The paper's counts take a model's own errors for wrong labels: a model that is right for 80 % of the samples makes it
10 to 15 % of them. The default rule weighs both explanations instead (:func:`estimate_noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import require
from holdfast.rng import evenly

LabelErrorRule = Literal["posterior", "confident-joint", "class", "noise-rate", "both"]
MOST_FITTED = 20_000
"""Samples that noise and temperature are fitted on: enough for three digits."""
OUTER = 0.8
"""The part of the flagged range, from its most implausible end, in which the model is taken at its word."""
BOUND_LEVEL = 0.99
"""Of :attr:`LabelErrors.least_precision`."""
LEAST_OUTER = 20
"""Flagged labels in that part below which nothing is said of the precision."""
LEAST_PROBABILITY = 1e-15
"""Probabilities below are raised to this: of a 0 there is no logarithm."""


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """Labels that are probably wrong.

    flagged: (M,) positions, the least plausible label first. suggested: (N,) the most probable other class.
    margin: (N,) p̂(ỹ; x) - p̂(suggested; x), low where the label is implausible. joint: (K, K) the estimated share
    of samples with given label i and true label j by counting. wrong: (N,) the probability that a label is wrong, and
    noise the share of wrong labels, both as in :func:`estimate_noise`. least_precision: a lower bound of the share of
    the flagged labels that are wrong, as in :func:`bound_precision`; None where too few are flagged, and for other
    rules.
    """

    flagged: Tensor
    suggested: Tensor
    margin: Tensor
    joint: Tensor
    wrong: Tensor
    noise: float
    least_precision: float | None = None


def bound_precision(labels: Tensor, wrong_if: Tensor, flagged: Tensor) -> float | None:
    """How many of the flagged labels are wrong, at least (:data:`BOUND_LEVEL`); None where they are too few to say.

    wrong_if: (N, K) the probability that a label would be wrong if it were k. A label that is wrong at random is as
    likely to be one class as another, so it falls anywhere among the pairs of an image and a class that is not its
    most probable one, ranked by wrong_if; a label that is right falls near the plausible end. So in the share ``OUTER``
    of the pairs that would be flagged nearly all that is flagged is wrong, and their number is the sum of wrong_if. The
    number in the rest, for which the model is not asked, follows a negative binomial distribution. (Storey, "A direct
    approach to false discovery rates", JRSS B 64, 2002, compares ranges in this way.) The mean of wrong_if over all
    that is flagged can say too much: where a model is wrong and sure of itself, it does not know. It is taken where it
    is lower. A model that is sure of a wrong class as often as labels would be wrong makes this too high as well: its
    errors look like theirs, and nothing in its probabilities tells them apart.
    """
    from scipy.stats import nbinom  # type: ignore[import-untyped]  # slow to import

    if not len(flagged):
        return None
    rows = evenly(len(wrong_if), MOST_FITTED)
    most_probable = wrong_if[rows].argmin(1, keepdim=True)
    pairs = -wrong_if[rows].scatter(1, most_probable, -1.0)  # the least plausible first; those set to 1 come last
    ranked = pairs.flatten().sort().values
    wrong = wrong_if[flagged, labels[flagged]]
    rank = torch.searchsorted(ranked, -wrong).double()
    outer = math.floor(wrong[rank < OUTER * rank.max()].sum())
    if outer < LEAST_OUTER:
        return None
    inner = float(nbinom.ppf(1 - BOUND_LEVEL, outer, OUTER))
    return min(float(wrong.mean()), (outer + inner) / len(flagged))


def estimate_noise(labels: Tensor, probabilities: Tensor) -> tuple[float, Tensor]:
    """(ε, P): the share of wrong labels, and (N,) the probability that each label is wrong.

    A given label is the true one or, with probability ε, another at random: P(ỹ | x) = (1 − ε)·q + ε·(1 − q) / (K − 1)
    with q = softmax(log p̂ / T)[ỹ]. ε and the temperature T are those of the highest likelihood. What the model often
    gets wrong makes it less sure of itself (T); only what it is sure of, and is rarely wrong about, speaks against a
    label (ε). P is the second term's share.

    >>> p = torch.tensor([[0.98, 0.02], [0.03, 0.97]]).repeat(50, 1)
    >>> y = torch.tensor([0, 1]).repeat(50)
    >>> y[:5] = 1 - y[:5]
    >>> noise, wrong = estimate_noise(y, p)
    >>> round(noise, 2), wrong.topk(5).indices.sort().values.tolist()
    (0.05, [0, 1, 2, 3, 4])
    """
    noise, wrong_if = _noise_and_wrong_if(labels, probabilities)
    return noise, wrong_if.gather(1, labels[:, None])[:, 0]


def _noise_and_wrong_if(labels: Tensor, probabilities: Tensor) -> tuple[float, Tensor]:
    """ε, and (N, K) the probability that a label would be wrong if it were k."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]  # slow to import

    n, k = probabilities.shape
    logs = probabilities.double().clamp_min(LEAST_PROBABILITY).log()
    most = 1 - 1 / k  # beyond this a label would be less likely than any other class

    def parts(z: object, rows: Tensor) -> tuple[float, Tensor, Tensor]:
        """ε, and P(ỹ = k | x) if the label is right, and if it is wrong, for each class k of these rows."""
        scale, odds = (float(v) for v in z)  # type: ignore[attr-defined]
        noise = most / (1 + math.exp(-max(-12.0, min(12.0, odds))))
        temperature = math.exp(max(-4.0, min(4.0, scale)))
        q = (logs[rows] / temperature).softmax(1)
        return noise, (1 - noise) * q, noise * (1 - q) / (k - 1)

    fitted = evenly(n, MOST_FITTED)

    def loss(z: object) -> float:
        _, right, wrong = parts(z, fitted)
        given = (right + wrong).gather(1, labels[fitted][:, None])
        return -float(given.clamp_min(1e-300).log().mean())

    # two valleys: a model that errs with good labels, and a good model with wrong labels
    starts = [(math.log(t), math.log(e / (most - e))) for t in (1.0, 3.0) for e in (0.02, 0.2)]
    how = {"xatol": 1e-3, "fatol": 1e-6}
    tried = [minimize(loss, start, method="Nelder-Mead", options=how) for start in starts]
    best = min(tried, key=lambda found: float(found.fun))
    noise, right, wrong = parts(best.x, torch.arange(n))
    return noise, wrong / (right + wrong).clamp_min(1e-300)


def confident_joint(labels: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """(C, y*): equation 1, and the class (N,) that each sample is confidently counted under, -1 for none.

    labels: (N,) given classes. probabilities: (N, K), held out. The threshold of class j (equation 2) is the mean
    p̂(j; x) over samples labelled j; a sample counts in C[i, j] if p̂(j; x) reaches it, and j is the most probable of
    all classes that do.

    >>> p = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9]])
    >>> confident_joint(torch.tensor([0, 0, 0, 1]), p)[0]
    tensor([[2, 0],
            [0, 1]])
    """
    k = probabilities.shape[1]
    counts = torch.bincount(labels, minlength=k)
    own = probabilities.gather(1, labels[:, None])[:, 0]
    thresholds = torch.zeros(k, dtype=own.dtype).scatter_add_(0, labels, own) / counts.clamp_min(1)
    thresholds[counts == 0] = torch.inf  # nothing can be counted under a class that nobody has
    confident = torch.where(probabilities >= thresholds, probabilities, -1.0)
    true = torch.where(confident.amax(1) >= 0, confident.argmax(1), -1)
    known = true >= 0
    joint = torch.bincount(labels[known] * k + true[known], minlength=k * k).reshape(k, k)
    return joint, true


def estimated_joint(counted: Tensor, labels: Tensor) -> Tensor:
    """(K, K) equation 3: C scaled so that row i sums to the share of samples labelled i; the whole sums to 1.

    >>> estimated_joint(torch.tensor([[3, 1], [0, 2]]), torch.tensor([0] * 8 + [1] * 2))
    tensor([[0.6000, 0.2000],
            [0.0000, 0.2000]], dtype=torch.float64)
    """
    counts = torch.bincount(labels, minlength=len(counted)).double()
    c, total = counted.double(), counted.sum(1, keepdim=True)
    rows = torch.where(total > 0, c / total.clamp_min(1), torch.eye(len(c), dtype=torch.float64))
    scaled = rows * counts[:, None]  # a class nobody is confident of is taken to be right
    return scaled / scaled.sum()


def find_label_errors(labels: Tensor, probabilities: Tensor, *, rule: LabelErrorRule = "posterior") -> LabelErrors:
    """Samples whose label is probably wrong, the least plausible first.

    labels: (N,) int64. probabilities: (N, K) of a model that was not trained on the sample it judges.
    rule: which samples are flagged. "posterior": those that are more probably wrong than not, by
    :func:`estimate_noise`. The others are those of section 3.2 of the paper. "confident-joint": those counted off the
    diagonal. "class": of every class i the n·(off-diagonal sum of row i of the joint) samples of lowest p̂(i; x).
    "noise-rate": for every i ≠ j the n·joint[i, j] samples labelled i of largest p̂(j; x) - p̂(i; x). "both": flagged
    by the latter two.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.1, 0.9]])
    >>> find_label_errors(torch.tensor([0, 0, 0, 1, 1]), p, rule="both").flagged
    tensor([2])
    """
    n = len(labels)
    shaped = probabilities.ndim == 2 and len(probabilities) == n and n > 0 and probabilities.shape[1] >= 2
    shape = tuple(probabilities.shape)
    require(shaped, f"probabilities must be (N, K) for {n} labels and at least 2 classes, got shape {shape}")
    k = probabilities.shape[1]
    inside = int(labels.min()) >= 0 and int(labels.max()) < k
    require(inside, f"labels must be in 0..{k - 1}, got {int(labels.min())}..{int(labels.max())}")
    sums = probabilities.sum(1)
    proper = bool(torch.isfinite(probabilities).all()) and bool((probabilities >= 0).all())
    require(proper and bool(((sums - 1).abs() < 1e-3).all()), "probabilities must be >= 0 and sum to 1 in every row")
    p = probabilities.double()
    counted, true = confident_joint(labels, p)
    joint = estimated_joint(counted, labels)
    own = p.gather(1, labels[:, None])[:, 0]
    others = p.scatter(1, labels[:, None], -1.0)
    margin, suggested = own - others.amax(1), others.argmax(1)
    noise, wrong_if = _noise_and_wrong_if(labels, p)
    wrong = wrong_if.gather(1, labels[:, None])[:, 0]
    if rule == "posterior":
        chosen = wrong > 0.5
    elif rule == "confident-joint":
        chosen = (true >= 0) & (true != labels)
    else:
        by_class = _lowest_of_class(own, labels, joint) if rule != "noise-rate" else torch.ones(n, dtype=torch.bool)
        by_rate = _largest_margins(p, own, labels, joint) if rule != "class" else torch.ones(n, dtype=torch.bool)
        chosen = by_class & by_rate
    flagged = (chosen & (margin < 0)).nonzero().flatten()  # a label that is still the most probable one stays
    order = -wrong if rule == "posterior" else margin
    flagged = flagged[order[flagged].argsort(stable=True)]
    least = bound_precision(labels, wrong_if, flagged) if rule == "posterior" else None
    return LabelErrors(flagged, suggested, margin, joint, wrong, noise, least)


def _lowest_of_class(own: Tensor, labels: Tensor, joint: Tensor) -> Tensor:
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for i in range(len(joint)):
        count = round(len(labels) * float(joint[i].sum() - joint[i, i]))
        members = (labels == i).nonzero().flatten()
        chosen[members[own[members].argsort(stable=True)[:count]]] = True
    return chosen


def _largest_margins(p: Tensor, own: Tensor, labels: Tensor, joint: Tensor) -> Tensor:
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for i in range(len(joint)):
        members = (labels == i).nonzero().flatten()
        for j in range(len(joint)):
            count = round(len(labels) * float(joint[i, j])) if j != i else 0
            lead = p[members, j] - own[members]
            chosen[members[lead.argsort(descending=True, stable=True)[:count]]] = True
    return chosen
