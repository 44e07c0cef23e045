"""λ1 and λ1/λ5 of a trained network: on few images, on many, and an interval that holds the value of many.

    python benchmarks/curvature_trained.py --device cuda --root DATA [--out FILE]     # ResNet-18 on CIFAR-10
    python benchmarks/curvature_trained.py --epochs 3 --population 400 --sizes 50 --draws 3     # a rehearsal on digits

The network is trained first (bf16 on a GPU, crops and flips). The population is a fixed random part of the training
set. Samples of it are drawn without overlap. λ1 of a sample A is on average above that of the population (Jensen); the
curvature vᵀHv along its eigenvector v, measured on another sample B, is on average below it, whatever v is. So the
interval goes from the lower end of Student's interval for the second to the upper end of that for the first, over the
samples. It has no negative end unless the measurements have. λ1/λ5 has no such bounds: its interval is Student's over
the logarithms of the samples' ratios, and says where ratios of samples of this size lie, not that of the population.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import write_result
from scipy import stats

from holdfast.audits.checks.curvature.eigenvalues import batches, spectrum
from holdfast.audits.subject import Subject
from holdfast.curvature import hessian_operator, rayleigh
from holdfast.data import load
from holdfast.devices import exact
from holdfast.losses import cross_entropy
from holdfast.train import fit


def ends(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval for a mean.

    >>> [round(end, 3) for end in ends([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    reach = stats.t.ppf((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - float(reach), statistics.fmean(values) + float(reach)


def sampled(subject: Subject, parts: Sequence[torch.Tensor]) -> dict[str, Any]:
    """λ1, λ5 of every part of the training set, and the curvature along each λ1's direction on the next part."""
    top, fifth, elsewhere = [], [], []
    for part, other in zip(parts, (*parts[1:], parts[0]), strict=True):
        found = spectrum(subject, subject.data.train.subset(part), ggn=False)
        with exact(subject.device):
            there = hessian_operator(subject.model, batches(subject, subject.data.train.subset(other)), cross_entropy)
            value, _ = rayleigh(there, found.vectors[:1])
        top.append(float(found.eigenvalues[0]))
        fifth.append(float(found.eigenvalues[-1]))
        elsewhere.append(float(value))
    made: dict[str, Any] = {"n": len(parts[0]), "draws": len(parts), "λ1": top, "λ5": fifth, "on another": elsewhere}
    made["λ1, interval"] = [ends(elsewhere)[0], ends(top)[1]]
    if min(fifth) > 0:
        made["λ1/λ5"] = [a / b for a, b in zip(top, fifth, strict=True)]
        made["λ1/λ5, interval"] = np.exp(ends(np.log(made["λ1/λ5"]).tolist())).tolist()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--root", type=Path, help="folder of cifar10.npz; without it the embedded digits")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--population", type=int, default=10_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[250, 1000])
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = load("cifar10", root=args.root) if args.root else load("digits")
    model = "cifar-resnet18" if args.root else "convnet"
    started = time.perf_counter()
    more = {"precision": "bf16", "channels_last": True} if args.device == "cuda" else {}
    augmented = {"crop": 4, "flip": True} if args.root else {}
    run = fit(data, model=model, epochs=args.epochs, device=args.device, seed=args.seed, progress=False,
              eval_every=0, **augmented, **more)  # fmt: skip
    figures: dict[str, Any] = {
        "model": model,
        "data": data.name,
        "epochs": args.epochs,
        "test accuracy": run["test_accuracy"],
        "training seconds": time.perf_counter() - started,
    }
    print(figures, flush=True)
    subject = Subject(run.model.eval(), data, torch.device(args.device), workers=0, batch_size=1000)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(args.seed))[: args.population]
    for size in args.sizes:
        started = time.perf_counter()
        row = figures[f"samples of {size}"] = sampled(subject, order[: size * args.draws].split(size))
        row["seconds"] = time.perf_counter() - started
        print(size, {name: value for name, value in row.items() if "interval" in name or name == "λ1"}, flush=True)
        if args.out:  # after every size: what is there is kept if the time runs out
            write_result(args.out, figures)
    started = time.perf_counter()
    whole = spectrum(subject, data.train.subset(order), ggn=False)
    values = whole.eigenvalues.tolist()
    figures["population"] = {
        "n": len(order),
        "λ1": values[0],
        "λ5": values[-1],
        "λ1/λ5": values[0] / values[-1] if values[-1] > 0 else None,
        "residuals": whole.residuals.tolist(),
        "converged": whole.converged.tolist(),
        "seconds": time.perf_counter() - started,
    }
    for size in args.sizes:
        low, high = figures[f"samples of {size}"]["λ1, interval"]
        figures[f"samples of {size}"]["holds the population's λ1"] = low <= values[0] <= high
    print(figures["population"], flush=True)
    if args.out:
        write_result(args.out, figures)


if __name__ == "__main__":
    main()
