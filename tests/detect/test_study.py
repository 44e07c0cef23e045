"""The study at tiny settings on the embedded digits: runs, continues where it stopped, and adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from holdfast.data.anomalies import make_digits_anomalies
from holdfast.detect import study
from holdfast.detect.study import StudySettings, read_study, run_study
from holdfast.detect.study_tables import FAITHFUL, tables

TINY = StudySettings(
    seeds=1,
    epochs=1,
    batch_size=50,
    our_epochs=2,
    rotation_epochs=1,
    head_epochs=2,
    label_epochs=2,
    fixmatch_epochs=1,
    fixmatch_ratio=1,
    model="convnet",
    precision="fp32",
)


def test_digits_with_anomalies_are_cut_as_told() -> None:
    data = make_digits_anomalies(seed=1)
    assert [len(s) for s in (data.unlabeled, data.labeled, *data.sets)] == [500, 100, 140, 140]
    assert int(data.anomalous(data.pooled()).sum()) == 80
    rows = [bytes(i.flatten().tolist()) for s in (data.unlabeled, data.labeled) for i in s.images]
    test = [bytes(i.flatten().tolist()) for s in data.sets for i in s.images]
    assert not set(rows) & set(test)


def test_it_runs_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = [name for name, _ in study.jobs(TINY)]
    assert every[:3] == [FAITHFUL, "ours", "report-learned-sigma"]
    assert len(every) == 8
    short = [job for job in study.jobs(TINY) if job[0] in (FAITHFUL, "ours")]
    monkeypatch.setattr(study, "jobs", lambda settings: iter(short))
    said: list[str] = []
    none = run_study(lambda seed: make_digits_anomalies(seed=seed), tmp_path, TINY, minutes=-1, note=said.append)
    assert none == []
    assert said == ["out of time: run the same command again to continue"]
    records = run_study(lambda seed: make_digits_anomalies(seed=seed), tmp_path, TINY)
    assert [r["job"] for r in records] == ["ours", FAITHFUL]

    def refuse(seed: int) -> None:
        raise AssertionError("everything is there already")

    assert run_study(refuse, tmp_path, TINY) == records == read_study(tmp_path)  # type: ignore[arg-type]
    faithful = records[1]
    assert faithful["settings"]["network"] == "report"
    assert faithful["sigma"] == pytest.approx(0.5**0.5)
    assert set(faithful["heads"]["accuracy"]) >= {"frozen, both mistakes", "frozen, no mistakes"}
    assert set(faithful["map"]) == {"mean", "drawn"}
    text = tables(records)
    value = records[0]["scores"]["fused"]["pooled"]["auroc"][0]
    assert f"| ours | fused | {value:.3f} |" in text
    assert "frozen, both mistakes" in text
    assert json.loads((tmp_path / f"{FAITHFUL}-seed{TINY.first_seed}.json").read_text()) == faithful


def test_a_rate_that_diverges_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = [("wild", lambda data, seed: study.report_job(data, seed, TINY, latent=2, lr=1e30))]
    monkeypatch.setattr(study, "jobs", lambda settings: iter(wild))
    (record,) = run_study(lambda seed: make_digits_anomalies(seed=seed), tmp_path, TINY)
    assert "training diverged" in record["error"]
    assert "training diverged" in tables([record])


def test_the_reports_cut_is_made_on_the_test_set_itself() -> None:
    scores, truth = torch.tensor([0.0, 1.0, 2.0, 10.0]), torch.tensor([False, False, True, True])
    assert study._report_cut(scores, truth) == {
        "anomalies found": 1, "anomalies": 2, "normal passed": 2, "normal": 2
    }  # fmt: skip
