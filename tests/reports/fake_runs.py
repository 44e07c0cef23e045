"""Run folders as a training would leave them, made without one."""

from __future__ import annotations

import base64
import io
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image, ImageDraw

from holdfast.reports import write_findings
from holdfast.types import Finding

COLOURS = {"red": (214, 69, 65), "blue": (65, 105, 214), "green": (46, 150, 90), "amber": (220, 160, 30)}
SKILL = {"erm": (0.985, 0.66), "lff": (0.955, 0.84), "jtt": (0.97, 0.78)}
"""Accuracy on aligned and on conflicting samples."""
CLASSES = tuple("0123456789")


def interval(value: float, n: int) -> tuple[float, float]:
    half = 1.96 * math.sqrt(value * (1 - value) / n)
    return max(0.0, value - half), min(1.0, value + half)


def finding(value: float | None, n: int, **where: str) -> Finding:
    low, high = (None, None) if value is None else interval(value, n)
    if "bias" in where:
        return Finding("groups", f"bias_{where['bias']}_accuracy", value, n, low, high)
    part = {("class" if key == "class_" else key): name for key, name in where.items()}
    return Finding("accuracy", "accuracy", value, n, low, high, part)


def png(text: str, colour: tuple[int, int, int]) -> str:
    image = Image.new("RGB", (16, 16), (12, 12, 16))
    ImageDraw.Draw(image).text((5, 2), text[:1], fill=colour)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def fake_findings(method: str, seed: int, *, classes: Sequence[str] = CLASSES) -> list[Finding]:
    """What the checks accuracy and groups say of one run: with an empty group, and pictures."""
    draw = random.Random(f"{method} {seed}")
    aligned, conflicting = (share + draw.gauss(0, 0.008) for share in SKILL.get(method, (0.96, 0.8)))
    average = (aligned * 150 + conflicting * 450) / 600
    found = [
        finding(average, 600),
        Finding("accuracy", "nll", 0.1 + 2.2 * (1 - average), 600),
        *(finding(min(1.0, max(0.0, draw.gauss(average, 0.06))), 60, class_=c) for c in classes),
        *(finding(min(1.0, max(0.0, draw.gauss(average, 0.03))), 150, group=g) for g in COLOURS),
        finding(None, 0, group="violet"),
        finding(aligned, 150, bias="aligned"),
        finding(conflicting, 450, bias="conflicting"),
        Finding("groups", "harmonic_mean", 2 * aligned * conflicting / (aligned + conflicting), 600),
    ]
    pictures = []
    for position in range(14):
        label, colour = draw.choice(classes), draw.choice(list(COLOURS))
        wrong = position < 9
        pictures.append({
            "png": png(label, COLOURS[colour]),
            "label": label,
            "prediction": draw.choice([c for c in classes if c != label]) if wrong else label,
            "confidence": draw.uniform(0.4, 1.0),
            "group": colour,
            "position": position * 37,
            "source": f"test sample {position * 37}",
        })  # fmt: skip
    return [*found, Finding("accuracy", "samples", None, len(pictures), evidence={"pictures": pictures})]


def fake_metrics(method: str, seed: int, *, epochs: int = 30) -> list[dict[str, Any]]:
    draw = random.Random(f"{method} {seed} curve")
    final = SKILL.get(method, (0.96, 0.8))
    records = []
    for epoch in range(1, epochs + 1):
        learnt = 1 - math.exp(-epoch / 5)
        test = 0.1 + (final[0] / 4 + 3 * final[1] / 4 - 0.1) * learnt + draw.gauss(0, 0.008)
        record = {
            "stage": 0,
            "epoch": epoch,
            "step": epoch * 9,
            "lr": 0.05 * (1 + math.cos(math.pi * epoch / epochs)) / 2,
            "train_loss": 2.3 * math.exp(-epoch / 5) + 0.05 + abs(draw.gauss(0, 0.02)),
            "train_accuracy": min(1.0, 0.1 + 0.89 * learnt + draw.gauss(0, 0.005)),
            "seconds": 0.21 + draw.uniform(0, 0.02),
            "images_per_second": 5700 + draw.uniform(-200, 200),
        }
        if epoch % 2 == 0:
            record |= {"test_accuracy": test, "test_loss": 0.2 + 2.2 * (1 - test)}
        records.append(record)
    return records


def write_run(
    folder: Path,
    method: Any,
    seed: int,
    *,
    findings: Iterable[Finding] | None = None,
    **settings: Any,
) -> Path:
    """One finished run."""
    name = method["name"] if isinstance(method, dict) else method
    folder.mkdir(parents=True)
    values = {
        "data": "coloured-digits", "conflict": 0.05, "model": "convnet", "method": method, "optimizer": "sgd",
        "lr": 0.05, "momentum": 0.9, "betas": [0.9, 0.999], "clip": None, "epochs": 30, "batch_size": 128,
        "flip": False, "seed": seed, **settings,
    }  # fmt: skip
    environment = {
        "holdfast": "0.1.0", "torch": "2.11.0", "python": "3.11.9", "device": "cpu",
        "started": f"2026-03-01T10:0{seed}:00Z", "command": f"holdfast train --method {name} --seed {seed}",
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump({**values, "environment": environment}, sort_keys=False))
    lines = (json.dumps(record) for record in fake_metrics(name, seed))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = fake_findings(name, seed) if findings is None else findings
    write_findings(
        folder / "findings.json", found,
        model={"name": "convnet", "parameters": 94_474}, data={"name": "coloured-digits", "test": 600},
    )  # fmt: skip
    return folder


def write_runs(root: Path, methods: Iterable[str] = ("erm", "lff"), seeds: Iterable[int] = (0, 1, 2)) -> list[Path]:
    """One folder a method and seed."""
    seeds = tuple(seeds)
    return [write_run(root / f"{method}-{seed}", method, seed) for method in methods for seed in seeds]
