"""An audit in one process and in shards: seconds, and that every number is the same.

    python benchmarks/audit_shards.py [--shards 1 2] [--repeats 1] [--images 100] [--out FILE]

A small network, trained for three epochs on the embedded digits, is audited by every check on the CPU: once as usual,
with one thread, and in each number of shards, which have one thread each. ``images`` are those that are attacked. Wall
time depends on what else the machine has to do, which the load average tells. So the processor's time is measured too:
``own_cpu_s`` of the process of the audit, ``shards_cpu_s`` of each shard, and ``critical_cpu_s``, the time of the audit
on a machine with a core for every shard: its own, and that of the slowest shard of either round.
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
from holdfast.machine import usable_cores


def findings(folder: Path) -> Any:
    """All that was found, without times."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("seconds", "finished", "digest")}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return plain(json.loads((folder / "findings.json").read_text()))


def audited(run: Path, out: Path, shards: int | None, images: int) -> dict[str, Any]:
    began, spent = time.monotonic(), time.process_time()
    how: dict[str, Any] = {"device": "cpu", "workers": 0, "settings": {"attacks": {"images": images}}}
    holdfast.audit(run, "digits", out=out, shards=shards, tell=lambda text: None, **how)
    wall, mine = time.monotonic() - began, time.process_time() - spent
    made: dict[str, Any] = {"shards": shards or 0, "wall_s": wall, "load": os.getloadavg()[0], "own_cpu_s": mine}
    if not shards:
        return made | {"critical_cpu_s": mine}
    done = {name: sorted(out.glob(f"shards/{name}-*/shard.json")) for name in ("predictions", "checks")}
    rounds = {k: [json.loads(path.read_text())["processor_seconds"] for path in own] for k, own in done.items()}
    here = sum(map(sum, rounds.values())) if min(shards, usable_cores()) == 1 else 0.0  # in the audit's own process
    critical = mine - here + sum(map(max, rounds.values()))
    return made | {"shards_cpu_s": rounds, "critical_cpu_s": critical}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit_shards.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
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
