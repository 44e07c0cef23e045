"""A folder of tiny JPEG files and the tar shards made of it: images per second, peak memory, the same training, resume.

python benchmarks/shards.py --sizes 20000 100000 --only memory resume --out benchmarks/results/shards.json
python benchmarks/shards.py --sizes 2000 --only mixing          # how well --shuffle window mixes
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
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
from holdfast.data.shuffling import epoch_order, mixing, window_order
from holdfast.settings import DataSettings

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.record import write_result

CLASSES, SIDE, HELD_OUT = 20, 32, 0.1
BATCH = 256
REPEATS = 5
PARTS = ("speed", "memory", "resume", "mixing")


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


def rate(source: Path, *, workers: int, images: int) -> tuple[float, float]:
    """Images per second of reading and decoding, in random order; and per second of this process's processor time,
    which other work on the machine hardly changes."""
    split = load(source).train
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:images]
    loader = StreamLoader(split, batch_size=BATCH, device=torch.device("cpu"), workers=workers)
    batches = loader.batches(order)
    if workers:
        next(batches)  # the workers have started
    started, spent, seen = time.perf_counter(), time.process_time(), 0
    for batch in batches:
        seen += len(batch)
    return seen / (time.perf_counter() - started), seen / (time.process_time() - spent)


def speed(folder: Path, shards: Path) -> dict[str, Any]:
    """Medians of alternating measurements, files in the page cache."""
    images = min(5_000, len(load(folder).train))
    found: dict[str, Any] = {"images": images}
    for workers in (0, 2):
        rates: dict[str, list[tuple[float, float]]] = {"folder": [], "shards": []}
        for _ in range(REPEATS + 1):  # the first warms the page cache
            for name, source in (("folder", folder), ("shards", shards)):
                rates[name].append(rate(source, workers=workers, images=images))
        for unit, what in enumerate(("second", "processor_second")[: 2 if workers == 0 else 1]):
            own = {name: [pair[unit] for pair in values[1:]] for name, values in rates.items()}
            ratios = [a / b for a, b in zip(own["shards"], own["folder"], strict=True)]
            found[f"{workers} workers, images per {what}"] = {
                **{name: round(statistics.median(values)) for name, values in own.items()},
                "ratio": round(statistics.median(ratios), 3),
            }
    return found


def command(words: list[str]) -> tuple[int, float, float]:
    """(exit code, peak memory in MiB, seconds) of a holdfast command."""
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HOLDFAST_CACHE": tempfile.gettempdir()}
    with open(os.devnull, "w") as nowhere:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words], stdout=nowhere, stderr=subprocess.PIPE, env=environment
        )
        assert child.stderr is not None
        said = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)  # Popen need not wait again
    if child.returncode:
        raise SystemExit(f"{words}: {said[-2000:]}")
    return child.returncode, usage.ru_maxrss / 1024, time.perf_counter() - started


TRAIN = ["--model", "convnet", "--epochs", "1", "--batch-size", str(BATCH), "--device", "cpu", "--workers", "0"]
TRAIN += ["--image-size", "8"]  # what is measured here is everything but the network


def memory(source: Path, work: Path) -> dict[str, Any]:
    """Peak memory in MiB of four commands, none of which starts a worker; the weights of the first."""
    run, read = str(work / f"run-{source.name}"), ["--data", str(source), "--device", "cpu", "--workers", "0"]
    commands = {
        "train": ["train", "--data", str(source), *TRAIN, "--overwrite", "--out", run],
        "audit": ["audit", run, *read, "--checks", "accuracy", "--out", str(work / f"audit-{source.name}")],
        "predict": ["predict", run, *read, "--split", "train", "--out", str(work / "predictions.csv")],
        "data check": ["data", "check", str(source)],
    }
    found = {}
    for name, words in commands.items():
        _, peak, seconds = command(words)
        found[name] = round(peak, 1)
        print(f"{source.name}: {name} {found[name]} MiB, {seconds:.0f} s", file=sys.stderr)
    return found


def weights(run: Path) -> str:
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def resume(shards: Path, work: Path, *, shuffle: str, whole: Path | None = None) -> dict[str, Any]:
    """A SIGTERM in the middle of an epoch, then --resume: do the weights stay the same bytes?

    whole: the same training that nothing stopped, where there is one.
    """
    words = ["train", "--data", str(shards), *TRAIN, "--shuffle", shuffle]
    if whole is None:
        whole = work / f"whole-{shuffle}"
        command([*words, "--out", str(whole)])
    cut = work / f"cut-{shuffle}"
    steps = stopped_at(words, cut)
    command(["train", "--resume", "--out", str(cut)])
    return {"stopped_after_steps": steps, "same_weights": weights(cut) == weights(whole)}


def stopped_at(words: list[str], out: Path) -> int:
    """Start a training, stop it with a SIGTERM in its first epoch, and say after how many steps that was."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    everything = [sys.executable, "-c", STOPPING, *words, "--out", str(out)]
    child = subprocess.run(everything, capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 143, child.stderr[-2000:]
    newest = max((out / "checkpoint").glob("step-*"))
    return int(newest.name.removeprefix("step-"))


STOPPING = """
import os, signal, sys
from holdfast.cli import main
from holdfast.train.progress import Progress
steps = 0
def step(self):
    global steps
    steps += 1
    if steps == 5:
        os.kill(os.getpid(), signal.SIGTERM)
Progress.step = step
sys.exit(main(sys.argv[1:]))
"""
"""A training that sends itself a SIGTERM in its fifth step."""


def mixed(images: int = 100_000) -> list[dict[str, Any]]:
    """How --shuffle window mixes images that are stored class by class; 1 is a perfect shuffle."""
    labels = torch.arange(images) * CLASSES // images
    rows = []
    for window in (1024, 4096, 16384, 65536):
        for size in (32, 128, 256):
            seeds = [mixing(window_order(images, s, window=window), labels, batch_size=size) for s in range(5)]
            full = [mixing(epoch_order(images, s, DataSettings()), labels, batch_size=size) for s in range(5)]
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
    largest, smallest = places[max(options.sizes)], places[min(options.sizes)]

    def record(name: str, value: Any) -> None:
        figures[name] = value
        print(f"{name}: {value}", flush=True)
        if options.out:  # after each part: the last ones take long
            write_result(options.out, figures, gpu=False)

    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if "speed" in options.only:
            record("speed", speed(*largest[:2]))
        if "mixing" in options.only:
            record("mixing", mixed())
        if "memory" in options.only:
            peaks: dict[str, dict[str, dict[str, float]]] = {}
            for count in sorted(options.sizes, reverse=True):
                peaks[str(count)] = {own.name.split("-")[0]: memory(own, work) for own in places[count][:2]}
                record("peak_mib", peaks)
                if count == max(options.sizes):
                    runs = [work / f"run-{own.name}" for own in largest[:2]]
                    record("same_weights", weights(runs[0]) == weights(runs[1]))
            record("bytes_per_image", slopes(peaks))
        if "resume" in options.only:
            known = work / f"run-{largest[1].name}"
            found = {"full": resume(largest[1], work, shuffle="full", whole=known if known.exists() else None)}
            found["window"] = resume(smallest[1], work, shuffle="window")
            record("resume", found)


def slopes(peaks: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, int]]:
    """Bytes that each image more adds to the peak, between the smallest and the largest set."""
    low, high = min(peaks, key=int), max(peaks, key=int)
    more = max(int(high) - int(low), 1)
    return {
        kind: {name: round((peaks[high][kind][name] - peak) * 2**20 / more) for name, peak in own.items()}
        for kind, own in peaks[low].items()
    }


if __name__ == "__main__":
    main()
