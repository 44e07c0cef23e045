"""The study at tiny settings on the embedded digits: runs, continues where it stopped, and adds up."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from vae_report import study
from vae_report.bench import QUICK, Bench
from vae_report.digits_anomalies import make_digits_anomalies
from vae_report.judging import Record, report_cut
from vae_report.report_jobs import report_job
from vae_report.study import read_study, run_study, slim
from vae_report.tables import FAITHFUL, markdown

from holdfast.data.anomalies import AnomalySet
from holdfast.detect.evaluation import auroc
from holdfast.errors import HoldfastError

TINY = replace(
    QUICK, epochs=1, our_epochs=2, rotation_epochs=1, head_epochs=2, label_epochs=2, fixmatch_epochs=1, fixmatch_ratio=1
)


def test_digits_with_anomalies_are_cut_as_told() -> None:
    data = make_digits_anomalies(seed=1)
    assert [len(s) for s in (data.unlabeled, data.labeled, *data.sets)] == [500, 100, 140, 140]
    assert int(data.anomalous(data.pooled()).sum()) == 80
    rows = [bytes(i.flatten().tolist()) for s in (data.unlabeled, data.labeled) for i in s.images]
    test = [bytes(i.flatten().tolist()) for s in data.sets for i in s.images]
    assert not set(rows) & set(test)


def digits(seed: int) -> AnomalySet:
    return make_digits_anomalies(seed=seed)


@pytest.mark.slow
def test_it_runs_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(study.JOBS)[:3] == [FAITHFUL, "ours", "labels-fixmatch"]
    assert len(study.JOBS) == 23
    short = (FAITHFUL, "ours", "labels-rotation", "ours-labelled")
    monkeypatch.setattr("vae_report.study.JOBS", {name: study.JOBS[name] for name in short})
    said: list[str] = []
    assert run_study(digits, tmp_path, TINY, minutes=-1, note=said.append) == 0
    assert read_study(tmp_path) == []
    assert said == ["out of time: run the same command again to continue"]
    assert run_study(digits, tmp_path, TINY, part=(2, 2)) == 0
    assert [r["job"] for r in read_study(tmp_path)] == ["ours", "ours-labelled"]
    assert run_study(digits, tmp_path, TINY, part=(1, 2)) == 0
    records = read_study(tmp_path)
    assert tuple(r["job"] for r in records) == short

    def refuse(seed: int) -> AnomalySet:
        raise AssertionError("everything is there already")

    assert run_study(refuse, tmp_path, TINY) == 0
    assert read_study(tmp_path) == records
    faithful = records[0]
    assert faithful["settings"]["network"] == "report"
    assert faithful["sigma"] == pytest.approx(0.5**0.5)
    assert set(faithful["heads"]["accuracy"]) >= {"frozen, all mistakes", "frozen, no mistakes"}
    assert len(faithful["heads"]["history"]["frozen, no mistakes"]) == TINY.head_epochs
    assert set(faithful["map"]) == {"mean", "drawn"}
    value = records[1]["scores"]["fused"]["pooled"]["auroc"][0]
    kept = records[1]["values"]["fused"]["pooled"]
    both = torch.tensor(kept["normal"] + kept["anomalous"])
    truth = torch.arange(len(both)) >= len(kept["normal"])
    assert auroc(both, truth) == pytest.approx(value, abs=1e-3)
    text = markdown(records)
    assert markdown([slim(r) for r in records]) == text
    assert len(json.dumps([slim(r) for r in records])) < 0.5 * len(json.dumps(records))
    assert {(r["device"], r["torch"]) for r in records} == {("cpu", torch.__version__)}
    held = Bench(digits(TINY.first_seed), TINY.first_seed, TINY, tmp_path).parts[1]
    assert len(held) == 100
    assert faithful["held_out"] == pytest.approx(faithful["history"][-1]["loss"], rel=0.2)
    assert f"| ours | fused | {value:.3f} |" in text
    assert "frozen, all mistakes" in text
    assert json.loads((tmp_path / f"{FAITHFUL}-seed{TINY.first_seed}.json").read_text()) == faithful


@pytest.mark.slow
def test_shared_models_are_trained_once(tmp_path: Path) -> None:
    bench = Bench(digits(1), 1, TINY, tmp_path)
    first, again = bench.vae(), bench.vae()
    x = torch.rand(3, 1, 16, 16)
    torch.testing.assert_close(first(x), again(x), rtol=0, atol=0)
    encoder = bench.encoder()
    torch.testing.assert_close(encoder(x), bench.encoder()(x), rtol=0, atol=0)
    (tmp_path / "encoder" / "model.safetensors").unlink()
    with pytest.raises(HoldfastError, match="safetensors"):  # it was read, not trained again
        bench.encoder()


def test_a_rate_that_diverges_is_a_result_and_a_break_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(bench: Bench) -> Record:
        raise RuntimeError("out of memory")

    wild = partial(report_job, latent=2, lr=1e30)
    monkeypatch.setattr("vae_report.study.JOBS", {"breaks": breaks, "wild": wild})
    said: list[str] = []
    assert run_study(digits, tmp_path, TINY, note=said.append) == 1
    assert "RuntimeError: out of memory" in said[0]
    (record,) = read_study(tmp_path)
    assert "training diverged" in record["error"]
    assert "training diverged" in markdown([record])


def test_the_reports_cut_is_made_on_the_test_set_itself() -> None:
    scores, truth = torch.tensor([0.0, 1.0, 2.0, 10.0]), torch.tensor([False, False, True, True])
    assert report_cut(scores, truth) == {
        "anomalies found": 1, "anomalies": 2, "normal passed": 2, "normal": 2
    }  # fmt: skip
