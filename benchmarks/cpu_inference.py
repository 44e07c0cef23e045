"""Predictions on a CPU at 224 pixels: images per second for batch sizes, with freed memory returned or kept.

    python benchmarks/cpu_inference.py [--rounds 3] [--out benchmarks/results/cpu_inference.json]

Each setting is a process of its own: the C library as it comes, or told to keep freed memory as commands of holdfast
tell it; batches of several sizes, and the size that is chosen where none is given. The network is timm's
tf_efficientnet_lite0 with random weights on random images, through ``float_batches``. Settings take turns, round by
round, and the fastest round counts: whatever else the machine does only ever adds time. Page faults are those of the
process while it computes, memory is its peak. The ratio at the end: the defaults of today over those before (256 images
per pass, memory returned).
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
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        for x in float_batches(images, torch.device("cpu"), batch_size=size):
            model(x)
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"images_per_second": len(images) / seconds, "page_faults": used.ru_minflt - before}
    print(json.dumps(found | {"peak_mb": used.ru_maxrss / 1024}))


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
                if found["images_per_second"] > best.get(name, {}).get("images_per_second", 0):
                    best[name] = found
                print(f"round {number + 1}: {name:20} {found['images_per_second']:7.1f} images/s", flush=True)
    for name, found in best.items():
        shown = f"{found['images_per_second']:7.1f} images/s   {found['page_faults']:10,} page faults"
        print(f"{name:20} {shown}   {found['peak_mb']:7,.0f} MB")
    ratio = best[NOW]["images_per_second"] / best[BEFORE]["images_per_second"]
    print(f"defaults now over before: {ratio:.1f}")
    if args.out:
        from record import write_result

        write_result(args.out, {**best, "ratio": ratio}, gpu=False)


if __name__ == "__main__":
    main()
