"""What :func:`holdfast.find_shortcuts` leaves: findings, a table with one row per training sample, and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.audits.checks.saliency.saliency_maps import looks
from holdfast.data.images import png
from holdfast.data.splits import bias_alignment
from holdfast.data.tables import growing_table
from holdfast.reports import write_findings
from holdfast.reports.html import write_shortcuts_page
from holdfast.shortcuts.conflicting_samples import Shortcuts
from holdfast.shortcuts.shortcut_alarm import FOUND_FROM, LEVEL, MOST_TESTED
from holdfast.types import Finding, Measure, Unit

CHECK = "shortcuts"
MEASURES = (
    Measure("shortcut_p", "test for a shortcut: p", Unit.P_VALUE, better="neither"),
    Measure("average_precision", "average precision of the ranking against the group labels"),
    Measure("base_rate", "bias-conflicting samples by group labels", better="neither"),
    Measure("cluster_size", "suspected samples in a cluster", Unit.COUNT, better="neither"),
)
SHOWN = 6
"""Pictures of a cluster on the page."""
BINS = 40
CSV, JSON, PAGE = "shortcuts.csv", "shortcuts.json", "shortcuts.html"
COLUMNS = (
    "rank", "position", "source", "label", "score", "wrong", "difficulty", "biased_prediction", "cluster", "group",
)  # fmt: skip


def findings_of(found: Shortcuts, models: dict[str, nn.Module]) -> tuple[Finding, ...]:
    """The test, the precision of the ranking, the clusters, examples of both ends. models: whose saliency to show."""
    n, loop = len(found.score), found.settings.loop
    trained = found.difficulty is not None
    settings = {
        "model": found.settings.model.name,
        "biased models": len(found.biased_models) if trained else "given",
        "epochs": loop.epochs if trained else None,
        "score": "1 - p(y|x) of the biased models, mean over seeds and epochs",
        "seed": loop.seed,
    }
    evidence: dict[str, Any] = {"histogram": _histogram(found), "notes": [str(note) for note in found.notes]}
    test, p, tested = found.test, None, 0
    if test is not None:
        p, tested = test.p, min(n, MOST_TESTED)
        counts = {"mistakes": test.mistakes, "conflicting": test.conflicting, "clear": test.clear}
        counts |= {"hinging": test.hinging}
        more = {"place": test.place} if test.alarm else {"found_from": FOUND_FROM}
        evidence |= {"alarm": test.alarm, "level": LEVEL, **counts, **more}
    made = [Finding(CHECK, "shortcut_p", p, tested, settings=settings, evidence=evidence)]
    if found.precision is not None and found.base_rate is not None:
        known = found.precision.n
        ap, lift = found.precision, {"lift": found.precision.value / found.base_rate}
        made.append(Finding(CHECK, "average_precision", ap.value, known, ap.low, ap.high, {}, settings, lift))
        made.append(Finding(CHECK, "base_rate", found.base_rate, known, settings=settings))
    for cluster in found.clusters:
        part = torch.tensor(cluster.positions[:SHOWN])
        evidence = {
            "label": list(cluster.label),
            "biased_prediction": list(cluster.biased_prediction),
            "group": None if cluster.group is None else list(cluster.group),
            "rows": _rows(found, part, models),
        }
        size, where = len(cluster.positions), {"cluster": str(cluster.number)}
        made.append(Finding(CHECK, "cluster_size", float(size), size, where=where, evidence=evidence))
    ends = {"top": found.order[: 2 * SHOWN], "bottom": found.order[-SHOWN:]}
    rows = {name: _rows(found, part, models) for name, part in ends.items()}
    return (*made, Finding(CHECK, "examples", None, 0, settings=settings, evidence=rows))


def _histogram(found: Shortcuts) -> dict[str, list[int]]:
    """Samples by score in equal bins over [0, 1]: all, or bias-aligned and bias-conflicting where groups are known."""
    labels, groups = found.data.train.labels, found.data.train.groups
    at = (found.score * BINS).long().clamp(max=BINS - 1)
    parts = {"all": torch.ones_like(labels, dtype=torch.bool)}
    if found.precision is not None:
        parts = bias_alignment(labels, groups, found.data.usual_groups)
    return {name: torch.bincount(at[chosen], minlength=BINS).tolist() for name, chosen in parts.items()}


def write(found: Shortcuts, out: Path) -> None:
    """shortcuts.csv, shortcuts.json and shortcuts.html; each whole or not at all."""
    write_rows(found, out / CSV)
    data = {"name": found.data.name, "split": "train", "n": len(found.score), "classes": list(found.data.classes)}
    model, declared = {"name": found.settings.model.name}, {(CHECK, measure.name): measure for measure in MEASURES}
    write_findings(out / JSON, found.findings, model=model, data=data, measures={CHECK: MEASURES})
    write_shortcuts_page(found.findings, out / PAGE, name=found.data.name, measures=declared)


def write_rows(found: Shortcuts, path: Path) -> None:
    """One row per training sample, those most likely bias-conflicting first."""
    data, split = found.data, found.data.train
    cluster = {i: c.number for c in found.clusters for i in c.positions}
    with growing_table(path, COLUMNS) as write_row:
        for rank, i in enumerate(found.order.tolist()):
            group = int(split.groups[i])
            write_row([
                rank, i, split.describe(i), data.classes[int(split.labels[i])], f"{found.score[i]:.6g}",
                f"{found.wrong[i]:.4g}", "" if found.difficulty is None else f"{found.difficulty[i]:.6g}",
                data.classes[int(found.biased_prediction[i])], cluster.get(i, ""),
                data.group_names[group] if group >= 0 and data.group_names else "",
            ])  # fmt: skip


def _rows(found: Shortcuts, positions: Tensor, models: dict[str, nn.Module]) -> list[dict[str, Any]]:
    """Pictures with each model's prediction and saliency."""
    if not len(positions):
        return []
    data, split = found.data, found.data.train
    images = split.read(positions)
    device = next((p.device for model in models.values() for p in model.parameters()), torch.device("cpu"))
    columns = {name: looks(model, images, device=device, classes=data.classes) for name, model in models.items()}
    return [
        {
            "png": png(image),
            "label": data.classes[int(split.labels[i])],
            "group": data.group_names[int(split.groups[i])] if data.group_names and split.groups[i] >= 0 else None,
            "score": float(found.score[i]),
            "position": i,
            "source": split.describe(i),
            "looks": {name: column[row] for name, column in columns.items()},
        }
        for row, (i, image) in enumerate(zip(positions.tolist(), images, strict=True))
    ]
