"""Kill commands while their workers read images, continue them, and check what comes out in the end.

    python benchmarks/kills.py [--kills 40] [--commands train audit compare] [--kinds term kill term-group kill-group]
                               [--jobs 1]

The four kinds: SIGTERM or SIGKILL, to the main process or to its whole group (as SLURM, Kubernetes and timeout(1) do).
A command is frozen (SIGSTOP) at a random moment. The signal is sent only if it is certainly at work then: worker
processes are alive, and the training or audit has begun and not ended. It is started again until it ends by itself.
Checked: the exit code of every ending (143 after SIGTERM, no traceback), no worker left behind; in the end bytes of
every ``model.safetensors`` and the values of every ``findings.json`` are those of a command that nobody disturbed.
Commands are forked from a process that has imported holdfast, because importing takes longer than the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

KINDS = {
    "term": (signal.SIGTERM, False),
    "kill": (signal.SIGKILL, False),
    "term-group": (signal.SIGTERM, True),
    "kill-group": (signal.SIGKILL, True),
}
COMMANDS = ("train", "audit", "compare")
WORKER = "pt_data_worker"
"""What torch calls the main thread of a DataLoader's worker."""
ENDED = re.compile(r"^epoch (\d+)/\1 ", re.MULTILINE)
"""What a training says after its last epoch."""
PATIENCE = 3.0
"""Seconds within which the workers of a process that was killed must have ended."""

SERVER = """
import json, os, sys
import holdfast.audits.run_audit, holdfast.comparisons.running, torch._dynamo
from holdfast.cli import main
for line in sys.stdin:
    words, log = json.loads(line)
    if (child := os.fork()) == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.setpgid(0, 0)
for number, place, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY), (2, log, os.O_WRONLY | os.O_APPEND)):
    os.dup2(os.open(place, flags), number)
sys.exit(main(words))
"""


@dataclass(frozen=True)
class Ending:
    """How one start of a command ended. signalled: whether it was killed; its workers at that moment."""

    code: int
    said: str
    signalled: bool
    workers: tuple[int, ...] = ()


class Starter:
    """Starts commands in process groups of their own, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()

    def run(self, words: list[str], out: Path, *, kind: str | None = None, after: float = 0.0) -> Ending:
        """Start a command and, where a kind of kill is named, kill it that many seconds after its workers appear."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        log = out.with_name(f"{out.name}.log")
        log.write_text("")
        self.server.stdin.write(json.dumps([words, str(log)]) + "\n")
        self.server.stdin.flush()
        pid = int(self.server.stdout.readline())
        killed = None if kind is None else _kill_at_work(pid, out, words[0], *KINDS[kind], after)
        code = int(self.server.stdout.readline())
        return Ending(code, log.read_text(errors="replace"), killed is not None, killed or ())


def _kill_at_work(pid: int, out: Path, command: str, signum: int, group: bool, after: float) -> tuple[int, ...] | None:
    """Wait for workers and a moment more, freeze the process, look, and send the signal; None if it ended before."""
    while not workers_of(pid):
        if _state(pid) in "ZX":
            return None
        time.sleep(0.002)
    time.sleep(after)
    while _state(pid) not in "ZX":
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        while _state(pid) not in "TZX":
            time.sleep(0.0005)
        workers = workers_of(pid)
        certain = bool(workers) and _state(pid) == "T" and at_work(out, command)
        if certain:
            (os.killpg if group else os.kill)(pid, signum)
        with suppress(ProcessLookupError):  # SIGKILL needs no thawing
            os.kill(pid, signal.SIGCONT)
        if certain:
            return workers
        time.sleep(0.01)
    return None


def workers_of(pid: int) -> tuple[int, ...]:
    """Living DataLoader workers of a process."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return tuple(child for child in children if _state(child) not in "ZX" and _name(child) == WORKER)
    except OSError:
        return ()


def _state(pid: int) -> str:
    """One letter of /proc: T stopped, Z ended and not yet reaped; X where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def at_work(out: Path, command: str) -> bool:
    """Whether a training or an audit in this folder has begun and not ended."""
    if command == "audit":
        return not (out / "findings.json").exists()
    runs = [path.parent for path in out.rglob("run.yaml")]  # a cell at work lies below .cells
    return any(not (run / "model.safetensors").exists() for run in runs)


def problems(ending: Ending, kind: str, command: str) -> Iterator[str]:
    """What is wrong with how a killed command ended."""
    expected = 143 if KINDS[kind][0] == signal.SIGTERM else -signal.SIGKILL
    if ending.code != expected:
        yield f"exit code {ending.code}, not {expected}: {ending.said}"
    for word in ("Traceback", "DataLoader worker", "crashed", "Exception ignored"):
        if expected == 143 and word in ending.said:  # workers may complain of a parent that was killed
            yield f"it said: {ending.said}"
    last = re.split(r"^\d+ of \d+: ", ending.said, flags=re.MULTILINE)[-1]  # of a comparison's trainings
    trained = ENDED.search(last)  # the last epoch saves; then the test set is measured
    if expected == 143 and command != "audit" and "stopped at step" not in last and not trained:
        yield f"nothing was saved: {ending.said}"
    deadline = time.monotonic() + PATIENCE
    left = ending.workers
    while left and time.monotonic() < deadline:
        left = tuple(worker for worker in left if _state(worker) not in "ZX")
        time.sleep(0.01)
    if left:
        yield f"workers {left} survived"


def result_of(out: Path) -> dict[str, Any]:
    """All that must not depend on kills: weights as bytes, metrics and findings without their times."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.name == "model.safetensors":
            found[name] = path.read_bytes()
        elif path.name == "metrics.jsonl":
            records = map(json.loads, path.read_text().splitlines())
            found[name] = [{k: v for k, v in r.items() if k not in ("seconds", "images_per_second")} for r in records]
        elif path.name == "findings.json":
            content = json.loads(path.read_text())
            found[name] = content["findings"], [(c["name"], c["state"]) for c in content.get("checks", ())]
    return found


def make_photos(folder: Path, *, train: int = 32, test: int = 16) -> Path:
    """Images of three classes in files, so that workers read them: noise with a bright bar that tells the class."""
    random_ = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for label in range(3):
            place = folder / split / f"bar{label}"
            place.mkdir(parents=True)
            for number in range(count):
                image = random_.integers(0, 96, (16, 16, 3), dtype=np.uint8)
                image[5 * label : 5 * label + 4] += 100
                Image.fromarray(image).save(place / f"{number:03d}.png")
    return folder


def words_of(command: str, photos: Path, out: Path, model: Path, *, epochs: int) -> list[str]:
    """The command line; the same words continue what was begun."""
    shared = ["--data", str(photos), "--device", "cpu", "--workers", "2", "--batch-size", "8", "--out", str(out)]
    training = ["--epochs", str(epochs), "--checkpoint-every", "2", "--crop", "1", "--flip"]
    if command == "train":
        return ["train", *shared, *training, "--resume"]
    if command == "compare":
        return ["compare", *shared, *training, "--methods", "erm", "mixup", "--seeds", "1"]
    return ["audit", str(model), *shared, "--checks", "accuracy", "corruptions"]


def kill_repeatedly(
    starter: Starter, command: str, kind: str, kills: int, place: Path, *, chance: random.Random, epochs: int = 12
) -> dict[str, Any]:
    """Kill a command so many times, over as many of its lives as that takes; what was counted and what was wrong."""
    photos, model = place / "photos", place / "model"
    if not photos.exists():
        make_photos(photos)
    reference = place / f"{command}-undisturbed"
    if command == "audit" and not model.exists():
        _done(starter.run(words_of("train", photos, model, model, epochs=2), model))
    if not reference.exists():
        started = time.monotonic()
        _done(starter.run(words_of(command, photos, reference, model, epochs=epochs), reference))
        (place / f"{command}-seconds").write_text(str(time.monotonic() - started))
    seconds = float((place / f"{command}-seconds").read_text())
    wanted, wrong = result_of(reference), []
    done = lives = 0
    out = place / f"{command}-{kind}"
    while True:
        # Up to a fifth of its time: most lives are killed several times before they end.
        more = done < kills
        ending = starter.run(
            words_of(command, photos, out, model, epochs=epochs),
            out,
            kind=kind if more else None,
            after=chance.uniform(0, seconds / 5),
        )
        if ending.signalled:
            done += 1
            wrong += [f"{command} {kind} {done}: {what}" for what in problems(ending, kind, command)]
            continue
        lives += 1
        if ending.code != 0:
            wrong.append(f"{command} {kind}: ended with {ending.code}: {ending.said}")
        elif result_of(out) != wanted:
            differ = [name for name in wanted if result_of(out).get(name) != wanted[name]]
            wrong.append(f"{command} {kind}: after {done} kills it differs in {differ}")
        shutil.rmtree(out, ignore_errors=True)
        if not more:
            return {"command": command, "kind": kind, "kills": done, "lives": lives, "problems": wrong}


def _done(ending: Ending) -> None:
    if ending.code != 0:
        raise SystemExit(f"the undisturbed command failed with {ending.code}: {ending.said}")


def main() -> int:
    from record import write_result

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--commands", nargs="+", default=COMMANDS, choices=COMMANDS)
    parser.add_argument("--kinds", nargs="+", default=tuple(KINDS), choices=tuple(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="commands that run at the same time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    def row_of(pair: tuple[str, str]) -> dict[str, Any]:
        command, kind = pair
        chance, started = random.Random(f"{args.seed} {command} {kind}"), time.monotonic()
        with tempfile.TemporaryDirectory() as place, Starter() as starter:
            row = kill_repeatedly(starter, command, kind, args.kills, Path(place), chance=chance)
        row["seconds"] = round(time.monotonic() - started, 1)
        told = f"{command:8} {kind:11} {row['kills']} kills, {row['lives']} lives, {len(row['problems'])} problems"
        print("\n  ".join((told, *row["problems"])), flush=True)
        return row

    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(row_of, ((command, kind) for command in args.commands for kind in args.kinds)):
            rows.append(row)
            if args.out is not None:  # after every row: what is there is kept if the time runs out
                write_result(args.out, {"rows": rows}, gpu=False)
    return 1 if any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
