"""Many trainings, one JSON file each: what is there already is not done again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def run_jobs(jobs: Iterable[tuple[str, Callable[[], Mapping[str, Any]]]], out: Path, part: str = "0/1") -> None:
    """Do every n-th job from the i-th on (``part`` is i/n), for several processes on one GPU."""
    out.mkdir(parents=True, exist_ok=True)
    first, step = map(int, part.split("/"))
    for name, job in list(jobs)[first::step]:
        path = out / f"{''.join(c if c.isalnum() or c == '.' else '-' for c in name)}.json"
        if not path.exists():
            record = dict(job())
            path.write_text(json.dumps(record, indent=2) + "\n")
            print(json.dumps(record), flush=True)


def read_jobs(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
