"""Step and epoch times on a GPU, plain and with an ascent: ResNet-18 (CIFAR stem), batch 128, real CIFAR-10.

    python benchmarks/gpu_step.py --root DATA [--epochs 3] [--out benchmarks/results/gpu_step.json]

For each setting: the median time of a step alone (CUDA events over one batch), the time of a whole epoch with
crop and flip on the wall clock, and their ratio: what the data path costs. DATA holds cifar10.npz.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise
from pathlib import Path

import torch
from record import write_result

from holdfast.data import Dataset, load
from holdfast.devices import kernels
from holdfast.methods import Context, method_of
from holdfast.models import build_model
from holdfast.settings import TrainSettings, build
from holdfast.train.engine import Trainer
from holdfast.train.progress import Progress

BF16 = {"precision": "bf16", "channels_last": True}
SETTINGS = {
    "fp32 eager": {"capture": "off"},
    "fp32 captured": {},
    "tf32 captured": {"precision": "tf32", "channels_last": True},
    "bf16 eager": {**BF16, "capture": "off"},
    "bf16 captured": BF16,
    "bf16 compiled, captured": {**BF16, "compile": True},
    "bf16 captured, SAM": {**BF16, "ascent": "sam"},
    "bf16 captured, F-SAM": {**BF16, "ascent": "fsam"},
    "bf16 compiled, captured, SAM": {**BF16, "compile": True, "ascent": "sam"},
    "bf16 compiled, captured, F-SAM": {**BF16, "compile": True, "ascent": "fsam"},
    "bf16 compiled, captured, ASAM": {**BF16, "compile": True, "ascent": "asam"},
    "bf16 compiled, captured, Fisher F-SAM": {**BF16, "compile": True, "ascent": "fisher-fsam"},
}
COMMON = {"optimizer": "sgd", "lr": 0.05, "batch_size": 128, "crop": 4, "flip": True, "eval_every": 0}


def make_trainer(data: Dataset, net: str, changes: dict[str, object], *, epochs: int, device: str = "cuda") -> Trainer:
    settings = build(TrainSettings, {**COMMON, **changes, "epochs": epochs, "device": device})

    def make() -> torch.nn.Module:
        return build_model(net, num_classes=10, mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26)).model

    context = Context(10, data.train.labels, data.train.groups, epochs, make_model=make)
    state = method_of(settings).start(context)
    return Trainer(settings, data, make(), state, device=torch.device(device), folder=None, progress=Progress())


def step_time(trainer: Trainer, repeats: int = 200) -> float:
    """Median milliseconds of a step on one batch, measured on the device."""
    order = torch.arange(128)
    batch = next(iter(trainer.loader(trainer.data.train).batches(order)))
    loop, stream = trainer.settings.loop, torch.cuda.Stream()
    with kernels(loop.precision, deterministic=False), torch.cuda.stream(stream):
        for _ in range(20):
            trainer.now.step(batch)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            trainer.now.step(batch)
            event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = load("cifar10", root=args.root)
    figures = {}
    for name in args.only:
        trainer = make_trainer(data, "cifar-resnet18", SETTINGS[name], epochs=args.epochs)
        trainer.run()
        epoch = trainer.history[-1]["seconds"]
        steps = trainer.now.steps_per_epoch
        step = step_time(trainer)
        ratio = epoch * 1e3 / (steps * step)
        figures[name] = {"step_ms": step, "epoch_s": epoch, "epoch_over_steps": ratio}
        print(
            f"{name:38} step {step:7.3f} ms   epoch {epoch:7.3f} s   x{ratio:.3f}",
            flush=True,
        )
        del trainer
        torch.cuda.empty_cache()
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
