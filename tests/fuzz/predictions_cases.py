"""Tables of predictions: scores of any kind, names of any spelling, rows of any number, with and without their data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from holdfast.audits.alignment.classes import ORDER
from holdfast.audits.alignment.outputs import KINDS
from holdfast.audits.alignment.predictions import read_predictions
from holdfast.data import ArraySplit, Dataset
from tests.fuzz.mutations import NAMES
from tests.fuzz.tables_cases import table

N = 6
CLASSES = ("cat", "dog", "great tit")


@cache
def _data() -> Dataset:
    images, labels = np.zeros((N, 2, 2), np.uint8), np.arange(N) % 3
    return Dataset(
        "mine", CLASSES, ArraySplit(images, labels, origin="train"), test=ArraySplit(images, labels, origin="t")
    )


def fuzz(random: Random, folder: Path) -> None:
    path = folder / random.choice(("case.csv", "case.csv", "case.parquet"))
    header, rows = _rows(random)
    extra = ("site",) if "site" in header and random.random() < 0.5 else ()
    path.write_bytes(table(random, header, rows, path.suffix))
    maps: tuple[Any, ...] = (
        *[None] * 12,
        ORDER,
        {"cat": "dog", "dog": [0, 2], "great tit": 1},
        {"cat": "cat"},
        {"x": 99},
    )
    found = read_predictions(
        path,
        data=random.choice((None, _data())),
        output=random.choice((*[None] * 8, *KINDS)),
        class_map=random.choice(maps),
        groups=extra,
    )
    logits = found.predictions.logits
    if logits.isnan().any() or len(logits) != len(found.ids) or logits.shape[1] != len(found.classes):
        raise AssertionError(f"logits {logits} of {found.classes}")
    if int(found.predictions.labels.max()) >= len(found.classes) or int(found.predictions.labels.min()) < 0:
        raise AssertionError(f"labels {found.predictions.labels} of {found.classes}")


def _rows(random: Random) -> tuple[list[str], list[list[Any]]]:
    prefix = random.choice(("", "", "prob_", "p:", "logit_", "score.", "log_prob_"))
    spelled = [random.choice((name, name.upper(), name.replace(" ", "_"))) for name in CLASSES]
    optional = [name for name in ("prediction", "group", "site", "confidence", "age") if random.random() < 0.5]
    optional += ["label"] * (random.random() < 0.85)
    places = random.choice(([], [], ["id"], ["position"], ["path"], ["id", "path"]))
    if random.random() < 0.1:
        header = ["image", "label", "confidence", "ood", "reason"]
    else:
        header = [*places, *optional, *([prefix + name for name in spelled] if random.random() < 0.8 else [])]
    odd = random.random() < 0.4
    scale = random.choice((1.0, 1.0, 1.0, 100.0))
    numbered = random.random() < 0.2
    rows = []
    for i in range(random.choice((0, 1, *[N] * 15, N + 1))):
        scores = [random.random() for _ in CLASSES]
        total = sum(scores) if random.random() < 0.9 else 1.0
        words: dict[str, Any] = {
            "label": str(i % 3) if numbered else CLASSES[i % 3], "prediction": random.choice(CLASSES),
            "group": "xy"[i % 2], "site": "uv"[i % 2], "confidence": 0.5, "age": float(i), "id": f"t[{i}]",
            "path": f"t[{i}]",
            "position": str(i), "image": f"t[{i}]", "ood": "no", "reason": "",
        }  # fmt: skip
        words |= {prefix + name: scale * s / total for name, s in zip(spelled, scores, strict=True)}
        row = [words[name] for name in header]
        if odd and row and random.random() < 0.3:
            at = random.randrange(len(row))
            row[at] = (
                random.choice(NAMES)
                if isinstance(row[at], str)
                else random.choice((float("nan"), float("inf"), -1.0, 1e38))
            )
        rows.append(row)
    if rows and random.random() < 0.1:
        rows[-1] = list(rows[0])
    return header, rows
