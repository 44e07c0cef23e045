"""Nearest neighbours against scikit-learn (and faiss where installed), and what scoring adds to a forward pass.

    python benchmarks/detect.py [--bank 50000] [--queries 2000] [--width 512] [--out benchmarks/results/detect.json]

Printed: ratios. ``knn`` must not be slower than scikit-learn's brute force nor take more than twice faiss's time; a
feature detector must not add more than 20 % to a classifier's forward pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import write_result
from sklearn.neighbors import NearestNeighbors

from holdfast.borrow import evaluating
from holdfast.detect import KNN, ClassifierSight, Energy, Mahalanobis, ViM
from holdfast.detect.scores import Bank, neighbour_distances
from holdfast.models import build_model


def seconds(call: Callable[[], Any], rounds: int) -> float:
    """The least of several: whatever else the machine does only adds time."""
    spent = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    return min(spent)


def neighbours(bank: torch.Tensor, x: torch.Tensor, k: int, rounds: int) -> dict[str, float]:
    fitted, ours = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(bank.numpy()), Bank.of(bank)
    figures = {
        "ours_s": seconds(lambda: neighbour_distances(x, ours, k=k), rounds),
        "sklearn_s": seconds(lambda: fitted.kneighbors(x.numpy()), rounds),
    }
    try:
        import faiss
    except ImportError:
        return figures
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatL2(bank.shape[1])
    index.add(bank.numpy())
    return {**figures, "faiss_s": seconds(lambda: index.search(x.numpy(), k), rounds)}


def overhead(rounds: int) -> dict[str, float]:
    """Share that each detector adds to a ResNet-18's forward pass, 512 images of 32×32 at a time."""
    built = build_model("cifar-resnet18", num_classes=10, in_channels=3)
    sight, x = ClassifierSight(built.model), torch.rand(64, 3, 32, 32)

    def forward() -> torch.Tensor:
        with evaluating(built.model), torch.no_grad():
            return built.model(x)

    plain = seconds(forward, rounds)
    seen = sight.look(x)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5000) % 10
    bank = torch.randn(5000, 512, generator=generator)
    logits = torch.randn(5000, 10, generator=generator)
    added = {"look": seconds(lambda: sight.look(x), rounds) / plain - 1}
    for detector in (Energy(), KNN(), Mahalanobis(), ViM(sight)):
        given = type(seen)(features=bank, logits=logits, labels=labels)
        detector.fit_features(given)
        added[detector.name] = seconds(lambda d=detector: d.score_features(seen), rounds) / plain
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bank", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    bank = torch.randn(args.bank, args.width, generator=generator)
    x = torch.randn(args.queries, args.width, generator=generator)
    times = neighbours(bank, x, args.k, args.rounds)
    for name, value in times.items():
        print(f"{name:12} {value:8.2f}")
    print(f"ours / scikit-learn {times['ours_s'] / times['sklearn_s']:.2f} (at most 1)")
    if "faiss_s" in times:
        print(f"ours / faiss        {times['ours_s'] / times['faiss_s']:.2f} (at most 2)")
    added = overhead(args.rounds)
    for name, share in added.items():
        print(f"{name:12} adds {100 * share:6.1f} % to a forward pass")
    print(f"median {100 * statistics.median(added.values()):.1f} %")
    if args.out:
        write_result(args.out, {**times, "added": added})


if __name__ == "__main__":
    main()
