"""Which test images a report shows, and what the model says of them all. Open it to change how many are kept.

Three kinds: pictures to look at (the surest mistakes), a few that show what the data looks like, and a sheet of small
ones with the answers to thousands of samples, which the report's browser filters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.audits.subject import Subject, draw
from holdfast.data.images import png, small_png
from holdfast.rng import derive

PICTURES = 24
EXAMPLES = 12
MOST_ANSWERS = 10_000
"""Answers to more samples than that are drawn at random; all mistakes would tell nothing of how rare they are."""
SMALL = 32
"""Side of a picture on the sheet, in pixels; larger images are shrunk."""
ON_A_SHEET = 400
SHEET_BYTES = 200_000
COLUMNS = 20


def shown_samples(subject: Subject) -> dict[str, Any]:
    """What the finding ``samples`` carries as evidence."""
    if not subject.has_images or not len(subject.split):
        return {"pictures": []}
    return {"pictures": pictures(subject), "examples": examples(subject), "listed": answers(subject)}


def pictures(subject: Subject) -> list[dict[str, Any]]:
    """Test images with what the model says of them: surest mistakes first, then the least sure hits."""
    seen = subject.predictions
    confidence = seen.logits.softmax(1).max(1).values
    order = torch.where(seen.correct, 1 + confidence, 1 - confidence).argsort(stable=True)[:PICTURES]
    return _described(subject, order)


def examples(subject: Subject) -> list[dict[str, Any]]:
    """What the data looks like: a test image per class. Where the shortcut of training is known, half of them are
    bias-aligned and half bias-conflicting, of the same classes.
    """
    labels, sides = subject.split.labels, subject.sides
    parts: dict[str, Tensor] = dict(sides) if sides else {"": torch.ones(len(labels), dtype=torch.bool)}
    found: list[dict[str, Any]] = []
    for side, members in parts.items():
        firsts = [(members & (labels == k)).nonzero().flatten()[:1] for k in range(subject.data.num_classes)]
        chosen = torch.cat([first for first in firsts if len(first)][: EXAMPLES // len(parts)] or [labels[:0]])
        found += [{**row, **({"bias": side} if side else {})} for row in _described(subject, chosen)]
    return found


def _described(subject: Subject, order: Tensor) -> list[dict[str, Any]]:
    if not len(order):
        return []
    seen, data = subject.predictions, subject.data
    confidence, prediction = seen.logits[order].softmax(1).max(1)
    return [
        {
            "png": png(image),
            "label": data.classes[seen.labels[i]],
            "prediction": data.classes[prediction[k]],
            "confidence": float(confidence[k]) if subject.has_scores else None,
            "group": data.group_names[seen.groups[i]] if data.group_names and seen.groups[i] >= 0 else None,
            "position": int(i),
            "source": subject.split.describe(int(i)),
        }
        for k, (i, image) in enumerate(zip(order.tolist(), subject.split.read(order), strict=True))
    ]


def answers(subject: Subject) -> dict[str, Any]:
    """Class, prediction, confidence (in thousandths) and group of test samples, one column each; some pictures.

    A column is a text of whole numbers, which takes a third of the bytes of a list in an indented file. of: how many
    samples there are. positions: of those listed, where these are not all. sheet: one PNG of pictures, row by row, and
    the places in the columns that they belong to.
    """
    seen, data = subject.predictions, subject.data
    total = len(seen.labels)
    kept = draw(total, MOST_ANSWERS, subject.seed, "clean/answers")
    confidence, prediction = seen.logits[kept].softmax(1).max(1)
    labels, groups = seen.labels[kept], seen.groups[kept]
    made: dict[str, Any] = {"of": total, "classes": list(data.classes), "groups": list(data.group_names)}
    made |= {"label": _column(labels), "prediction": _column(prediction)}
    made |= {"confidence": _column((confidence * 1000).round().long())} if subject.has_scores else {}
    made |= {"group": _column(groups)} if data.group_names else {}
    made |= {"positions": _column(kept)} if len(kept) < total else {}
    right = prediction == labels
    chosen = evenly_from_cells(torch.stack([labels, groups, right.long()], 1), subject.seed)[:ON_A_SHEET]
    return made | {"sheet": _sheet(subject, kept, chosen)}


def _column(values: Tensor) -> str:
    return " ".join(map(str, values.tolist()))


def evenly_from_cells(cells: Tensor, seed: int) -> Tensor:
    """Places of the rows (N, C) in an order that takes one of each kind in turn, so that no kind is without a picture.

    >>> cells = torch.tensor([[0], [0], [0], [1]])
    >>> cells[evenly_from_cells(cells, 0)[:2]].flatten().sort().values
    tensor([0, 1])
    """
    drawn = torch.randperm(len(cells), generator=torch.Generator().manual_seed(derive(seed, "clean/sheet")))
    kinds = torch.unique(cells[drawn], dim=0, return_inverse=True)[1]
    by_kind = kinds.argsort(stable=True)
    starts = torch.searchsorted(kinds[by_kind], kinds[by_kind])
    turn = torch.empty_like(by_kind)
    turn[by_kind] = torch.arange(len(cells)) - starts
    return drawn[turn.argsort(stable=True)]


def _sheet(subject: Subject, kept: Tensor, chosen: Tensor) -> dict[str, Any]:
    """Small pictures in one file of a limited size: half as many until they fit."""
    height, width = subject.split.shape[1:]
    side = min(SMALL, max(height, width))
    small = []
    for part in torch.split(chosen, 100):
        images = subject.split.read(kept[part])
        if images.shape[-2:] != (side, side):
            images = interpolate(images.float(), (side, side), mode="bilinear", antialias=True).round().clamp(0, 255)
        small.append(images.to(torch.uint8))
    images = torch.cat(small)
    while True:
        rows = -(-len(images) // COLUMNS)
        padded = images.new_zeros(rows * COLUMNS, *images.shape[1:])
        padded[: len(images)] = images
        channels = images.shape[1]
        grid = padded.view(rows, COLUMNS, channels, side, side).permute(2, 0, 3, 1, 4)
        text = small_png(grid.reshape(channels, rows * side, COLUMNS * side))
        if len(text) <= SHEET_BYTES or len(images) <= COLUMNS:
            return {"png": text, "side": side, "columns": COLUMNS, "places": _column(chosen[: len(images)])}
        images = images[: len(images) // 2]
