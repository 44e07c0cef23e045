"""Train and audit what is missing in the papers' tables, the most telling first, within a given time.

    python papers/run_queue.py --minutes 25 --parallel 2 --root DATA --out runs/evidence
    python papers/run_queue.py --plan                       # what is missing, and what it costs
    python papers/run_queue.py --rehearse --out /tmp/rehearsal --minutes 5    # tiny, on a CPU

Each training is a process of its own (`holdfast compare --only CELL`), several at once share the GPU through NVIDIA's
MPS where it is installed. OUT/collected.json has the rows of everything that finished, after every one of them, and how
each ended; `papers/collect.py` puts it into the papers' folders. What is recorded there is not trained again. A
unit is started only if it is likely to finish. At the end of the time what still runs is told to save a checkpoint; the
same command continues it. A unit that fails does not stop the others: its log is OUT/NAME/log.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from collect import collect_unit
from evidence import PAPERS, QUEUE, Row, Unit, is_recorded, merged, read_queue, read_rows

sys.path[:0] = [str(PAPERS.parent / folder) for folder in ("src", "benchmarks")]  # also where nothing is installed

GAINS = {1: 1.0, 2: 1.44, 3: 1.6, 4: 2.0, 6: 2.1, 8: 2.2}
"""How much more several trainings do at once under MPS than one. Two and eight were measured; from four on it is
that of small steps. The queue says of which units it is less."""
LARGE_GAIN, SMALL_GAIN = 0.9, 1.35
"""The same for large and for small steps beside each other: two and four at once, by the minutes of the queue."""
GRACE = 25.0
"""Seconds to save a checkpoint in."""
CORRUPTED = "corrupted-cifar10-"
NEEDED = "NEEDED"
"""Stands in an audit's settings for the run folder of the unit that it needs."""
TINY = ("--epochs", "1", "--model", "convnet", "--precision", "fp32", "--no-compile", "--no-channels-last",
        "--batch-size", "32", "--device", "cpu")  # fmt: skip


@dataclass
class Running:
    """A unit under way: the commands that are left, and the process of the present one."""

    unit: Unit
    folder: Path
    commands: list[list[str]]
    began: float = field(default_factory=time.monotonic)
    process: subprocess.Popen[bytes] | None = None
    done: int = 0

    def step(self, environment: dict[str, str], needed: Path | None = None) -> str:
        """ "", "finished" or why it failed; starts the next command where one has ended.

        needed: the run folder whose model an audit uses, once it is trained; until then the audit waits.
        """
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return ""
            if code != 0:
                return f"failed with exit code {code}: {self.last_line()}"
            self.done += 1
            self.process = None
        if self.done == len(self.commands):
            return "finished"
        if self.waits_for_another() and needed is None:
            return ""
        words = [sys.executable, "-m", *(word.replace(NEEDED, str(needed)) for word in self.commands[self.done])]
        with (self.folder / "log.txt").open("ab") as log:
            how: dict[str, Any] = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL, "env": environment}
            self.process = subprocess.Popen(words, start_new_session=True, cwd=PAPERS.parent, **how)
        return ""

    def waits_for_another(self) -> bool:
        """Whether its next command uses the model of another unit."""
        following = self.commands[self.done] if self.process is None and self.done < len(self.commands) else ()
        return any(NEEDED in word for word in following)

    def last_line(self) -> str:
        lines = (self.folder / "log.txt").read_text(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")

    def end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class QueueRun:
    """One call of this script."""

    def __init__(self, args: argparse.Namespace, audits: dict[str, dict[str, Any]]) -> None:
        self.args, self.audits = args, audits
        self.out: Path = args.out.resolve()
        self.root: Path | None = args.root and args.root.resolve()
        self.rows: dict[str, list[Row]] = {}
        self.ended: list[dict[str, Any]] = []
        self.began = time.monotonic()
        self.commit, self.hardware = _provenance(gpu=not args.rehearse)
        collected = self.out / "collected.json"
        if collected.exists():  # of an earlier call with this folder
            self.rows = json.loads(collected.read_bytes())["rows"]

    def left(self) -> float:
        """Minutes."""
        return float(self.args.minutes) - (time.monotonic() - self.began) / 60

    def slower(self, unit: Unit) -> float:
        """How many times as long as alone it takes beside the others."""
        if self.args.large:
            return max(1.0, self.places(unit) / (LARGE_GAIN if unit.large else SMALL_GAIN))
        return max(1.0, self.args.parallel / min(GAINS.get(self.args.parallel, 2.0), unit.gains))

    def places(self, unit: Unit) -> int:
        """How many of its kind may train at once: of large and small steps with --large, else of all."""
        large, parallel = int(self.args.large), int(self.args.parallel)
        return parallel if not large else large if unit.large else parallel - large

    def has_place(self, unit: Unit, at_work: Sequence[Running]) -> bool:
        beside = [r for r in at_work if not self.args.large or r.unit.large == unit.large]
        return len(beside) < self.places(unit)

    def folder(self, unit: Unit) -> Path:
        return self.out / unit.name

    def trained(self, unit: Unit) -> Path | None:
        """The run folder of a unit that was trained in this folder."""
        return next((path.parent for path in self.folder(unit).glob("runs/*/model.json")), None)

    def missing(self, units: Sequence[Unit]) -> list[Unit]:
        """Those without a row, and before each what it needs."""
        wanted: dict[object, Unit] = {}

        def want(unit: Unit) -> None:
            """One unit per training, with all audits that are asked of it."""
            one = wanted.setdefault(unit.key, unit)
            both = tuple(dict.fromkeys((*one.audits, *unit.audits)))
            longest = max(one.minutes, unit.minutes)
            wanted[unit.key] = replace(one, audits=both, minutes=longest, needs=one.needs or unit.needs)

        for unit in units:
            known = [] if self.args.rehearse else read_rows(unit.study)
            if is_recorded(unit, [*known, *self.rows.get(unit.study, ())]):
                continue
            if unit.needs is not None and self.trained(unit.needs) is None:
                want(unit.needs)
            want(unit)
        return list(wanted.values())

    def commands(self, unit: Unit) -> list[list[str]]:
        where = self.data_words(unit)
        made = "--data" in where  # with its share of conflict in it
        told = tuple(flag for flag in unit.flags if not (made and flag[0] == "conflict"))
        words = [*replace(unit, flags=told).words(), "--out", str(self.folder(unit) / "runs"), "--quiet", *where]
        words += TINY if self.args.rehearse else ()
        commands = [words]
        run = self.folder(unit) / "runs" / _run_name(unit)
        for name in unit.audits:
            audit = self.audits[name]
            given = {key: str(value) for key, value in audit.get("set", {}).items()}
            if self.args.rehearse:
                given |= _few_images(audit.get("checks"))
            settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
            where = ["--out", str(self.folder(unit) / f"audit-{name}"), "--quiet"]
            where += ["--device", "cpu"] if self.args.rehearse else []
            root = ["--root", str(self.root)] if self.root else []
            checks = ["--checks", *audit["checks"]] if "checks" in audit else []
            commands.append(["holdfast", "audit", str(run), *checks, *settings, *where, *root])
        return commands

    def data_words(self, unit: Unit) -> list[str]:
        """Where its data lies; a corrupted set is made once, for all that use it."""
        root = ["--root", str(self.root)] if self.root else []
        values = _cell_values(unit)
        name, conflict = str(values.get("data")), dict(unit.flags).get("conflict", str(values.get("conflict")))
        if not name.startswith(CORRUPTED):
            return root
        kind = name.removeprefix(CORRUPTED)
        path = self.out / "data" / f"{name}-{conflict}.npz"
        if not path.exists():
            device = "cpu" if self.args.rehearse else "cuda"
            make = ["holdfast", "data", "make", "corrupted-cifar10", "--kind", kind, "--conflict", conflict]
            make += ["--out", str(path), "--device", device, *root]
            path.parent.mkdir(parents=True, exist_ok=True)
            how: dict[str, Any] = {"cwd": PAPERS.parent, "env": {**os.environ, **sources()}}
            made = subprocess.run([sys.executable, "-m", *make], capture_output=True, text=True, **how)
            if made.returncode:
                raise RuntimeError(f"{name} cannot be made: {made.stderr.strip().splitlines()[-1:]}")
        return ["--data", str(path)]

    def write(self) -> None:
        """What came of everything so far, complete or not at all."""
        self.out.mkdir(parents=True, exist_ok=True)
        place = self.out / "collected.json.part"
        place.write_text(json.dumps({"rows": self.rows, "ended": self.ended}, indent=1, ensure_ascii=False) + "\n")
        place.replace(self.out / "collected.json")

    def end_of(self, running: Running, how: str) -> None:
        minutes = (time.monotonic() - running.began) / 60
        unit = running.unit
        if running.done:  # the training ended, whatever became of its audits
            try:
                audited = replace(unit, audits=unit.audits[: running.done - 1])
                same = {"beside": self.args.parallel, "commit": self.commit, "hardware": self.hardware}
                row = collect_unit(audited, running.folder, **same)
                self.rows[unit.study] = merged(self.rows.get(unit.study, ()), [row])
                how += "" if how == "finished" else "; what it trained and measured is kept"
            except Exception as error:
                how = f"failed to be read: {type(error).__name__}: {error}"
        self.ended.append({"unit": unit.name, "how": how, "minutes": round(minutes, 2), "estimated": unit.minutes})
        print(f"{unit.name}: {how} ({minutes:.1f} min, alone {unit.minutes:g} estimated)", flush=True)
        self.write()
        if how == "finished" and not self.args.keep:  # checkpoints fill a small disk
            for path in running.folder.glob("runs/*/checkpoint"):
                shutil.rmtree(path, ignore_errors=True)

    def run(self, todo: list[Unit], environment: dict[str, str]) -> None:
        at_work: list[Running] = []
        broken: set[object] = set()
        try:
            while True:
                for running in list(at_work):
                    needs = running.unit.needs
                    how = running.step(environment, needs and self.trained(needs))
                    if needs and needs.key in broken and running.waits_for_another():
                        how = f"left out: {needs.name} failed"
                    if how:
                        at_work.remove(running)
                        self.end_of(running, how)
                        if how != "finished":
                            broken.add(running.unit.key)
                later = self.left() + self.args.more
                for unit in list(todo):
                    if self.left() <= 0:
                        break
                    if not self.has_place(unit, at_work):
                        continue
                    if unit.needs is not None and self.trained(unit.needs) is None:
                        if unit.needs.key in broken:
                            todo.remove(unit)
                            self.ended.append({"unit": unit.name, "how": f"left out: {unit.needs.name} failed"})
                        if all(unit.needs.key != running.unit.key for running in at_work):
                            continue
                    if not self.args.rehearse and unit.minutes * self.slower(unit) > later:
                        continue
                    todo.remove(unit)
                    if started := self.start(unit):
                        at_work.append(started)
                if not at_work or self.left() <= 0:
                    break
                time.sleep(0.3)
        finally:
            self.stop(at_work)
            self.write()

    def start(self, unit: Unit) -> Running | None:
        folder = self.folder(unit)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return Running(unit, folder, self.commands(unit))
        except Exception as error:
            self.end_of(Running(unit, folder, []), f"failed to start: {type(error).__name__}: {error}")
            return None

    def stop(self, at_work: Sequence[Running]) -> None:
        for running in at_work:
            running.end(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for running in at_work:
            with suppress(subprocess.TimeoutExpired):
                if running.process is not None:
                    running.process.wait(max(0.1, until - time.monotonic()))
            running.end(signal.SIGKILL)
            self.end_of(running, "not finished; the same command continues it")


def sources() -> dict[str, str]:
    """What a command of ours needs in its environment where holdfast is not installed."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(PAPERS.parent / "src"), os.environ.get("PYTHONPATH", "")]))}


def _run_name(unit: Unit) -> str:
    from holdfast.comparisons.plans import GridCell
    from holdfast.comparisons.running import folder_name
    from holdfast.settings import TrainSettings, build

    return folder_name(GridCell(unit.cell, TrainSettings()), build(TrainSettings, {"seed": unit.seed}))


def _cell_values(unit: Unit) -> dict[str, Any]:
    from holdfast.comparisons.plans import study_cells

    return study_cells(str(PAPERS / f"{unit.study}.yaml"))[unit.cell]


def _few_images(checks: Sequence[str] | None) -> dict[str, str]:
    """Eight images for each check that can do with some."""
    from holdfast.parts import CHECKS

    names = [name for name in checks or CHECKS if any(f.name == "images" for f in fields(CHECKS[name].made))]
    return {f"{name}.images": "8" for name in names}


def _provenance(*, gpu: bool) -> tuple[str, str]:
    """(Commit, hardware.) The GPU is named by another program: a context of this process would stay open beside MPS."""
    from record import current_commit, hardware

    if gpu and shutil.which("nvidia-smi"):
        words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        named = subprocess.run(words, capture_output=True, text=True)
        if named.returncode == 0 and named.stdout.strip():
            return current_commit(), named.stdout.splitlines()[0].strip()
    return current_commit(), hardware(gpu=False)


def tiny_sets(root: Path) -> None:
    """Random pictures under the names of the sets, to rehearse with."""
    import numpy as np

    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("cifar10", "svhn"):
        parts = {"train": 320, "test": 100}
        images = {f"x_{p}": rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for p, n in parts.items()}
        np.savez(root / f"{name}.npz", **images, **{f"y_{p}": np.arange(n) % 10 for p, n in parts.items()})


def show(todo: Sequence[Unit]) -> None:
    """What is missing, by study in the order of the queue, with its minutes on one H200 alone."""
    studies: dict[str, list[Unit]] = {}
    for unit in todo:
        studies.setdefault(unit.study, []).append(unit)
    for study, own in studies.items():
        cells = ", ".join(f"{cell} × {sum(u.cell == cell for u in own)}" for cell in dict.fromkeys(u.cell for u in own))
        print(f"{study}: {len(own)} trainings, {sum(u.minutes for u in own):.0f} minutes: {cells}")
    print(f"{len(todo)} trainings, {sum(u.minutes for u in todo):.0f} minutes one after the other")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="after which nothing runs any more")
    parser.add_argument("--more", type=float, default=0.0, help="minutes of later calls: what does not fit into this "
                        "one may be started, is stopped with a checkpoint, and continues then")  # fmt: skip
    parser.add_argument("--parallel", type=int, default=2, help="trainings at once")
    parser.add_argument("--large", type=int, default=0, help="so many with large steps, which fill the GPU, and "
                        "the rest with small ones (default: as the queue has them)")  # fmt: skip
    parser.add_argument("--root", type=Path, help="folder of cifar10.npz, svhn.npz")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--queue", type=Path, default=QUEUE)
    parser.add_argument("--match", default="", help="only units whose name has this in it")
    parser.add_argument("--most", type=int, help="only so many units")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints of finished trainings")
    parser.add_argument("--plan", action="store_true", help="say what is missing, and stop")
    parser.add_argument("--rehearse", action="store_true", help="one epoch of a small network on noise, on a CPU")
    args = parser.parse_args()
    if not 0 <= args.large < args.parallel:
        parser.error(f"--large {args.large}: must be at least 0 and less than --parallel, which is {args.parallel}")
    return args


def main() -> None:
    args = parse()
    units, audits = read_queue(args.queue)
    if args.rehearse:
        args.root = args.out / "tiny"
        tiny_sets(args.root)
    if not any(args.match in unit.name for unit in units):
        sys.exit(f"no unit of {args.queue} has {args.match!r} in its name, such as {units[0].name}")
    run = QueueRun(args, audits)
    todo = [unit for unit in run.missing(units) if args.match in unit.name][: args.most]
    if args.plan:
        show(todo)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that trainings are told to save
    from holdfast.executors.local_processes import sharing_gpus

    with sharing_gpus(args.parallel > 1 and not args.rehearse) as shared:
        each = max(1, (os.cpu_count() or 2) // args.parallel)  # by default every training compiles with all cores
        threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": str(each)}
        run.run(todo, {**os.environ, **shared, **threads, **sources()})
    states = [re.match("finished|not finished|left out|failed", end["how"])[0] for end in run.ended]  # type: ignore[index]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    print(f"{counts or 'nothing was started'}; rows in {args.out / 'collected.json'}")


if __name__ == "__main__":
    main()
