"""Nearest neighbours against scikit-learn (and faiss where installed), what scoring adds to a forward pass, our VAE.

    OMP_NUM_THREADS=1 python benchmarks/detect.py --out benchmarks/results/detect_cpu.json

Competitors take turns, so that what else the machine does falls on all of them; medians are kept. ``knn`` must not be
slower than scikit-learn's brute force nor take more than twice faiss's time, a feature detector must not add more than
20 % to a classifier's forward pass, and our default VAE must learn the embedded digits in under a minute.
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

from holdfast.data import load
from holdfast.detect import (
    KNN,
    ClassifierExtractor,
    Energy,
    Features,
    Mahalanobis,
    MaxLogit,
    MinimiseSettings,
    ViM,
    train_vae,
)
from holdfast.detect.scores import CELLS, Bank, neighbours
from holdfast.models import build_model
from holdfast.models.vae import VAESettings
from holdfast.module_state import evaluating


def alternating(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each call. They take turns, and one round before the first is not counted."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if number:
                spent[name].append(time.perf_counter() - started)
    return {name: statistics.median(own) for name, own in spent.items()}


def time_neighbours(bank: torch.Tensor, x: torch.Tensor, k: int, rounds: int) -> dict[str, float]:
    """Seconds of each, and how far the distances are from those of scikit-learn in double precision, relatively."""
    fitted, ours = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(bank.numpy()), Bank.of(bank)
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: neighbours(x, ours, k=k)[0],
        "scikit-learn": lambda: fitted.kneighbors(x.numpy()),
    }
    try:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatL2(bank.shape[1])
        index.add(bank.numpy())
        calls["faiss"] = lambda: index.search(x.numpy(), k)
    except ImportError:
        pass
    few = x[:50]
    exact = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(bank.double().numpy())
    truth = torch.from_numpy(exact.kneighbors(few.double().numpy())[0])
    error = ((neighbours(few, ours, k=k)[0] - truth) / truth).abs().max()
    return {**alternating(calls, rounds), "largest relative error": float(error)}


def overhead(rounds: int, *, bank: int, batch: int = 64) -> dict[str, float]:
    """Share that looking, and then each detector, adds to a ResNet-18's forward pass of so many 32×32 images."""
    built = build_model("cifar-resnet18", num_classes=10, in_channels=3)
    extractor, x = ClassifierExtractor(built.model), torch.rand(batch, 3, 32, 32)

    def forward() -> torch.Tensor:
        with evaluating(built.model), torch.no_grad():
            return built.model(x)

    seen, draw = extractor.extract(x), torch.Generator().manual_seed(0)
    given = Features(
        features=torch.randn(bank, 512, generator=draw),
        logits=torch.randn(bank, 10, generator=draw),
        labels=torch.arange(bank) % 10,
    )
    calls: dict[str, Callable[[], Any]] = {"forward": forward, "look": lambda: extractor.extract(x)}
    for detector in (MaxLogit(), Energy(), KNN(), Mahalanobis(), ViM(extractor)):
        detector.fit_features(given)
        calls[detector.name] = lambda d=detector: d.score_features(seen)
    spent = alternating(calls, rounds)
    plain = spent.pop("forward")
    return {name: own / plain - (name == "look") for name, own in spent.items()}


def digits() -> dict[str, float]:
    """Our default VAE, trained as ``holdfast detect fit`` does it, on the embedded digits."""
    images = load("digits").train
    started = time.perf_counter()
    trained = train_vae(images, VAESettings(images.shape), MinimiseSettings())
    first, last = trained.history[0], trained.history[-1]
    return {"seconds": time.perf_counter() - started, "first_loss": first["loss"], "last_loss": last["loss"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bank", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", help="what the record should say of the machine")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    bank = torch.randn(args.bank, args.width, generator=draw)
    x = torch.randn(args.queries, args.width, generator=draw)
    times = time_neighbours(bank, x, args.k, args.rounds)
    for name, value in times.items():
        print(f"{name:24} {value:10.3g}")
    for rival, most in (("scikit-learn", 1), ("faiss", 2)):
        if rival in times:
            print(f"ours / {rival:18} {times['ours'] / times[rival]:.2f} (at most {most})")
    added = overhead(args.rounds, bank=args.bank)
    for name, share in added.items():
        print(f"{name:12} adds {100 * share:6.1f} % to a forward pass")
    vae = digits()
    print(f"VAE on the embedded digits: {vae['seconds']:.1f} s, loss {vae['first_loss']:.1f} to {vae['last_loss']:.1f}")
    if args.out:
        neighbour_settings = {"bank": args.bank, "queries": args.queries, "width": args.width, "k": args.k}
        write_result(
            args.out,
            {
                "neighbours_s": times,
                "neighbours_settings": neighbour_settings,
                "memory_of_distances_bytes": 4 * CELLS,
                "added_to_a_forward_pass": added,
                "vae_on_digits": vae,
                "note": args.note,
            },
        )


if __name__ == "__main__":
    main()
