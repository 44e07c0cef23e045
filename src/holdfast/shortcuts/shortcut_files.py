"""What is written: one row a training sample, the numbers, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.audits.checks.saliency.saliency_maps import looks
from holdfast.data.splits import Split
from holdfast.data.tables import growing_table
from holdfast.png import png
from holdfast.reports import write_findings
from holdfast.reports.html import write_shortcuts_page
from holdfast.shortcuts.result import Shortcuts

CSV, JSON, PAGE = "shortcuts.csv", "shortcuts.json", "shortcuts.html"
COLUMNS = (
    "rank", "position", "source", "label", "score", "wrong", "difficulty", "probability", "biased_prediction",
    "cluster", "group",
)  # fmt: skip


def write(found: Shortcuts, out: Path) -> None:
    """shortcuts.csv, shortcuts.json and shortcuts.html; each whole or not at all."""
    write_rows(found, out / CSV)
    data = {"name": found.data.name, "split": "train", "n": len(found.score), "classes": list(found.data.classes)}
    write_findings(out / JSON, found.findings, model={"name": found.settings.model.name}, data=data)
    write_shortcuts_page(found.findings, out / PAGE, name=found.data.name)


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
                f"{found.member[i]:.4g}", data.classes[int(found.taken_for[i])], cluster.get(i, ""),
                data.group_names[group] if group >= 0 and data.group_names else "",
            ])  # fmt: skip


def rows(split: Split, positions: Tensor, models: dict[str, nn.Module], found: Shortcuts) -> list[dict[str, Any]]:
    """Pictures with what each model says of them and where it looks."""
    if not len(positions):
        return []
    images, data = split.read(positions), found.data
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
