"""What a new last layer gains on data with a shortcut, and what it costs: ERM, then DFR and AFR on held-out images.

    python benchmarks/repair.py --sets digits-2 digits-10 [--seeds 5] [--jobs 1] [--out FILE]
    python benchmarks/repair.py --sets mnist-2 --root DATA ...             # DATA/mnist.npz
    python benchmarks/repair.py --sets waterbirds --waterbirds FOLDER --weights efficientnet_lite0.pt --device cuda ...

digits-10: the embedded digits in ten colours; 1 % of training are bias-conflicting. digits-2 and mnist-2 have, like
Waterbirds, two classes (under five, five and over) in two colours; mnist-2 takes 20,000 training images of MNIST. Test
sets have every colour equally often. 30 % of training are held out, which ERM does not see:
  balanced     colours equally often in every class, as DFR's paper has them (the validation split of Waterbirds)
  as trained   1 % bias-conflicting here too, as AFR's paper has them (a part of training)
waterbirds: EfficientNet-Lite0 with ImageNet weights, fine-tuned on 80 % of the training split. "balanced" is the set's
validation split, "as trained" the other 20 % of training (5 % bias-conflicting).
DFR needs the groups of held-out images. AFR uses them to choose γ and λ; "no groups" is without.

Worst-group accuracy is over pairs of class and colour; ten classes have 100 pairs of six test images, whose lowest is 0
for nearly any model: there it is the lower of bias-aligned and bias-conflicting accuracy. Intervals: of the mean over
seeds (Student's t). seconds: a repair without its audits on a clock; processor_seconds: with them, of all threads. Of
waterbirds features are computed on the GPU, and once, for "dfr, balanced", on the CPU (cpu_seconds).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from record import write_result

from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.biased import coloured
from holdfast.data.splits import Split, all_images, hold_out
from holdfast.metrics import mean_interval
from holdfast.repairs import Repair, repair
from holdfast.train import fit

CONFLICT, VAL, OF_WATERBIRDS, OF_MNIST = 0.01, 0.3, 0.2, 20_000
ERM: dict[str, Any] = {"method": "erm", "optimizer": "adamw", "lr": 3e-3, "batch_size": 64, "eval_every": 0}
FINE_TUNED: dict[str, Any] = {
    "method": "erm", "model": "timm:tf_efficientnet_lite0", "optimizer": "sgd", "lr": 1e-2, "weight_decay": 1e-3,
    "batch_size": 32, "resized_crop": 0.7, "flip": True, "eval_every": 0,
}  # fmt: skip
EPOCHS = {"digits-2": 20, "digits-10": 20, "mnist-2": 5, "waterbirds": 20}
ROWS: dict[str, tuple[str, str, bool]] = {
    "dfr, balanced": ("balanced", "dfr", True),
    "dfr, as trained": ("as trained", "dfr", True),
    "afr, balanced": ("balanced", "afr", True),
    "afr, as trained": ("as trained", "afr", True),
    "afr, balanced, no groups": ("balanced", "afr", False),
    "afr, as trained, no groups": ("as trained", "afr", False),
}
KEPT = ("accuracy", "bias_aligned_accuracy", "bias_conflicting_accuracy", "group_balanced_accuracy", "ece", "seconds",
        "processor_seconds", "cpu_seconds", "held_out", "held_out_conflicting")  # fmt: skip


def in_memory(split: Split, *, chosen: torch.Tensor | None = None, under: int | None = None) -> ArraySplit:
    """A split as arrays: a part of it, and with the classes "under" and "from" a number on."""
    part = split if chosen is None else split.subset(chosen)
    labels = part.labels if under is None else (part.labels >= under).long()
    return ArraySplit(all_images(part), labels, None if under else part.groups, origin="benchmark")


def digits(name: str, root: Path | None, seed: int) -> dict[str, Dataset]:
    """Training at 1 % with held-out images that are coloured either way; the images and the test set are the same."""
    source, classes = name.split("-")
    plain = load("digits", data_seed=seed) if source == "digits" else load(f"{root}/{source}.npz")
    order = torch.randperm(len(plain.train), generator=torch.Generator().manual_seed(seed))[:OF_MNIST]
    plain = replace(plain, train=in_memory(plain.train, chosen=order))
    if classes == "2":
        parts = {split: in_memory(own, under=5) for split, own in plain.splits.items()}
        plain = replace(plain, classes=("under five", "five and over"), **parts)
    train, val = hold_out(plain.train, VAL, seed)
    plain = replace(plain, train=train, val=val)
    made = coloured(plain, conflict=CONFLICT, seed=seed)
    other = coloured(plain, conflict=1 - 1 / int(classes), seed=seed)
    return {"as trained": made, "balanced": replace(made, val=other.val)}


def waterbirds(folder: Path, seed: int) -> dict[str, Dataset]:
    data = load(folder, image_size=160)
    data = replace(data, **{split: in_memory(own) for split, own in data.splits.items()})
    train, part = hold_out(data.train, OF_WATERBIRDS, seed)
    return {"balanced": replace(data, train=train), "as trained": replace(data, train=train, val=part)}


def worst(found: dict[str, float], name: str) -> float:
    if name == "digits-10":
        return min(found["bias_aligned_accuracy"], found["bias_conflicting_accuracy"])
    return found["worst_group_accuracy"]


def measures(made: Repair, which: int) -> dict[str, float]:
    assert made.audit is not None
    return {f.name: f.value for f in made.audit.files[which].findings if not f.where and f.value is not None}


def one_seed(name: str, seed: int, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    torch.set_num_threads(args.threads)
    birds = name == "waterbirds"
    sets = waterbirds(args.waterbirds, seed) if birds else digits(name, args.root, seed)
    settings = {**FINE_TUNED, "weights": str(args.weights)} if birds else ERM
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        run = fit(
            sets["as trained"], out=f"{place}/erm", epochs=args.epochs or EPOCHS[name], seed=seed, device=args.device,
            progress=False, **settings,
        )  # fmt: skip
        trained = time.perf_counter() - began
        for row, (held, by, groups) in ROWS.items():
            data = sets[held]
            assert data.val is not None
            kept = data.val if groups else ArraySplit(all_images(data.val), data.val.labels)
            place_of = f"{place}/{row.replace(', ', '-').replace(' ', '-')}"
            how: dict[str, Any] = {"by": by, "seed": seed, "workers": 0}
            device = args.device if birds else "cpu"
            begun = time.process_time()
            made = repair(run, data=replace(data, val=kept), out=place_of, device=device, **how)
            rows[row] = measures(made, 0) | {"seconds": made.seconds, "chosen": dict(made.chosen)}
            rows[row]["processor_seconds"] = time.process_time() - begun
            rows[row]["held_out"] = made.held_out
            rows[row]["held_out_conflicting"] = int((data.val.groups != data.val.labels).sum())
            rows["erm"] = measures(made, 1) | {"seconds": trained}
            if birds and row == "dfr, balanced" and seed == 0:
                alone = repair(run, data=data, out=f"{place}/cpu", device="cpu", audit=False, **how)
                rows[row]["cpu_seconds"] = alone.seconds
    return {
        row: {"worst_group_accuracy": worst(own, name)} | {key: own[key] for key in (*KEPT, "chosen") if key in own}
        for row, own in rows.items()
    }


def summary(seeds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """The mean of each number over seeds, and the gain in worst-group accuracy over ERM with its 95 % interval."""
    table: dict[str, Any] = {}
    for name in ("erm", *ROWS):
        keys = ("worst_group_accuracy", *(key for key in KEPT if key in seeds[0][name]))
        row: dict[str, Any] = {
            key: math.fsum(s[name][key] for s in seeds if key in s[name]) / sum(key in s[name] for s in seeds)
            for key in keys
        }
        if name != "erm":
            gains = [s[name]["worst_group_accuracy"] - s["erm"]["worst_group_accuracy"] for s in seeds]
            mean, low, high = mean_interval(torch.tensor(gains, dtype=torch.float64))
            row["gain"] = {"mean": mean, "low": low, "high": high, "seeds": gains}
            row["chosen"] = [s[name]["chosen"] for s in seeds]
        table[name] = row
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["digits-2", "digits-10"], choices=sorted(EPOCHS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="of ERM, instead of the set's own")
    parser.add_argument("--root", type=Path, help="where mnist.npz lies")
    parser.add_argument("--waterbirds", type=Path, help="the release, or benchmarks/pack_waterbirds.py's, unpacked")
    parser.add_argument("--weights", type=Path, help="ImageNet weights of EfficientNet-Lite0 by timm's names")
    parser.add_argument("--device", default="cpu", help="where ERM is trained")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    units = [(name, seed) for name in reversed(args.sets) for seed in range(args.seeds)]  # the longest first
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {unit: pool.submit(one_seed, *unit, args) for unit in units}
        for name in args.sets:
            figures[name] = summary([futures[name, seed].result() for seed in range(args.seeds)])
            for row, own in figures[name].items():
                gain = "".join(f", {key} {value:+.1%}" for key, value in own.get("gain", {}).items() if key != "seeds")
                said = f"worst group {own['worst_group_accuracy']:.1%}, {own['seconds']:.1f} s{gain}"
                print(f"{name}, {row}: {said} {own.get('chosen', '')}", flush=True)
    if args.out:
        write_result(args.out, figures, gpu=args.device != "cpu")


if __name__ == "__main__":
    main()
