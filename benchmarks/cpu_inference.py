"""Predictions on a CPU at 224 pixels: images per second for batch sizes, with freed memory returned or kept.

    python benchmarks/cpu_inference.py [--rounds 3] [--out benchmarks/results/cpu_inference.json]

Each setting is a process of its own: the C library as it comes, or told to keep freed memory as commands of holdfast
tell it; batches of several sizes, and the size that is chosen where none is given. The network is timm's
tf_efficientnet_lite0 with random weights on random images, through ``float_batches``. Settings take turns, round by
round. Per image: processor time, of the program and of the system, which other processes disturb less than the time on
the clock, and page faults; memory is the peak of the process. The round with the least processor time counts. The ratio
at the end: the defaults before (256 images per pass, memory returned) over those of today.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BATCHES = (0, 4, 16, 64, 256)
"""0: the one that is chosen."""
BEFORE, NOW = "256, returned", "chosen, kept"


def child(args: argparse.Namespace) -> None:
    from holdfast.machine import keep_freed_memory, share_the_processor

    share_the_processor()
    if args.keep and not keep_freed_memory():
        raise SystemExit("this C library, or the environment, does not let freed memory be kept")
    import torch
    from timm import create_model

    from holdfast.data.loaders import float_batches

    model = create_model("tf_efficientnet_lite0").eval()
    images = torch.randint(256, (max(args.batch, args.images), 3, args.side, args.side), dtype=torch.uint8)
    size = args.batch or None
    with torch.no_grad():
        model(next(float_batches(images, torch.device("cpu"), batch_size=size)))
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for x in float_batches(images, torch.device("cpu"), batch_size=size):
            model(x)
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "images_per_second": len(images) / seconds,
                "user_ms": 1e3 * (used.ru_utime - before.ru_utime) / len(images),
                "system_ms": 1e3 * (used.ru_stime - before.ru_stime) / len(images),
                "page_faults": (used.ru_minflt - before.ru_minflt) / len(images),
                "peak_mb": used.ru_maxrss / 1024,
            }
        )
    )


def worked(found: dict[str, float]) -> float:
    """Processor time per image."""
    return found["user_ms"] + found["system_ms"]


def shown(found: dict[str, float]) -> str:
    took = f"user {found['user_ms']:6.1f} + system {found['system_ms']:6.1f} ms"
    beside = f"{found['page_faults']:9,.0f} page faults   {found['peak_mb']:6,.0f} MB"
    return f"{found['images_per_second']:6.1f} images/s   {took}   {beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, help="measure this one in this process; 0 is the one that is chosen")
    parser.add_argument("--keep", action="store_true", help="keep freed memory")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.batch is not None:
        child(args)
        return
    best: dict[str, dict[str, Any]] = {}
    for number in range(args.rounds):
        for keep in (False, True):
            for batch in BATCHES:
                name = f"{batch or 'chosen'}, {'kept' if keep else 'returned'}"
                words = ["--batch", str(batch), "--images", str(args.images), "--side", str(args.side)]
                words += ["--keep"] if keep else []
                done = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
                found = json.loads(done.stdout)
                if name not in best or worked(found) < worked(best[name]):
                    best[name] = found
                print(f"round {number + 1}: {name:18} {shown(found)}", flush=True)
    print("the best rounds")
    for name, found in best.items():
        print(f"{name:18} {shown(found)}")
    ratio = worked(best[BEFORE]) / worked(best[NOW])
    print(f"processor time per image, before over now: {ratio:.1f}")
    if args.out:
        from record import write_result

        write_result(args.out, {**best, "ratio": ratio}, gpu=False)


if __name__ == "__main__":
    main()
