"""The papers' results: the queue can be run, and what it adds changes nothing old."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collect import add
from evidence import PAPERS, Unit, is_recorded, merged, read_queue, read_rows, results_file
from readme_tables import Table
from run_queue import QueueRun, Running, main

from holdfast.comparisons.plans import study_cells, study_engine
from holdfast.settings import TrainSettings, build, flatten
from holdfast.settings.command_settings import EngineSettings

UNITS, AUDITS = read_queue()


@pytest.mark.parametrize("study", sorted({unit.study for unit in UNITS}))
def test_every_unit_of_the_queue_is_a_cell_that_can_be_built(study: str) -> None:
    cells = study_cells(str(PAPERS / f"{study}.yaml"))
    for unit in (unit for unit in UNITS if unit.study == study):
        flags = dict(unit.flags)
        if "conflict" in flags:
            flags["conflict"] = float(flags["conflict"])  # type: ignore[assignment]
        build(TrainSettings, cells[unit.cell] | flags)
        assert unit.minutes > 0
        assert set(unit.audits) <= set(AUDITS)


def recorded_studies() -> list[str]:
    studies = [f"{path.parent.name}/{path.stem}" for path in sorted(PAPERS.glob("*/*.yaml"))]
    return [s for s in studies if results_file(s).exists() and "rows" in json.loads(results_file(s).read_bytes())]


@pytest.mark.parametrize("study", recorded_studies())
def test_a_row_recorded_on_a_cpu_is_trained_with_the_same_threads_again(study: str) -> None:
    """Threads decide how sums are rounded. The queue trains with one; so does whoever repeats a row by its command."""
    on_cpu = any("H200" not in row["hardware"] for row in read_rows(study))
    where = study_engine(EngineSettings(), str(PAPERS / f"{study}.yaml"))
    assert where.threads == (1 if on_cpu else None)


DECIDED = ("warmup", "precision", "channels_last", "compile")
"""Settings that a run decides by its data and device and then records, where a study leaves them open."""


@pytest.mark.parametrize("study", recorded_studies())
def test_a_row_is_trained_again_with_the_settings_that_were_recorded(study: str) -> None:
    """A default that changes, or a study that is edited, must not change what the command of a row trains."""
    cells = study_cells(str(PAPERS / f"{study}.yaml"))
    for row in (row for row in read_rows(study) if "settings" in row):
        flags = {name: float(value) if name == "conflict" else value for name, value in row["flags"].items()}
        now = flatten(build(TrainSettings, cells[row["cell"]] | flags))
        then = flatten(TrainSettings()) | row["settings"]
        if then["data"] == f"{now['data']}-{now['conflict']}":  # made beforehand
            then |= {name: now[name] for name in ("data", "conflict")}
        if row["cell"] == "mixup":
            then["method"] = {name: value for name, value in then["method"].items() if name != "beta"}  # was never used
        if isinstance(then["method"], dict):  # a setting that is younger than the row must change nothing
            usual = build(TrainSettings, {"method": then["method"]["name"]})
            then["method"] = flatten(usual)["method"] | then["method"]
        then |= {name: now[name] for name in DECIDED if now[name] in (None, "auto")}
        then["device"] = "auto" if "NVIDIA" in row["hardware"] else "cpu"  # a GPU rounds otherwise
        assert now == then | {"seed": 0}, f"{row['cell']} of seed {row['seed']}"


def test_what_was_carried_over_is_what_was_recorded() -> None:
    old = json.loads((PAPERS / "biasadv/results/readings_200_epochs.json").read_bytes())["figures"]
    names = {"erm": "erm", "lff": "lff", "l2 2, clean running statistics": "lff+biasadv favoured"}
    by_cell = {(names.get(r["reading"]), r["conflict"], r["seed"]): r for r in old}
    rows = [row for row in read_rows("biasadv/full-schedule") if "readings_200" in row.get("note", "")]
    assert len(rows) == 9
    for row in rows:
        before = by_cell[row["cell"], float(row["flags"].get("conflict", 0.05)), row["seed"]]
        numbers = {name: own[0] for name, own in row["measures"].items()}
        assert list(numbers.values()) == [before["average"], before["aligned"], before["conflicting"]]


def test_what_comes_back_changes_nothing_that_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evidence.PAPERS", tmp_path)
    first = {"cell": "erm", "seed": 0, "flags": {}, "started": "then", "measures": {"accuracy": [0.9, None, None, 9]}}
    again = {**first, "started": "now", "measures": {"accuracy": [0.8, None, None, 9]}, "audits": {"x": {"n": 1}}}
    other = {**first, "flags": {"conflict": "0.01"}}
    add({"mine/one": [first]})
    add({"mine/one": [again, other]})
    rows = read_rows("mine/one")
    assert [row["measures"]["accuracy"][0] for row in rows] == [0.9, 0.9]
    assert rows[0]["audits"]["x"] == {"n": 1, "of_another_training": again["measures"]}
    unit = Unit("mine/one", "erm", 0)
    assert is_recorded(unit, rows)
    assert not is_recorded(Unit("mine/one", "erm", 1), rows)
    assert not is_recorded(Unit("mine/one", "erm", 0, audits=("y",)), rows)
    assert merged(rows, [again]) == rows


def arguments(out: Path, **changed: Any) -> argparse.Namespace:
    usual = {
        "minutes": 1.0,
        "more": 0.0,
        "parallel": 2,
        "large": 0,
        "root": None,
        "out": out,
        "rehearse": True,
        "keep": False,
    }
    return argparse.Namespace(**usual | changed)


def test_one_that_fails_or_does_not_end_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {"bad": ["no_such_module"], "slow": ["timeit", "-n1", "-r1", "import time; time.sleep(60)"],
               "good": ["timeit", "-n1", "-r1", "pass"]}  # fmt: skip
    monkeypatch.setattr(QueueRun, "commands", lambda self, unit: [scripts[unit.cell]])
    monkeypatch.setattr("run_queue.collect_unit", lambda unit, *_, **__: {"cell": unit.cell, "seed": unit.seed})
    signals: list[tuple[str, int]] = []
    end = Running.end

    def noted(self: Running, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            signals.append((self.unit.cell, number))
        end(self, number)

    monkeypatch.setattr(Running, "end", noted)
    run = QueueRun(arguments(tmp_path, minutes=0.05), {})
    needy = Unit("a/b", "good", 5, needs=Unit("a/b", "bad", 0))
    run.run([Unit("a/b", cell, seed) for cell in ("bad", "slow", "good") for seed in (0,)] + [needy], {})
    how = {end["unit"]: end["how"] for end in run.ended}
    assert "failed with exit code 1" in how["a-b-bad-seed0"]
    assert "No module named no_such_module" in how["a-b-bad-seed0"]
    assert how["a-b-good-seed0"] == "finished"
    assert how["a-b-good-seed5"] == "left out: a-b-bad-seed0 failed"
    assert how["a-b-slow-seed0"] == "not finished; the same command continues it"
    assert signals == [("slow", signal.SIGTERM)]  # so that a training saves a checkpoint
    kept = json.loads((tmp_path / "collected.json").read_bytes())
    assert kept == {"rows": {"a/b": [{"cell": "good", "seed": 0}]}, "ended": run.ended}


def test_what_would_not_end_in_time_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(QueueRun, "start", lambda self, unit: begun.append(unit.name))
    units = [Unit("a/b", cell, 0, minutes=m) for cell, m in (("long", 8.0), ("short", 5.0))]
    for more in (0.0, 3.0):
        run = QueueRun(arguments(tmp_path, minutes=9, more=more, rehearse=False, parallel=2), {})
        run.run(list(units), {})
    assert begun == ["a-b-short-seed0", "a-b-long-seed0", "a-b-short-seed0"]  # two at once: 8 minutes take 11
    begun.clear()
    run = QueueRun(arguments(tmp_path, minutes=9, rehearse=False, parallel=2), {})
    run.run([Unit("a/b", "large", 0, minutes=5.0, gains=1.1), Unit("a/b", "short", 0, minutes=5.0, gains=1.4)], {})
    assert begun == ["a-b-short-seed0"], "5 minutes take 9.1 where two at once do hardly more than one"


def test_large_and_small_steps_train_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(Exception):
        """What is at work when nothing more is begun."""

    def pause(_: float) -> None:
        raise Begun

    begun: list[str] = []
    monkeypatch.setattr(QueueRun, "start", lambda self, unit: begun.append(unit.cell) or Running(unit, tmp_path, []))
    monkeypatch.setattr("run_queue.time.sleep", pause)
    large = [Unit("a/b", f"large {i}", 0, minutes=4.0, gains=1.4) for i in range(4)]
    small = [Unit("a/b", f"small {i}", 0, minutes=4.0) for i in range(4)]
    run = QueueRun(arguments(tmp_path, minutes=9, rehearse=False, parallel=5, large=2), {})
    with pytest.raises(Begun):
        run.run([*large, *small], {})
    assert begun == ["large 0", "large 1", "small 0", "small 1", "small 2"]
    assert [round(4.0 * run.slower(unit), 1) for unit in (large[0], small[0])] == [8.9, 8.9]


def test_all_places_for_large_steps_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run_queue.py", "--parallel", "3", "--large", "3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--large 3: must be at least 0 and less than --parallel, which is 3" in capsys.readouterr().err


def test_a_unit_is_one_command_and_one_for_each_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueRun, "data_words", lambda *_: ["--data", "made.npz"])
    run = QueueRun(
        arguments(tmp_path, rehearse=False), {"x": {"checks": ["attacks"], "set": {"attacks.surrogate": "NEEDED"}}}
    )
    other = Unit("alps/one", "erm", 1)
    model = tmp_path / other.name / "runs/erm-seed1"
    model.mkdir(parents=True)
    (model / "model.json").write_text("{}")
    train, audit = run.commands(Unit("alps/one", "alps", 0, (("conflict", "0.01"), ("lr", "0.1")), ("x",), needs=other))
    assert train[3:11] == [
        "papers/alps/one.yaml",
        "--only",
        "alps",
        "--seeds",
        "1",
        "--seed",
        "0",
        "--lr",
    ]  # no conflict
    assert audit[2].endswith("-seed0/runs/alps-seed0")
    assert "attacks.surrogate=NEEDED" in audit  # until it is run
    waiting = Running(Unit("alps/one", "alps", 0, needs=other), tmp_path, [audit])
    assert waiting.step({}, None) == ""
    assert waiting.process is None
    started: list[list[str]] = []
    monkeypatch.setattr("run_queue.subprocess.Popen", lambda words, **_: started.append(words))
    waiting.step({}, run.trained(other))
    assert f"attacks.surrogate={model}" in started[0]


def timed(code: str) -> list[str]:
    return ["timeit", "-n1", "-r1", code]


def test_a_unit_trains_beside_the_one_whose_model_its_audit_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, began = tmp_path / "a-b-erm-seed0/runs/erm", tmp_path / "alps began"
    wait = f"import pathlib, time; [pathlib.Path({str(began)!r}).exists() or time.sleep(0.05) for _ in range(400)]; "
    save = f"pathlib.Path({str(model)!r}).mkdir(parents=True); pathlib.Path({str(model / 'model.json')!r}).touch()"
    scripts = {
        "erm": [timed(f"{wait} assert pathlib.Path({str(began)!r}).exists(); {save}")],
        "alps": [
            timed(f"import pathlib; pathlib.Path({str(began)!r}).touch()"),
            timed(f"assert 'NEEDED' == {str(model)!r}"),
        ],
    }
    monkeypatch.setattr(QueueRun, "commands", lambda self, unit: scripts[unit.cell])
    monkeypatch.setattr("run_queue.collect_unit", lambda unit, *_, **__: {"cell": unit.cell, "seed": unit.seed})
    erm = Unit("a/b", "erm", 0)
    run = QueueRun(arguments(tmp_path), {})
    run.run([erm, Unit("a/b", "alps", 0, audits=("x",), needs=erm)], {})
    assert {end["unit"]: end["how"] for end in run.ended} == {"a-b-erm-seed0": "finished", "a-b-alps-seed0": "finished"}


def test_a_training_is_kept_when_its_audit_fails_or_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {"audit fails": [timed("pass"), timed("pass"), ["no_such_module"]], "needed fails": [["no_such_module"]],
               "needy": [timed("pass"), timed("NEEDED")]}  # fmt: skip
    monkeypatch.setattr(QueueRun, "commands", lambda self, unit: scripts[unit.cell])
    rows = {"audit fails": ("x",), "needy": ()}
    monkeypatch.setattr(
        "run_queue.collect_unit",
        lambda unit, *_, **__: {"cell": unit.cell, "seed": unit.seed, "audits": {name: {} for name in unit.audits}},
    )
    run = QueueRun(arguments(tmp_path, parallel=3), {})
    broken = Unit("a/b", "needed fails", 0)
    units = [broken, Unit("a/b", "needy", 0, audits=("x",), needs=broken)]
    run.run([*units, Unit("a/b", "audit fails", 0, audits=("x", "y"))], {})
    assert {row["cell"]: tuple(row["audits"]) for row in run.rows["a/b"]} == rows
    how = {end["unit"]: end["how"] for end in run.ended}
    assert how["a-b-needy-seed0"] == "left out: a-b-needed-fails-seed0 failed; what it trained and measured is kept"
    assert how["a-b-audit-fails-seed0"].startswith("failed with exit code 1")
    assert how["a-b-audit-fails-seed0"].endswith("; what it trained and measured is kept")


def test_sets_are_made_by_these_sources_where_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def noted(words: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        given.append(how.get("env") or {})
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    run = QueueRun(arguments(tmp_path), {})
    monkeypatch.setattr("run_queue.subprocess.run", noted)
    run.data_words(Unit("biasadv/full-schedule", "lff", 0))
    assert given[0].get("PYTHONPATH", "").split(os.pathsep) == [str(PAPERS.parent / "src"), "elsewhere"]


@pytest.mark.slow
def test_the_queue_is_rehearsed_from_data_to_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with an epoch of noise: a set is made, a training runs and is audited; then nothing is missing."""
    words = ["--rehearse", "--out", str(tmp_path / "out"), "--minutes", "5", "--match", "full-schedule-logit"]
    monkeypatch.setattr(sys, "argv", ["run_queue.py", *words, "--most", "1"])
    main()
    back = json.loads((tmp_path / "out/collected.json").read_bytes())
    assert [end["how"] for end in back["ended"]] == ["finished"]
    (row,) = back["rows"]["biasadv/full-schedule"]
    assert row["command"].endswith(
        "--study papers/biasadv/full-schedule.yaml --only logit-correction --seeds 1 --seed 0"
    )
    assert row["settings"]["method"]["name"] == "logit-correction"
    assert {"average_accuracy", "bias_conflicting_accuracy"} <= row["measures"].keys()
    assert QueueRun(arguments(tmp_path / "out"), AUDITS).missing(UNITS[:1]) == []
    monkeypatch.setattr("evidence.PAPERS", tmp_path / "papers")
    add(back["rows"])
    columns = {"average": "average_accuracy", "corrupted": "corruptions: mean_corruption_accuracy, strength=1"}
    spec = {"study": "full-schedule", "head": "m", "columns": columns, "rows": {"logit-correction": None}}
    assert " – " not in Table("biasadv", spec).lines()[2]
