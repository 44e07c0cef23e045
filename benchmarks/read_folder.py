"""How long image files take to decode, and worker processes to start and end: what the number of workers follows from.

    python benchmarks/read_folder.py [--out benchmarks/results/read_folder.json]

The constants of ``holdfast.data.loaders.choose_reading`` are from here. Made images, each side and format 200 times (40
of the largest); seconds of the processor for decoding, by the clock for workers, over all files once.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import write_result

from holdfast.data import load
from holdfast.data.loaders import SECONDS_PER_BYTE, SECONDS_PER_FILE, StreamLoader

KINDS = ((200, 16, "png"), (200, 32, "png"), (200, 64, "jpg"), (200, 224, "jpg"), (100, 500, "jpg"), (40, 1600, "jpg"))


def make_folder(folder: Path, count: int, side: int, suffix: str) -> float:
    """Smooth noise in two classes; the mean size of a file in bytes."""
    random = np.random.default_rng(0)
    for i in range(count):
        coarse = random.integers(0, 255, (max(2, side // 8), max(2, side // 8), 3), dtype=np.uint8)
        path = folder / f"class{i % 2}" / f"{i}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(path, quality=90)
    return float(np.mean([path.stat().st_size for path in folder.rglob(f"*.{suffix}")]))


def measure(count: int, side: int, suffix: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        size = make_folder(Path(folder), count, side, suffix)
        split = load(folder, image_size=min(side, 224)).train
        everything = torch.arange(len(split))
        split.read(everything)  # into the system's memory
        started = time.process_time()
        split.read(everything)
        each = (time.process_time() - started) / len(split)
        row: dict[str, Any] = {"side": side, "format": suffix, "bytes": round(size), "ms_per_image": 1000 * each}
        row["ms_estimated"] = 1000 * (SECONDS_PER_FILE + SECONDS_PER_BYTE * size)
        for workers in (0, 2):
            gc.collect()
            started = time.perf_counter()
            loader = StreamLoader(split, batch_size=32, device=torch.device("cpu"), workers=workers)
            for _ in loader.batches(everything):
                pass
            del loader
            row[f"seconds_with_{workers}_workers"] = time.perf_counter() - started
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in KINDS:
        rows.append(measure(*kind))
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in rows[-1].items()})
    if args.out is not None:
        write_result(args.out, {"rows": rows}, gpu=False)


if __name__ == "__main__":
    main()
