"""Step and epoch times on a GPU, plain and with an ascent: ResNet-18 (CIFAR stem), batch 128, real CIFAR-10.

    python benchmarks/gpu_step.py --root DATA [--epochs 3] [--out benchmarks/results/gpu_step.json]
    python benchmarks/gpu_step.py --root DATA --defaults [--out benchmarks/results/gpu_defaults.json]

For each setting: the median time of a step alone (CUDA events over one batch), the time of a whole epoch with
crop and flip on the wall clock, and their ratio: what the data path costs; and the time of the first epoch beyond that
of the last, which compiling takes. DATA holds cifar10.npz.

--defaults: what a user gets who gives no such flag, for a short and a long training, against the best flags: by the
step, and by the whole training with the time to compile, which is what one waits for. And what the choice to compile
rests on: ``settings/device_defaults.py`` estimates from the layers and activations of a network what a step saves and
how long compiling takes; both are measured here. Compiled kernels that torch has on disk from before are
not used: each network compiles into an empty cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from record import write_result

from holdfast.data import Dataset, load
from holdfast.devices import kernels
from holdfast.methods import Context, method_of
from holdfast.models import build_model
from holdfast.settings import TrainSettings, build, flatten
from holdfast.settings.device_defaults import DEVICE_KEYS, break_even_steps, choose_for_device
from holdfast.train.engine import Trainer
from holdfast.train.progress import Progress
from holdfast.train.training_facts import device_facts_of

PLAIN = {"precision": "fp32", "channels_last": False, "compile": False}
BF16 = {"precision": "bf16", "channels_last": True, "compile": False}
SETTINGS = {
    "fp32 eager": {**PLAIN, "capture": "off"},
    "fp32 captured": PLAIN,
    "tf32 captured": {**BF16, "precision": "tf32"},
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
NETWORKS = ("cifar-resnet18", "resnet18", "convnet")
LONG = 1_000
"""Epochs of a training that is long by any measure."""
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
    order = torch.arange(trainer.settings.loop.batch_size)
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


def timed(data: Dataset, net: str, changes: dict[str, Any], epochs: int) -> dict[str, float]:
    """compile_s: what the first epoch takes beyond the last; of a captured step that is little but compiling."""
    trainer = make_trainer(data, net, changes, epochs=epochs)
    trainer.run()
    first, last = trainer.history[0]["seconds"], trainer.history[-1]["seconds"]
    step = step_time(trainer)
    found = {"step_ms": step, "epoch_s": last, "compile_s": first - last}
    found["epoch_over_steps"] = last * 1e3 / (trainer.now.steps_per_epoch * step)
    del trainer
    torch.cuda.empty_cache()
    return found


def chosen(data: Dataset, net: str, epochs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(What the defaults make of a training of so many epochs, what the choice to compile rests on)."""
    settings = build(TrainSettings, {**COMMON, "epochs": epochs, "device": "cuda"})
    network = build_model(net, num_classes=10, mean=(0.5,) * 3, std=(0.25,) * 3).model
    facts = device_facts_of(settings, data, network, torch.device("cuda"))
    flat = flatten(choose_for_device(settings, facts)[0])
    basis = {"layers": facts.layers, "activations": facts.activations, "break_even": break_even_steps(facts, 128)}
    return {key: flat[key] for key in DEVICE_KEYS}, basis


def defaults(data: Dataset, net: str, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = place
        best = {}
        for name, changes in (("captured", BF16), ("compiled", {**BF16, "compile": True})):
            best[name] = found = timed(data, net, changes, epochs)
            shown = f"step {found['step_ms']:7.3f} ms   compiling and capturing {found['compile_s']:6.1f} s"
            print(f"{net:14} {name:10} {shown}", flush=True)
    figures: dict[str, Any] = {"flags": best}
    for length in (30, LONG):
        values, basis = chosen(data, net, length)
        figures[f"chosen for {length} epochs"] = values
        own = "compiled" if values["compile"] == "on" else "captured"
        steps = length * -(-len(data.train) // 128)
        whole = {name: found["compile_s"] + steps * found["step_ms"] / 1e3 for name, found in best.items()}
        for what, by in (("step", {name: found["step_ms"] for name, found in best.items()}), ("training", whole)):
            figures[f"{what} over best for {length} epochs"] = by[own] / min(by.values())
    saved = (best["captured"]["step_ms"] - best["compiled"]["step_ms"]) / 1e3
    longer = best["compiled"]["compile_s"] - best["captured"]["compile_s"]
    figures |= basis | {
        "saved_s": saved,
        "compile_s": longer,
        "break_even_measured": longer / saved if saved > 0 else None,
    }
    print(f"{net}: " + ", ".join(f"{key} {value}" for key, value in figures.items() if key != "flags"), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = load("cifar10", root=args.root)
    figures: dict[str, Any] = {}
    if args.defaults:
        figures = {net: defaults(data, net, args.epochs) for net in NETWORKS}
    for name in [] if args.defaults else args.only:
        figures[name] = found = timed(data, "cifar-resnet18", SETTINGS[name], args.epochs)
        shown = f"step {found['step_ms']:7.3f} ms   epoch {found['epoch_s']:7.3f} s   x{found['epoch_over_steps']:.3f}"
        print(f"{name:38} {shown}   first epoch {found['compile_s']:+.1f} s", flush=True)
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
