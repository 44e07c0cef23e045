"""An audit in one process and in shards: seconds, and that every number is the same.

    python benchmarks/audit_shards.py [--shards 1 2] [--repeats 1] [--images 100] [--out FILE]

A small network, trained for three epochs on the embedded digits, is audited by every check on the CPU: once as usual,
with one thread, and in each number of shards, which have one thread each. ``images`` are those that are attacked. The
clock runs from the start of the audit to its end; ``shards_s`` is the part in which shards compute, start of processes
included, and ``merge_s`` what one process does afterwards: statistics, and the checks that cannot be shared out. The
load average says how much else the machine had to do.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from record import write_result

import holdfast
from holdfast.executors import usable_cores


def findings(folder: Path) -> Any:
    """All that was found, without times."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("seconds", "finished", "digest")}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return plain(json.loads((folder / "findings.json").read_text()))


def audited(run: Path, out: Path, shards: int | None, images: int) -> dict[str, float]:
    marks: list[tuple[float, str]] = []
    began = time.monotonic()

    def tell(text: str) -> None:
        marks.append((time.monotonic() - began, text))

    how: dict[str, Any] = {"device": "cpu", "settings": {"attacks": {"images": images}}, "tell": tell}
    holdfast.audit(run, "digits", out=out, shards=shards, **how)
    wall = time.monotonic() - began
    ends = [at for at, text in marks if text.startswith("shards: ")]
    opened = max((at for at, text in marks if "classes matched" in text), default=0.0)
    made = {"shards": shards or 0, "wall_s": wall, "opening_s": opened, "load": os.getloadavg()[0]}
    return made | ({"shards_s": ends[-1] - opened, "merge_s": wall - ends[-1]} if ends else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit_shards.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        how: dict[str, Any] = {"model": "convnet", "epochs": 3, "device": "cpu", "progress": False}
        holdfast.fit("digits", out=run, **how)
        first = None
        for repeat in range(args.repeats):
            for shards in (None, *args.shards):
                out = Path(place) / f"{shards or 'none'}-{repeat}"
                rows.append(audited(run, out, shards, args.images))
                first = first or findings(out)
                assert findings(out) == first, "every number is the same"
                print(rows[-1], flush=True)
    figures = {"cores": usable_cores(), "images_attacked": args.images, "same_findings": True, "audits": rows}
    write_result(args.out, figures, gpu=False)


if __name__ == "__main__":
    main()
