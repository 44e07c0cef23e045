"""A folder of tiny JPEG files and the tar shards made of it: images per second, peak memory, the same training, resume.

python benchmarks/shards.py --sizes 2000 20000 100000 --out benchmarks/results/shards.json
python benchmarks/shards.py --sizes 2000 --only mixing          # how well --shuffle window mixes
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from holdfast.data import load, shard
from holdfast.data.loaders import StreamLoader
from holdfast.data.shuffling import mixing, window_order

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.record import write_result

CLASSES, SIDE, HELD_OUT = 20, 32, 0.1
BATCH = 256
REPEATS = 5
PARTS = ("speed", "memory", "same", "resume", "mixing")


def make_folder(folder: Path, count: int) -> Path:
    """train/ and test/ with so many JPEG files in all; written once, and complete when its name is there."""
    place = folder / f"images-{count}"
    if place.exists():
        return place
    draft, rng = folder / f".images-{count}", np.random.default_rng(0)
    shutil.rmtree(draft, ignore_errors=True)
    patterns = rng.integers(0, 256, (CLASSES, SIDE, SIDE, 3))
    for split, share in (("train", 1 - HELD_OUT), ("test", HELD_OUT)):
        for label in range(CLASSES):
            own = draft / split / f"class-{label:02d}"
            own.mkdir(parents=True)
            for i in range(round(count * share / CLASSES)):
                pixels = patterns[label] * 0.6 + rng.integers(0, 256, (SIDE, SIDE, 3)) * 0.4
                Image.fromarray(pixels.astype(np.uint8)).save(own / f"{i:06d}.jpg", quality=85)
    draft.rename(place)
    return place


def make_shards(folder: Path) -> tuple[Path, float | None]:
    """(the shards of a folder, the seconds that writing them took; None where they were there)."""
    place = folder.with_name(folder.name.replace("images", "shards"))
    if place.exists():
        return place, None
    started = time.perf_counter()
    shard(folder, place, megabytes=32)
    return place, time.perf_counter() - started


def rate(source: Path, *, workers: int, images: int) -> float:
    """Images per second of reading and decoding, in random order."""
    split = load(source).train
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:images]
    loader = StreamLoader(split, batch_size=BATCH, device=torch.device("cpu"), workers=workers)
    batches = loader.batches(order)
    if workers:
        next(batches)  # the workers have started
    started, seen = time.perf_counter(), 0
    for batch in batches:
        seen += len(batch)
    return seen / (time.perf_counter() - started)


def speed(folder: Path, shards: Path) -> dict[str, Any]:
    """Medians of alternating measurements, files in the page cache."""
    images = min(20_000, len(load(folder).train))
    found: dict[str, Any] = {"images": images}
    for workers in (0, 2):
        rates: dict[str, list[float]] = {"folder": [], "shards": []}
        for _ in range(REPEATS + 1):  # the first warms the page cache
            for name, source in (("folder", folder), ("shards", shards)):
                rates[name].append(rate(source, workers=workers, images=images))
        kept = {name: statistics.median(own[1:]) for name, own in rates.items()}
        pairs = zip(rates["shards"][1:], rates["folder"][1:], strict=True)
        found[f"{workers} workers"] = {
            **{f"{name}_images_per_second": round(own) for name, own in kept.items()},
            "shards_over_folder": round(statistics.median(own / other for own, other in pairs), 3),
        }
    return found


def command(words: list[str], *, stop_after: float | None = None) -> tuple[int, float, float]:
    """(exit code, peak memory in MiB, seconds) of a holdfast command. stop_after: seconds until it gets a SIGTERM."""
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HOLDFAST_CACHE": tempfile.gettempdir()}
    with open(os.devnull, "w") as nowhere:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words], stdout=nowhere, stderr=subprocess.PIPE, env=environment
        )
        if stop_after is not None:
            time.sleep(stop_after)
            child.send_signal(signal.SIGTERM)
        assert child.stderr is not None
        said = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)  # Popen need not wait again
    if child.returncode not in (0, 143):
        raise SystemExit(f"{words}: {said[-2000:]}")
    return child.returncode, usage.ru_maxrss / 1024, time.perf_counter() - started


TRAIN = ["--model", "convnet", "--epochs", "1", "--batch-size", str(BATCH), "--device", "cpu", "--workers", "0"]


def memory(source: Path, work: Path) -> dict[str, float]:
    """Peak memory in MiB of four commands, none of which starts a worker."""
    run, read = str(work / f"run-{source.name}"), ["--data", str(source), "--device", "cpu", "--workers", "0"]
    commands = {
        "train": ["train", "--data", str(source), *TRAIN, "--overwrite", "--out", run],
        "audit": ["audit", run, *read, "--checks", "accuracy", "--out", str(work / f"audit-{source.name}")],
        "predict": ["predict", run, *read, "--split", "train", "--out", str(work / "predictions.csv")],
        "data check": ["data", "check", str(source)],
    }
    found = {}
    for name, words in commands.items():
        found[name] = round(command(words)[1], 1)
        print(f"{source.name}: {name} {found[name]} MiB", file=sys.stderr)
    return found


def weights(run: Path) -> str:
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def same(folder: Path, shards: Path, work: Path) -> dict[str, Any]:
    """One epoch from the folder and from the shards: are the weights the same bytes?"""
    found: dict[str, Any] = {}
    for name, source in (("folder", folder), ("shards", shards)):
        run = work / f"same-{name}"
        _, peak, seconds = command(["train", "--data", str(source), *TRAIN, "--overwrite", "--out", str(run)])
        found[name] = {"sha256": weights(run), "seconds": round(seconds, 1), "peak_mib": round(peak, 1)}
    return {**found, "same_weights": found["folder"]["sha256"] == found["shards"]["sha256"]}


def resume(shards: Path, work: Path) -> dict[str, Any]:
    """A SIGTERM in the middle of an epoch, then --resume, for both shuffles: do the weights stay the same bytes?"""
    found = {}
    for shuffle in ("full", "window"):
        words = ["train", "--data", str(shards), *TRAIN, "--shuffle", shuffle, "--shuffle-window", "4096"]
        _, _, seconds = command([*words, "--overwrite", "--out", str(work / "whole")])
        code, _, _ = command([*words, "--overwrite", "--out", str(work / "cut")], stop_after=0.6 * seconds)
        metrics = work / "cut" / "metrics.jsonl"
        middle = code == 143 and not (metrics.exists() and metrics.read_text())
        command(["train", "--resume", "--out", str(work / "cut")])
        equal = weights(work / "cut") == weights(work / "whole")
        found[shuffle] = {"stopped_in_the_middle": middle, "same_weights": equal}
    return found


def mixed(images: int = 100_000) -> list[dict[str, Any]]:
    """How --shuffle window mixes images that are stored class by class; 1 is a perfect shuffle."""
    labels = torch.arange(images) * CLASSES // images
    rows = []
    for window in (1024, 4096, 16384, 65536):
        for size in (32, 128, 256):
            seeds = [mixing(window_order(images, s, window=window), labels, batch_size=size) for s in range(5)]
            full = [mixing(torch.randperm(images), labels, batch_size=size) for _ in range(5)]
            rows.append({
                "window": window, "batch_size": size,
                **{f"{of}_{name}": round(statistics.mean(getattr(own, name) for own in found), 3)
                   for of, found in (("window", seeds), ("full", full)) for name in ("classes", "neighbours")},
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 20000])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "holdfast-shards")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {"image": f"JPEG, {SIDE} px, quality 85", "classes": CLASSES}
    places = {}
    for count in options.sizes:
        folder = make_folder(options.folder, count)
        places[count] = folder, *make_shards(folder)
        files = [path.stat().st_size for path in folder.rglob("*.jpg")]
        figures[f"{count} images"] = {
            "mean_bytes": round(statistics.mean(files)),
            "shard_bytes": sum(path.stat().st_size for path in places[count][1].iterdir()),
            "seconds_to_shard": places[count][2] and round(places[count][2], 1),
        }
    largest = places[max(options.sizes)]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if "speed" in options.only:
            figures["speed"] = speed(*largest[:2])
        if "memory" in options.only:
            peaks = {n: {s.name.split("-")[0]: memory(s, work) for s in own[:2]} for n, own in places.items()}
            figures["peak_mib"] = {str(n): own for n, own in peaks.items()}
            low, high = min(peaks), max(peaks)
            if high > low:
                figures["bytes_per_image"] = {
                    kind: {name: round((peaks[high][kind][name] - own) * 2**20 / (high - low))
                           for name, own in peaks[low][kind].items()}
                    for kind in peaks[low]
                }  # fmt: skip
        if "same" in options.only:
            figures["same"] = same(*largest[:2], work)
        if "resume" in options.only:
            figures["resume"] = resume(largest[1], work)
        if "mixing" in options.only:
            figures["mixing"] = mixed()
    for name, value in figures.items():
        print(f"{name}: {value}")
    if options.out:
        write_result(options.out, figures, gpu=False)


if __name__ == "__main__":
    main()
