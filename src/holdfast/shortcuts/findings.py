"""All of it as findings, for the JSON file and the page."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.data.splits import aligned_groups, sides
from holdfast.shortcuts import shortcut_files
from holdfast.shortcuts.result import Shortcuts
from holdfast.types import Finding

SHOWN = 6
"""Pictures of a cluster on the page."""
BINS = 40


def findings_of(found: Shortcuts, models: dict[str, nn.Module]) -> tuple[Finding, ...]:
    """The share, the judgement, the clusters and both ends of the order. models: to be shown side by side."""
    data, n, loop = found.data, len(found.score), found.settings.loop
    trained = found.difficulty is not None
    settings = {
        "model": found.settings.model.name,
        "biased models": len(found.sightings) if trained else "taken as they are",
        "epochs": loop.epochs if trained else None,
        "score": "1 - p(y|x) of the biased models, mean over seeds and epochs",
        "seed": loop.seed,
    }
    share = found.share
    evidence: dict[str, Any] = {"histogram": _histogram(found), "notes": list(found.notes)}
    made = [Finding("shortcuts", "conflicting-share", share.value, n, share.low, share.high, {}, settings, evidence)]
    if found.judged is not None and found.base_rate is not None:
        known = int((data.train.groups >= 0).sum())
        ap, lift = found.judged, {"lift": found.judged.value / found.base_rate}
        made.append(Finding("shortcuts", "average-precision", ap.value, known, ap.low, ap.high, {}, settings, lift))
        made.append(Finding("shortcuts", "base-rate", found.base_rate, known, settings=settings))
    for cluster in found.clusters:
        part = torch.tensor(cluster.positions[:SHOWN])
        evidence = {
            "label": list(cluster.label),
            "taken_for": list(cluster.taken_for),
            "group": None if cluster.group is None else list(cluster.group),
            "rows": shortcut_files.rows(data.train, part, models, found),
        }
        size = len(cluster.positions)
        where = {"cluster": str(cluster.number)}
        made.append(Finding("shortcuts", "cluster-size", float(size), size, where=where, evidence=evidence))
    ends = {"top": found.order[: 2 * SHOWN], "bottom": found.order[-SHOWN:]}
    rows = {name: shortcut_files.rows(data.train, part, models, found) for name, part in ends.items()}
    return (*made, Finding("shortcuts", "ends", None, 0, settings=settings, evidence=rows))


def _histogram(found: Shortcuts) -> dict[str, list[int]]:
    """Samples by score in equal bins over [0, 1]: all, and both sides of the shortcut where groups tell."""
    labels, groups = found.data.train.labels, found.data.train.groups
    at = (found.score * BINS).long().clamp(max=BINS - 1)
    parts = {"all": torch.ones_like(labels, dtype=torch.bool)}
    if found.judged is not None:
        parts = sides(labels, groups, aligned_groups(labels, groups, found.data.num_classes))
    return {name: torch.bincount(at[chosen], minlength=BINS).tolist() for name, chosen in parts.items()}
