"""Results as small JSON files that say what made them.

python benchmarks/record.py     # before the files are copied to a machine without git: writes .commit beside them
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", "benchmarks", "tests", "papers")
"""Folders whose Python files decide what a result is."""


def write_result(
    path: Path, figures: dict[str, Any], *, commit: str | None = None, gpu: bool = True, made_by: str | None = None
) -> None:
    """Figures with the command, the commit, the versions and the hardware: the GPU if there is one and it was used.

    made_by: another command than this one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "command": made_by or command(sys.argv),
        "commit": commit or current_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": hardware(gpu=gpu),
        "figures": figures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def command(words: list[str]) -> str:
    """The command without where its result went and where the data lay.

    >>> command(["benchmarks/a.py", "--root", "/somewhere", "--epochs", "3", "--out", "x.json"])
    'python benchmarks/a.py --root DATA --epochs 3'
    >>> command(["benchmarks/a.py", "--data", "/somewhere/set.npz"])
    'python benchmarks/a.py --data DATA/set.npz'
    >>> command(["/somewhere/tests/fuzz/__main__.py", "npz"])
    'python -m tests.fuzz npz'
    """
    if Path(words[0]).name == "__main__.py":
        words = ["-m", ".".join(Path(words[0]).parts[-3:-1]), *words[1:]]
    places = {"--root": "DATA", "--folder": "PNGS"}
    kept = ["python"]
    for word, before in zip(words, ["", *words], strict=False):
        if before in places:
            kept.append(places[before])
        elif word not in ("--out", "--commit") and before not in ("--out", "--commit"):
            kept.append(f"DATA/{Path(word).name}" if Path(word).is_absolute() else word)
    return " ".join(kept)


def current_commit(root: Path = ROOT) -> str:
    """The commit of these files; with "+ changes" if they differ from it.

    In a copy: what .commit says, written by this file where git was. A copy may have a git of its own, which knows
    another commit; .commit is believed as long as the files are those that it was written for.
    """
    try:
        noted = json.loads((root / ".commit").read_text())
    except OSError:
        noted = None
    if noted is not None and noted["files"] == _digest(root):
        return str(noted["commit"])
    try:
        made = _git(root, "rev-parse", "HEAD").strip()
        changed = bool(_git(root, "status", "--porcelain", "--", *(f"{folder}/*.py" for folder in CODE)))
    except (OSError, subprocess.CalledProcessError):
        if noted is None:
            return "unknown"
        made, changed = noted["commit"], True
    return f"{made} + changes" if changed else made


def note_commit(root: Path = ROOT) -> Path:
    """Write .commit: the commit of these files, and a digest by which a copy can tell that it is the same."""
    place = root / ".commit"
    place.unlink(missing_ok=True)
    place.write_text(json.dumps({"commit": current_commit(root), "files": _digest(root)}) + "\n")
    return place


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=root).stdout


def _digest(root: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)} ".encode() + content)
    return found.hexdigest()


def hardware(*, gpu: bool = True) -> str:
    if gpu and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if not gpu:
        return f"{platform.machine()}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    print(f"{note_commit()}: {current_commit()}")
