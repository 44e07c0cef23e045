"""What a record keeps of scores and images, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.data.anomalies import AnomalySet
from holdfast.data.splits import ArraySplit
from holdfast.detect.description import strip
from holdfast.detect.evaluation import Threshold, auroc, evaluate_scores
from holdfast.models.vae import VAE

Record = dict[str, Any]

REPORT_CUT: Final = 0.3
"""Where the report cut its min-max scaled scores, having looked at the test sets."""
SHOWN: Final = 10
"""Images of a strip of originals and reconstructions."""
DRAWN: Final = ("elbo", "fused", "fused, local", "fused, with labels")
"""Scores of which every value is kept, for histograms and curves."""


def test_sets(data: AnomalySet) -> Iterator[tuple[str, ArraySplit]]:
    for i, split in enumerate(data.sets):
        yield f"set {i + 1}", split
    yield "pooled", data.pooled()


def judged(scores: Tensor, truth: Tensor, split: ArraySplit, data: AnomalySet, threshold: Threshold) -> Record:
    found = evaluate_scores(scores, truth, threshold=threshold)
    by_kind = {}
    for number, kind in enumerate(data.kinds):
        own = split.groups == number
        if own.any():
            by_kind[kind] = auroc(scores[own | ~truth], truth[own | ~truth])
    return {
        **{k: [e.value, e.low, e.high] for k, e in found.estimates.items()},
        "threshold": threshold.value,
        "confusion": found.confusion,
        "auroc by kind": by_kind,
    }


def values(scores: Tensor, truth: Tensor) -> dict[str, Any]:
    return {"normal": rounded(scores[~truth]), "anomalous": rounded(scores[truth])}


def rounded(values: Tensor, digits: int = 4) -> Any:
    """Numbers of a tensor as nested lists, short in JSON."""
    return [round(v, digits) for v in values.tolist()] if values.ndim == 1 else [rounded(row) for row in values]


def report_cut(scores: Tensor, truth: Tensor) -> Record:
    """The report's decision: scores scaled to [0, 1] over the test set itself, cut at 0.3."""
    scaled = (scores - scores.min()) / (scores.max() - scores.min())
    flags = scaled > REPORT_CUT
    return {
        "anomalies found": int((flags & truth).sum()),
        "anomalies": int(truth.sum()),
        "normal passed": int((~flags & ~truth).sum()),
        "normal": int((~truth).sum()),
    }


@torch.no_grad()
def reconstructions(vae: VAE, images: Tensor) -> list[str]:
    """Originals and what the VAE makes of them, each a strip as base64 PNG."""
    x = (images.float() / 255).to(next(vae.parameters()).device)
    decoded = vae.decode(vae(x)).float().clamp(0, 1).mul(255).round().to(torch.uint8).cpu()
    return [strip(images), strip(decoded)]
