"""Run folders in every state that a training can leave them in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.reports import RunFiles, read_runs
from holdfast.reports.arms import arms
from holdfast.reports.html import render
from holdfast.train import fit
from tests.conftest import make_data
from tests.reports.fake_runs import write_run, write_runs


def test_a_finished_run(run_folder: Path) -> None:
    run = RunFiles.read(run_folder)
    assert run.name == "erm-0"
    assert (run.settings["method"], run.settings["lr"], run.settings["clip"]) == ("erm", 0.05, None)
    assert "environment" not in run.settings
    assert run.environment["torch"] == "2.11.0"
    assert [record["epoch"] for record in run.metrics] == list(range(1, 31))
    assert run.model["name"] == "convnet"
    assert len(run.findings) == 21


def test_what_was_handed_over_in_python_is_called_what_it_is(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    fit(make_data(), model=own, out=tmp_path / "own", epochs=1, device="cpu")
    fit(replace(make_data(), name="other"), model="convnet", out=tmp_path / "other", epochs=1, device="cpu")
    runs = [RunFiles.read(tmp_path / name) for name in ("own", "other")]
    assert [run.settings["data"] for run in runs] == ["bars (in memory)", "other (in memory)"]
    assert [run.settings["model"] for run in runs] == ["Sequential (own module)", "convnet"]
    assert "conflict" not in runs[0].settings  # how a set is made that was not used
    assert ["pretrained" in run.settings for run in runs] == [False, True]
    assert len(arms(runs)) == 2
    page = render(runs[:1])
    assert "<title>erm on bars (in memory)" in page
    assert "coloured-digits" not in page
    assert "convnet" not in page


def test_a_run_is_named_after_its_folder_from_inside_it(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run_folder)
    assert RunFiles.read(".").name == "erm-0"


def test_a_run_that_still_trains_has_no_findings(run_folder: Path) -> None:
    (run_folder / "findings.json").unlink()
    run = RunFiles.read(run_folder)
    assert run.findings == ()
    assert len(run.metrics) == 30


def test_a_run_that_has_just_begun(run_folder: Path) -> None:
    (run_folder / "findings.json").unlink()
    (run_folder / "metrics.jsonl").unlink()
    assert RunFiles.read(run_folder).metrics == ()


def test_findings_alone_are_enough(run_folder: Path) -> None:
    (run_folder / "run.yaml").unlink()
    (run_folder / "metrics.jsonl").unlink()
    run = RunFiles.read(run_folder)
    assert (run.settings, run.metrics, len(run.findings)) == ({}, (), 21)


@pytest.mark.parametrize("tail", [b'{"stage": 0, "epo', b'{"name": "caf\xc3', b"\0\0\0", b"17"])
def test_a_half_written_last_line_is_left_out(run_folder: Path, tail: bytes) -> None:
    path = run_folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    assert [record["epoch"] for record in RunFiles.read(run_folder).metrics] == list(range(1, 31))


def test_a_last_line_without_its_end_counts_if_it_is_whole(run_folder: Path) -> None:
    path = run_folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"epoch": 31}')
    assert RunFiles.read(run_folder).metrics[-1] == {"epoch": 31}


def test_a_broken_line_elsewhere_is_named(run_folder: Path) -> None:
    path = run_folder / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[6] = lines[6][:20]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(HoldfastError, match=r"line 7 of .*metrics\.jsonl is not a JSON object"):
        RunFiles.read(run_folder)


def test_a_folder_that_is_no_run_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(HoldfastError, match=r"holds none of run\.yaml, metrics\.jsonl, findings\.json"):
        RunFiles.read(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no such run folder: .*nowhere"):
        RunFiles.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", r"run\.yaml, line 1 is not valid YAML"),
        (b"- 1", "must be a mapping"),
        (b"\xff\xfe\x00", "is not UTF-8"),
    ],
)
def test_settings_that_cannot_be_read(run_folder: Path, content: bytes, message: str) -> None:
    (run_folder / "run.yaml").write_bytes(content)
    with pytest.raises(HoldfastError, match=message):
        RunFiles.read(run_folder)


def test_objects_in_yaml_are_not_made(run_folder: Path) -> None:
    (run_folder / "run.yaml").write_text("seed: !!python/object/apply:os.getcwd []")
    with pytest.raises(HoldfastError, match="is not valid YAML"):
        RunFiles.read(run_folder)


def test_runs_are_found_below_a_folder_and_counted_once(tmp_path: Path) -> None:
    write_runs(tmp_path / "demo", ("erm", "lff"), (0, 1))
    alone = write_run(tmp_path / "alone", "jtt", 0)
    runs = read_runs([alone, tmp_path / "demo", tmp_path / "demo" / "erm-0"])
    assert [run.name for run in runs] == ["alone", "erm-0", "erm-1", "lff-0", "lff-1"]


def test_no_runs_below_a_folder(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="is not a run folder"):
        read_runs([tmp_path])
