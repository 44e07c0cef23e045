"""Seconds that the checks accuracy, groups, slices and corruptions take on 10,000 images of CIFAR's size.

    python benchmarks/checks.py [--device cuda] [--images 10000] [--model cifar-resnet18] [--precision fp32]
                                [--out benchmarks/results/NAME.json]

Images and labels are random and the model is not trained: the time is the same, the numbers mean nothing. The first
call of a check is left out; the median of three follows. "corruptions" is the default, eight at two strengths;
"corruptions-1" is the eight at the paper's strength; "nineteen" adds all nineteen at five severities.
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

from holdfast.audits.subject import Subject
from holdfast.data import ArraySplit, Dataset
from holdfast.models import build_model
from holdfast.parts import CHECKS

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("accuracy", {}),
    "groups": ("groups", {}),
    "slices": ("slices", {}),
    "corruptions-1": ("corruptions", {"strengths": (1.0,)}),
    "corruptions": ("corruptions", {}),
    "imagenet-c": ("corruptions", {"strengths": (1.0,), "imagenet_c": True}),
}


def runner(check: str, settings: dict[str, Any]) -> Callable[[Subject], Any]:
    return lambda subject: tuple(CHECKS[check].made(**settings).run(subject))


RUNS = {name: runner(*given) for name, given in SETTINGS.items()}


def data_of(n: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    split = ArraySplit(
        torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator),
        torch.randint(0, 10, (n,), generator=generator),
        torch.randint(0, 4, (n,), generator=generator),
    )
    return Dataset("random", tuple(map(str, range(10))), train=split, test=split, group_names=tuple("abcd"))


def seconds(check: Callable[[Subject], Any], subject: Subject, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        _wait(subject.device)
        start = time.perf_counter()
        check(subject)
        _wait(subject.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] if repeats else times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--model", default="cifar-resnet18")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(RUNS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    device, data = torch.device(options.device), data_of(options.images)
    model = build_model(options.model, num_classes=10, mean=[0.5] * 3, std=[0.25] * 3).model.to(device)
    subject = Subject(model, data, device, batch_size=options.batch_size, precision=options.precision, workers=0)
    subject.predictions  # noqa: B018  (computed once and shared)
    figures: dict[str, Any] = {"images": options.images, "model": options.model, "precision": options.precision}
    for name in options.only:
        figures[name] = seconds(RUNS[name], subject, options.repeats)
        print(f"{name:14} {figures[name]:8.3f} s", flush=True)
    if options.out is not None:
        write_result(options.out, figures, commit=options.commit)


if __name__ == "__main__":
    main()
