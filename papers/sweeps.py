"""Sweeps over short trainings of CIFAR-10, shared by the papers: one JSON file per training, and none is done twice."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast.data import Dataset
from holdfast.train import Run, fit


def sweep_parser(description: str, *, model: str, epochs: int) -> argparse.ArgumentParser:
    """The flags that every sweep has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--model", default=model)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--table", action="store_true")
    return parser


def train(data: Dataset, method: Mapping[str, object], args: argparse.Namespace, seed: int, **schedule: Any) -> Run:
    """One training as the flags say, with what the papers on CIFAR-10 have in common."""
    return fit(
        data,
        method=method,
        model=args.model,
        weight_decay=1e-4,
        epochs=args.epochs,
        batch_size=128,
        crop=4,
        flip=True,
        eval_every=0,
        precision=args.precision,
        channels_last=True,
        compile=args.compile,
        device=args.device,
        seed=seed,
        progress=False,
        **schedule,
    )


def run_jobs(jobs: Iterable[tuple[str, Callable[[], Mapping[str, Any]]]], out: Path, part: str = "0/1") -> None:
    """Do every n-th job from the i-th on (``part`` is i/n), for several processes on one GPU."""
    out.mkdir(parents=True, exist_ok=True)
    first, step = map(int, part.split("/"))
    for name, job in list(jobs)[first::step]:
        path = out / f"{''.join(c if c.isalnum() or c == '.' else '-' for c in name)}.json"
        if not path.exists():
            record = dict(job())
            path.write_text(json.dumps(record, indent=2) + "\n")
            print(json.dumps(record), flush=True)


def read_jobs(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
