"""How well ``holdfast shortcuts`` tells data with a shortcut from data without one, and ranks the conflicting samples.

    python benchmarks/shortcuts.py --root DATA [--out FILE]     # the test; DATA: mnist, fashion_mnist, cifar10 as .npz
    python benchmarks/shortcuts.py --root DATA --sets calibration [--out FILE]     # what the level was set with
    python benchmarks/shortcuts.py --root DATA --sets limit [--out FILE]     # how many exceptions it takes
    python benchmarks/shortcuts.py --root DATA --sets planted --reliance [--out FILE]     # whether training uses it
    python benchmarks/shortcuts.py --root DATA --sets planted --ranking [--out FILE]
    python benchmarks/shortcuts.py --data corrupted-cifar10-lff-0 --root DATA --conflict 0.05 --ranking \
        --model torchvision:resnet18 --device cuda --precision bf16 --channels-last [--out FILE]

Printed: the truth, whether the alarm is raised, its p and seconds. With --ranking, where there are group labels, which
only judge: average precision of the ranking and of other scores from the same trainings, the base rate, their ratio,
and how many of the clusters found are of one group throughout.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from record import write_result
from shortcut_sets import CALIBRATION, LIMIT, NULL, PLANTED, Maker

from holdfast.data import Dataset, load
from holdfast.data.loaders import make_loader
from holdfast.data.splits import bias_alignment
from holdfast.detect.evaluation import evaluate_scores
from holdfast.devices import resolve_device
from holdfast.shortcuts import Shortcuts, find_shortcuts
from holdfast.shortcuts.search import biased_training
from holdfast.shortcuts.shortcut_alarm import held_out_test
from holdfast.train import fit
from holdfast.train.evaluate import predict
from holdfast.train.progress import Progress


def tested(data: Dataset, **settings: Any) -> dict[str, Any]:
    started, busy = time.perf_counter(), time.process_time()
    where, training = resolve_device(settings["device"]), biased_training(len(data.train), **settings)
    test = held_out_test(training, data, device=where, progress=Progress())
    return {
        "alarm": test.alarm,
        "p": test.p,
        "clear": test.clear,
        "conflicting": test.conflicting,
        "mistakes": test.mistakes,
        "hinging": test.hinging,
        "aspect": test.aspect,
        "share": None,  # none is estimated
        "samples": len(data.train),
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - busy,
    }


def reliance(data: Dataset, *, times: int, seed: int, **settings: Any) -> dict[str, Any]:
    """What plain training (erm) gets right of bias-aligned and of bias-conflicting test images, the mean of several."""
    assert data.test is not None
    usual = {"method": "erm", "optimizer": "adam", "weight_decay": 0.0, "schedule": "constant", "eval_every": 0}
    right = []
    for own in range(seed, seed + times):
        with tempfile.TemporaryDirectory() as out:
            model = fit(data, out=f"{out}/run", seed=own, **usual, **settings).model
        loader = make_loader(data.test, batch_size=256, device=resolve_device(settings["device"]))
        seen = predict(model, data.test, loader, device=resolve_device(settings["device"]))
        right.append([float(seen.correct[data.test.groups == data.test.labels].double().mean()),
                      float(seen.correct[data.test.groups != data.test.labels].double().mean())])  # fmt: skip
    aligned, conflicting = torch.tensor(right).mean(0).tolist()
    return {"aligned": aligned, "conflicting": conflicting, "gap": aligned - conflicting, "models": times}


def ranked(data: Dataset, **settings: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        started, busy = time.perf_counter(), time.process_time()
        found = find_shortcuts(data, out=out, test=False, **settings)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
    seen = {
        "ranking_seconds": seconds,
        "ranking_processor_seconds": busy,
        "suspected": len(found.suspected),
        "clusters": len(found.clusters),
        "notes": [str(note) for note in found.notes],
    }
    if found.average_precision is None or found.base_rate is None:
        return seen
    return seen | {
        "base_rate": found.base_rate,
        "average_precision": found.average_precision,
        "lift": found.average_precision / found.base_rate,
        "clusters_of_one_group": sum(cluster.group is not None and cluster.group[1] == 1 for cluster in found.clusters),
        "by_score": judged(found),
    }


def judged(found: Shortcuts) -> dict[str, float]:
    """Average precision of every score that the same trainings give."""
    split = found.data.train
    sides = bias_alignment(split.labels, split.groups, found.data.usual_groups)
    judged, conflicting = sides["aligned"] | sides["conflicting"], sides["conflicting"]
    ends = torch.stack([s.probabilities for s in found.biased_models]).mean(0)
    scores = {
        "score": found.score,
        "one seed": found.biased_models[0].score,
        "errors over epochs": found.wrong,
        "last epoch": 1 - ends.gather(1, split.labels[:, None])[:, 0],
    }
    if found.difficulty is not None:
        scores["LfF's weight"] = found.difficulty
    return {
        name: evaluate_scores(s[judged], conflicting[judged], resamples=1).ranking["ap"].value
        for name, s in scores.items()
    }


def chosen(args: argparse.Namespace) -> dict[str, tuple[str, Maker]]:
    """What to measure: the truth and the set, by name."""
    if args.data:
        name = args.data if args.conflict is None else f"{args.data}, {100 * args.conflict:g} %"
        return {name: ("", lambda root: load(args.data, root=root, conflict=args.conflict, data_seed=args.data_seed))}
    null = {name: ("no shortcut", make) for name, make in NULL.items()}
    planted = {name: ("shortcut", make) for name, make in PLANTED.items()}
    calibration = {name: ("no shortcut", make) for name, make in CALIBRATION.items()}
    few = {name: ("shortcut", make) for name, make in LIMIT.items()}
    sets = {"all": null | planted, "null": null, "planted": planted, "calibration": calibration, "limit": few}[
        args.sets
    ]
    return {name: made for name, made in sets.items() if any(word in name for word in args.only)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a set by name; by default sets without a shortcut and with a planted one")
    parser.add_argument("--sets", choices=("all", "null", "planted", "calibration", "limit"), default="all")
    parser.add_argument("--only", nargs="+", default=[""], help="sets with one of these in their name")
    parser.add_argument("--ranking", action="store_true")
    parser.add_argument("--reliance", action="store_true", help="only how much plain training relies on the shortcut")
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--conflict", type=float)
    parser.add_argument("--data-seed", type=int, default=0)
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    settings = {
        key: getattr(args, key)
        for key in ("model", "epochs", "seed", "batch_size", "lr", "device", "precision", "channels_last", "compile")
    }
    figures: dict[str, Any] = {}
    for name, (truth, make) in chosen(args).items():
        data = make(args.root)
        if args.reliance:
            own = figures[name] = reliance(data, times=args.seeds, **settings | {"batch_size": args.batch_size or 64})
            print(f"{name:40} aligned {own['aligned']:.3f}, conflicting {own['conflicting']:.3f}", flush=True)
            if args.out:
                write_result(args.out, figures, commit=args.commit)
            continue
        row = figures[name] = {"truth": truth} | tested(data, **settings)
        print(
            f"{name:40} {truth:11}  {'ALARM' if row['alarm'] else '-':5}  p {row['p']:<8.2g} {row['conflicting']:3} of "
            f"{row['mistakes']:4} mistakes, {row['clear']:2} clear, {row['hinging']:3} hinge on {row['aspect']}   "
            f"{row['seconds']:.0f} s, {row['processor_seconds']:.0f} s of the processor",
            flush=True,
        )
        if args.ranking:
            row |= ranked(data, seeds=args.seeds, **settings)
        if "by_score" in row:
            print(
                f"    AP {row['average_precision']:.3f} = {row['lift']:.1f} x base rate {row['base_rate']:.4f}, "
                f"{row['clusters_of_one_group']} of {row['clusters']} clusters of one group: "
                + "   ".join(f"{k} {v:.3f}" for k, v in row["by_score"].items()),
                flush=True,
            )
        if args.out:  # after every set: what is there is kept if a later one fails
            write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
