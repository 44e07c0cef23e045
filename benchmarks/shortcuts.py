"""How well ``holdfast shortcuts`` ranks the samples that conflict with a known shortcut, and how long it takes.

    python benchmarks/shortcuts.py [--out FILE]                              # shortcuts of several strengths in digits
    python benchmarks/shortcuts.py --data corrupted-cifar10-lff-0 --root DATA --conflict 0.05 \
        --model torchvision:resnet18 --device cuda --precision bf16 --channels-last [--out FILE]

Printed: the estimated share of bias-conflicting samples, seconds, and, where there are group labels, which only judge:
average precision of the ranking and of other scores from the same trainings, the base rate, their ratio, and how many
of the clusters found are of one group throughout.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import write_result

from holdfast.data import Dataset, load
from holdfast.data.biased import background, coloured, watermark
from holdfast.data.splits import aligned_groups
from holdfast.detect.evaluation import evaluate_scores
from holdfast.shortcuts import Shortcuts, find_shortcuts

EMBEDDED: dict[str, Callable[[int], Dataset]] = {
    "coloured, 5 %": lambda seed: load("coloured-digits", conflict=0.05, data_seed=seed),
    "coloured, 2 %": lambda seed: load("coloured-digits", conflict=0.02, data_seed=seed),
    "coloured, 1 %": lambda seed: load("coloured-digits", conflict=0.01, data_seed=seed),
    "background, 2 %": lambda seed: background(load("digits", data_seed=seed), conflict=0.02, seed=seed),
    "corner mark, 5 %": lambda seed: watermark(load("digits", image_size=20, data_seed=seed), conflict=0.05, seed=seed),
    "tint 0.3, 5 %": lambda seed: coloured(load("digits", data_seed=seed), conflict=0.05, tint=0.3, seed=seed),
    "tint 0.15, 5 %": lambda seed: coloured(load("digits", data_seed=seed), conflict=0.05, tint=0.15, seed=seed),
    "no shortcut": lambda seed: load("digits", data_seed=seed),
}
"""By data seed: from the plainest shortcut to one that is hardly easier than the digits themselves, and to none."""


def judged(found: Shortcuts) -> dict[str, float]:
    """Average precision of every score that the same trainings give."""
    split = found.data.train
    conflicting = split.groups != aligned_groups(split.labels, split.groups, found.data.num_classes)[split.labels]
    ends = torch.stack([s.probabilities for s in found.biased_models]).mean(0)
    scores = {
        "score": found.score,
        "one seed": found.biased_models[0].score,
        "errors over epochs": found.wrong,
        "last epoch": 1 - ends.gather(1, split.labels[:, None])[:, 0],
    }
    if found.difficulty is not None:
        scores["LfF's weight"] = found.difficulty
    return {name: evaluate_scores(s, conflicting, resamples=1).ranking["ap"].value for name, s in scores.items()}


def measure(data: Dataset, **settings: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        started, busy = time.perf_counter(), time.process_time()
        found = find_shortcuts(data, out=out, **settings)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
    share = found.share
    seen = {
        "seconds": seconds,
        "processor_seconds": busy,
        "samples": len(found.score),
        "estimated_share": [share.value, share.low, share.high],
        "suspected": int((found.probability >= 0.5).sum()),
        "kinds": len(found.clusters),
        "notes": [str(note) for note in found.notes],
    }
    if found.average_precision is None or found.base_rate is None:
        return seen
    return seen | {
        "base_rate": found.base_rate,
        "average_precision": found.average_precision,
        "lift": found.average_precision / found.base_rate,
        "kinds_of_one_group": sum(cluster.group is not None and cluster.group[1] == 1 for cluster in found.clusters),
        "by_score": judged(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a set by name; by default several shortcuts in the embedded digits")
    parser.add_argument("--root")
    parser.add_argument("--conflict", type=float)
    parser.add_argument("--data-seed", type=int, default=0)
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    settings = {
        key: getattr(args, key)
        for key in (
            "model", "epochs", "seeds", "seed", "batch_size", "lr", "device", "precision", "channels_last", "compile",
        )
    }  # fmt: skip
    sets = EMBEDDED
    if args.data:
        name = args.data if args.conflict is None else f"{args.data}, {100 * args.conflict:g} %"
        sets = {name: lambda seed: load(args.data, root=args.root, conflict=args.conflict, data_seed=seed)}
    figures: dict[str, Any] = {}
    for name, make in sets.items():
        started = time.perf_counter()
        data = make(args.data_seed)
        loading = time.perf_counter() - started
        figures[name] = measure(data, **settings) | {"loading_seconds": loading}
        row = figures[name]
        share, low, high = row["estimated_share"]
        print(
            f"{name:28} share {share:.4f} ({low:.4f} to {high:.4f})   {row['kinds']} kinds   {row['seconds']:.1f} s, "
            f"{row['processor_seconds']:.1f} s of the processor (+ {loading:.1f} s loading)",
            flush=True,
        )
        if "by_score" in row:
            print(
                f"    AP {row['average_precision']:.3f} = {row['lift']:.1f} x base rate {row['base_rate']:.4f}, "
                f"{row['kinds_of_one_group']} kinds of one group: "
                + "   ".join(f"{k} {v:.3f}" for k, v in row["by_score"].items()),
                flush=True,
            )
        for note in row["notes"]:
            print(f"    {note}", flush=True)
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
