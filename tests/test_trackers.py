"""Trackers get what the run folder has: settings, every epoch, results, findings and report; none ends a training."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import holdfast
from holdfast import trackers
from holdfast.cli import main
from holdfast.data.splits import all_images
from holdfast.errors import HoldfastError
from holdfast.parts import TRACKERS, TrackerPart
from holdfast.reports import read_findings
from holdfast.trackers import ARTIFACTS, AUDIT_ARTIFACTS, TrackedRun, Tracking
from holdfast.train import fit
from tests.conftest import make_data

QUICK: dict[str, Any] = {"device": "cpu", "batch_size": 16, "epochs": 2}


class Recorder:
    """Remembers what it is told; ``fails`` names the function that raises."""

    told: ClassVar[list[tuple[str, Any]]] = []
    fails: ClassVar[str] = ""

    def start(self, run: TrackedRun) -> str:
        return self._tell("start", run) or "id-7"

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._tell("log", (dict(values), step))

    def finish(self, results: Mapping[str, float], files: Sequence[Path], status: str) -> None:
        self._tell("finish", (dict(results), [path.name for path in files], status))

    def _tell(self, name: str, value: Any) -> None:
        self.told.append((name, value))
        if self.fails == name:
            raise ConnectionError("the server is gone\nand a page of trace")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """A tracker of somebody else's, for one test."""
    monkeypatch.setattr(Recorder, "told", [])
    part = TrackerPart(name="recorder", about="Remembers.", made=Recorder, package="json", remedy="plug it in")
    len(TRACKERS)  # finds the package's own first
    monkeypatch.setitem(TRACKERS._parts, "recorder", part)
    return Recorder.told


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def floats(record: Mapping[str, Any]) -> dict[str, float]:
    return {f"{record['stage']}/{key}": value for key, value in record.items() if isinstance(value, float)}


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, path = make_data(), tmp_path_factory.mktemp("data") / "bars.npz"
    assert data.test is not None
    arrays = {f"x_{name}": all_images(own).permute(0, 2, 3, 1).numpy() for name, own in data.splits.items()}
    np.savez(path, **arrays, **{f"y_{name}": own.labels.numpy() for name, own in data.splits.items()})
    return path


def train(bars: Path, out: Path, *words: str) -> int:
    quick = ["--device", "cpu", "--batch-size", "16", "--epochs", "2", "--workers", "0", "--quiet"]
    return main(["train", "--data", str(bars), *quick, "--out", str(out), *words])


def test_a_tracker_gets_settings_epochs_results_and_files(
    bars: Path, tmp_path: Path, recorder: list[tuple[str, Any]]
) -> None:
    assert train(bars, tmp_path / "run", "--track", "recorder", "--method", "lff", "--track-project", "birds") == 0
    (_, run), *epochs, (last, (results, files, status)) = recorder
    assert (run.name, run.folder, run.project, run.known, run.step) == ("run", tmp_path / "run", "birds", None, None)
    assert run.settings["epochs"] == 2
    assert run.settings["method"] == "lff"
    assert run.settings["method.q"] == 0.7
    assert epochs == [("log", (floats(record), record["step"])) for record in lines(tmp_path / "run")]
    found = read_findings(tmp_path / "run" / "findings.json").findings
    overall = {f.name: f.value for f in found if not f.where and f.value is not None}
    assert last == "finish"
    assert results == overall
    assert results["accuracy"] > 0
    assert (files, status) == (list(ARTIFACTS), "finished")


def test_a_tracker_that_fails_later_does_not_end_the_training(
    tmp_path: Path, recorder: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fit(make_data(), **QUICK)
    monkeypatch.setattr(Recorder, "fails", "log")
    result = fit(make_data(), track=["recorder"], out=tmp_path / "run", **QUICK)
    assert [name for name, _ in recorder] == ["start", "log"]
    for ours, theirs in zip(plain.model.parameters(), result.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    said: list[str] = []
    with Tracking(["recorder"], note=said.append) as tracking:
        tracking.begin({})
        tracking.epoch({"stage": "main", "step": 1, "train_loss": 0.5})
    assert said == ["warning: recorder failed and gets nothing more of this training: the server is gone"]


def test_a_tracker_that_cannot_start_leaves_no_run(
    tmp_path: Path, recorder: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "fails", "start")
    message = "cannot start recorder: the server is gone; plug it in, or leave it out of --track"
    with pytest.raises(HoldfastError, match=message):
        fit(make_data(), track=["recorder"], out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_how_a_training_ended_and_where_it_resumes(tmp_path: Path, recorder: list[tuple[str, Any]]) -> None:
    class Stops(torch.nn.Module):
        def __init__(self, calls: int) -> None:
            super().__init__()
            self.layer, self.left = torch.nn.Linear(64, 3), calls

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.left -= self.training
            if self.left < 0:
                raise ZeroDivisionError
            out: torch.Tensor = self.layer(x.flatten(1))
            return out

    out = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        fit(make_data(), model=Stops(8), track=["recorder"], out=out, **QUICK)
    assert recorder[-1][1][2] == "failed"
    assert json.loads((out / "trackers.json").read_text()) == {"recorder": "id-7"}
    recorder.clear()
    fit(make_data(), model=Stops(99), track=["recorder"], out=out, resume=True, **QUICK)
    assert (recorder[0][1].known, recorder[0][1].step) == ("id-7", 6)
    assert [step for name, (_, step, *_) in recorder[1:-1] if name == "log"] == [12]
    assert recorder[-1][1][2] == "finished"
    tracking = Tracking(["recorder"])
    tracking.begin({})
    tracking.__exit__(KeyboardInterrupt)
    assert recorder[-1][1][2] == "stopped"


def test_unknown_trackers_and_missing_packages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--track", "wandbb", "--out", str(tmp_path / "run")]) == 2
    assert "unknown tracker 'wandbb'; did you mean 'wandb'?" in capsys.readouterr().err
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    for name in ("tensorboard", "mlflow", "wandb"):
        with pytest.raises(HoldfastError, match=rf"--track {name} needs a package; .*'holdfast\[{name}\]'"):
            fit(make_data(), track=[name], out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_tensorboard_needs_a_folder() -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(HoldfastError, match="--track tensorboard needs a folder; give --out"):
        fit(make_data(), track=["tensorboard"], **QUICK)


@pytest.fixture(scope="module")
def trained(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "trained"
    assert train(bars, out) == 0
    return out


@pytest.mark.slow
def test_an_audit_is_recorded_with_its_headlines_findings_and_report(
    trained: Path, tmp_path: Path, recorder: list[tuple[str, Any]]
) -> None:
    words = ["audit", str(trained), "--checks", "accuracy", "attacks", "--set", "attacks.images=8", "--device", "cpu"]
    words += ["--out", str(tmp_path / "audit"), "--workers", "0", "--quiet", "--track", "recorder"]
    assert main([*words, "--track-project", "birds", "--fail-under", "accuracy=0.99"]) == 1
    (_, run), (last, (results, files, status)) = recorder
    assert (run.name, run.folder, run.project) == ("audit", tmp_path / "audit", "birds")
    assert run.settings["checks"] == "accuracy attacks"
    assert run.settings["model"] == "trained"
    assert run.settings["seed"] == "0"
    file = read_findings(tmp_path / "audit" / "findings.json")
    headline = {m.name for m in file.measures.values() if m.headline}
    assert {name.partition("/")[0] for name in results} <= headline | {"passed"}
    assert results["accuracy"] == next(f.value for f in file.findings if f.name == "accuracy" and not f.where)
    assert sum(name.startswith("robust_accuracy/") for name in results) >= 1
    assert all(re.fullmatch(r"[\w./ -]+", name) for name in results), "what MLflow takes as the name of a metric"
    assert results["passed"] == 0
    assert (last, files, status) == ("finish", list(AUDIT_ARTIFACTS), "finished")


def test_audits_of_several_models_and_those_that_fail(
    trained: Path, bars: Path, tmp_path: Path, recorder: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"checks": ["accuracy"], "device": "cpu", "workers": 0}
    made = holdfast.audit(trained, against=trained, out=tmp_path / "two", track="recorder", **how)
    (_, run), (_, (results, files, _)) = recorder
    assert run.settings["against"] == made.files[1].model["name"]
    assert files == ["report.html", "summary.md", "junit.xml", "findings.json"]
    assert results["accuracy"] == made["accuracy"].value
    recorder.clear()
    holdfast.audit(trained, track=["recorder"], **how)  # without a folder there are no files to keep
    assert [(name, told[1]) for name, told in recorder[1:]] == [("finish", [])]
    assert recorder[0][1].name == "bars.npz-trained"
    recorder.clear()
    with pytest.raises(HoldfastError, match="unknown tracker 'recoder'; did you mean 'recorder'"):
        holdfast.audit(trained, track="recoder", **how)
    with pytest.raises(HoldfastError, match="unknown check"):
        holdfast.audit(trained, track="recorder", **how | {"checks": ["acuracy"]})
    assert recorder == []
    assert main(["audit", str(trained), "--track", "recoder"]) == 2
    monkeypatch.setattr(Recorder, "fails", "finish")
    with pytest.warns(UserWarning, match="recorder failed and gets nothing more of this audit: the server is gone"):
        assert holdfast.audit(trained, track="recorder", **how).passed


@pytest.mark.dev
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # its own, on its store and its dependencies
def test_mlflow_has_the_run_and_resuming_continues_it(
    bars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "birds")
    mlflow.set_tracking_uri(store)
    run = tmp_path / "run"
    assert train(bars, run, "--track", "mlflow") == 0
    client = mlflow.MlflowClient()
    (experiment,) = [e for e in client.search_experiments() if e.name == "birds"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["epochs"] == "2"
    for name in ("train_loss", "test_accuracy", "lr"):
        history = client.get_metric_history(found.info.run_id, f"main/{name}")
        assert [(m.step, m.value) for m in history] == [(row["step"], row[name]) for row in lines(run)]
    assert found.data.metrics["accuracy"] == next(
        f.value for f in read_findings(run / "findings.json").findings if f.name == "accuracy" and not f.where
    )
    kept = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert kept == {*ARTIFACTS}
    assert train(bars, run, "--track", "mlflow", "--resume") == 0
    assert len(client.search_runs([experiment.experiment_id])) == 1, "the same run, not another"
    out = tmp_path / "audit"
    words = ["audit", str(run), "--checks", "accuracy", "attacks", "--set", "attacks.images=8", "--out", str(out)]
    assert main([*words, "--track", "mlflow", "--track-project", "audits", "--device", "cpu", "--quiet"]) == 0
    (experiment,) = [e for e in client.search_experiments() if e.name == "audits"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.metrics["passed"] == 1
    assert {item.path for item in client.list_artifacts(found.info.run_id)} == {*AUDIT_ARTIFACTS}
    with mlflow.start_run() as active:  # a run of the caller's is used and stays open
        fit(make_data(), track=["mlflow"], **QUICK)
        assert mlflow.active_run().info.run_id == active.info.run_id
        assert client.get_run(active.info.run_id).info.status == "RUNNING"
        assert "main/train_loss" in client.get_run(active.info.run_id).data.metrics


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Weights & Biases writes, and nothing leaves this machine."""
    wandb = pytest.importorskip("wandb")
    folder = tmp_path / "offline"
    folder.mkdir()
    for name, value in {"MODE": "offline", "DIR": str(folder), "SILENT": "true", "PROJECT": "birds"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for name in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name.lower()))
    yield folder
    wandb.teardown()  # it reads these variables once


@pytest.mark.dev
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # its own
def test_wandb_offline_has_the_run(bars: Path, tmp_path: Path, offline: Path) -> None:
    run = tmp_path / "run"
    assert train(bars, run, "--track", "wandb") == 0
    records = wandb_records(offline)
    begun, ended = wandb_run(records)
    assert (begun.project, begun.display_name, ended) == ("birds", "run", 0)
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (config["epochs"], config["method"]) == (2, "erm")
    logged = [wandb_values(r.history.item) for r in records if r.HasField("history")]
    rows = [row for row in logged if "main/train_loss" in row]
    assert [row["main/train_loss"] for row in rows] == pytest.approx([line["train_loss"] for line in lines(run)])
    assert [row["_step"] for row in rows] == [line["step"] for line in lines(run)]
    accuracy = next(f for f in read_findings(run / "findings.json").findings if f.name == "accuracy" and not f.where)
    assert wandb_summary(records)["accuracy"] == pytest.approx(accuracy.value)
    assert wandb_files(records) == {*ARTIFACTS}


@pytest.mark.dev
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # its own
def test_wandb_offline_has_the_audit_and_knows_one_that_failed(
    trained: Path, tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["audit", str(trained), "--checks", "accuracy", "--device", "cpu", "--track", "wandb", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "audit"), "--fail-under", "accuracy=0.99"]) == 1
    records = wandb_records(offline)
    begun, ended = wandb_run(records)
    assert (begun.project, begun.display_name, ended) == ("birds", "audit", 0)  # the audit did all it was to do
    summary = wandb_summary(records)
    accuracy = next(
        f for f in read_findings(tmp_path / "audit/findings.json").findings if f.name == "accuracy" and not f.where
    )
    assert (summary["accuracy"], summary["passed"]) == (pytest.approx(accuracy.value), 0)
    assert wandb_files(records) == {*AUDIT_ARTIFACTS}

    shutil.rmtree(offline / "wandb")
    monkeypatch.setattr("holdfast.audits.run_audit.judge_all", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([*words, "--out", str(tmp_path / "failed")])
    assert wandb_run(wandb_records(offline))[1] == 1


def wandb_records(folder: Path) -> list[Any]:
    """The records of the only run below a folder."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service may not have written the last of them yet
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    records = []
    for content in wandb_contents(path.read_bytes()):
        records.append(record := wandb_internal_pb2.Record())
        record.ParseFromString(content)
    return records


def wandb_contents(file: bytes) -> Iterator[bytes]:
    """Weights & Biases' file is a log of LevelDB's: blocks of 32 KiB of pieces with checksum, length and kind."""
    place, pieces = 7, b""  # its own header comes first
    while place + 7 <= len(file):
        if (left := -place % 32768) < 7 and left:  # no piece begins there
            place += left
            continue
        size, kind = struct.unpack("<HB", file[place + 4 : place + 7])
        pieces += file[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield pieces
            pieces = b""


def wandb_values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def wandb_run(records: list[Any]) -> tuple[Any, int]:
    """The run as it began, and its exit code."""
    (begun,) = [record.run for record in records if record.HasField("run")]
    (ended,) = [record.exit.exit_code for record in records if record.HasField("exit")]
    return begun, ended


def wandb_summary(records: list[Any]) -> dict[str, Any]:
    return {key: v for r in records if r.HasField("summary") for key, v in wandb_values(r.summary.update).items()}


def wandb_files(records: list[Any]) -> set[str]:
    """Names of the files in its artifacts."""
    of = [r.request.log_artifact.artifact if r.HasField("request") else r.artifact for r in records]
    return {entry.path for artifact in of for entry in artifact.manifest.contents}
