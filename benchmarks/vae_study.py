"""The VAE report, rerun and beaten: three seeds, its mistakes on and off. Tables and curves go to OUT.

    python benchmarks/vae_study.py --root DATA --out runs/vae-study --device cuda [--minutes 8] [--part 1/3]
    python benchmarks/vae_study.py --data digits --out runs/vae-study-digits --quick        (a CPU, a minute)
    python benchmarks/vae_study.py --out runs/vae-study --collect

Each job leaves one JSON file in OUT; the same command continues a study that was stopped.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from holdfast.data.anomalies import AnomalySet, make_digits_anomalies, make_fashion_anomalies
from holdfast.detect.study import read_study, run_study
from holdfast.detect.study_jobs import QUICK, StudySettings
from holdfast.detect.study_tables import tables


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Loss over epochs by latent size and by learning rate, a line a seed: the report's figures 2 and 3."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    terms = ("loss", "reconstruction", "kl")
    rows = {"latent": lambda s: s["lr"] == 1e-3, "lr": lambda s: s["latent"] == 16}
    figure, axes = plt.subplots(len(rows), len(terms), figsize=(12, 6), squeeze=False)
    fixed = [r for r in records if r.get("settings", {}).get("sigma") is not None]
    for line, (key, wanted) in zip(axes, rows.items(), strict=True):
        own = [r for r in fixed if wanted(r["settings"])]
        values = sorted({r["settings"][key] for r in own})
        for axis, term in zip(line, terms, strict=True):
            for record in own:
                number = values.index(record["settings"][key])
                label = f"{key} {values[number]:g}" if record["seed"] == min(r["seed"] for r in own) else None
                curve = [epoch[term] for epoch in record["history"]]
                axis.plot(range(1, len(curve) + 1), curve, color=f"C{number}", lw=0.8, label=label)
            axis.set(title=term, xlabel="epoch")
        line[0].legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def collect(out: Path) -> str:
    """Tables and curves of all results of a folder; nothing is trained."""
    records = read_study(out)
    text = tables(records)
    (out / "study.md").write_text(text)
    draw(records, out / "training.svg")
    return text


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    return int(number), int(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=("fashion", "digits"), default="fashion")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--model", default="cifar-resnet18")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--minutes", type=float, help="start nothing after so long")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="I/N", help="take every N-th unit, the I-th first"
    )
    parser.add_argument("--collect", action="store_true", help="only make the tables of what is there")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.collect:
        print(collect(args.out))
        return
    if args.quick:
        settings = replace(QUICK, device=args.device)
    else:
        settings = StudySettings(
            seeds=args.seeds, epochs=args.epochs, model=args.model, precision=args.precision, device=args.device
        )

    def make(seed: int) -> AnomalySet:
        if args.data == "digits":
            return make_digits_anomalies(seed=seed)
        return make_fashion_anomalies(root=args.root, seed=seed)

    broken = run_study(
        make,
        args.out,
        settings,
        part=args.part,
        minutes=args.minutes,
        note=lambda text: print(text, flush=True),
    )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
