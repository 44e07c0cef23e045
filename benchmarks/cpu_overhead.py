"""An epoch of the engine against a bare hand-written loop over the same tensors and model, on the CPU.

    python benchmarks/cpu_overhead.py [--out benchmarks/results/cpu_overhead.json]

Both train the small convnet on the embedded digits in turns, epoch by epoch, so that a change in the machine's
speed meets both alike. Printed: the ratio of the lower quartiles, because whatever else the machine does only ever
adds time. It must not exceed 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from record import write_result
from torch import nn

from holdfast.data import load
from holdfast.data.splits import channel_statistics
from holdfast.models import build_model
from holdfast.train import fit

BATCH = 128
TRAINING = {"optimizer": "sgd", "lr": 0.05, "batch_size": BATCH, "eval_every": 0, "device": "cpu"}


def bare_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The loop anyone would write, with the loss read once at its end."""
    started = time.perf_counter()
    model.train()
    total = torch.zeros(())
    for index in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[index].float() / 255), labels[index])
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(index)
    total.item()
    return time.perf_counter() - started


def make(data) -> nn.Module:
    mean, std = channel_statistics(data.train)
    shape = data.shape
    return build_model("convnet", num_classes=10, in_channels=shape[0], image_size=shape[1], mean=mean, std=std).model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = load("coloured-digits")
    model = make(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    bare, engine = [], []
    for _ in range(args.rounds):
        bare += [bare_epoch(model, optimizer, data.train.images, data.train.labels) for _ in range(args.epochs)]
        result = fit(data, model=make(data), epochs=args.epochs, **TRAINING)
        engine += [record["seconds"] for record in result.history]
    bare_s, engine_s = (statistics.quantiles(seconds, n=4)[0] for seconds in (bare, engine))
    ratio = engine_s / bare_s
    print(f"bare loop  {bare_s * 1e3:8.1f} ms an epoch")
    print(f"engine     {engine_s * 1e3:8.1f} ms an epoch")
    print(f"ratio      {ratio:8.3f}  (at most 1.05)")
    if args.out:
        figures = {
            "bare_ms": bare_s * 1e3,
            "engine_ms": engine_s * 1e3,
            "ratio": ratio,
            "limit": 1.05,
        }
        write_result(args.out, figures)


if __name__ == "__main__":
    main()
