"""``python papers/vae-report/run.py``, and what the folder's modules show in their docstrings."""

from __future__ import annotations

import doctest
import json
import os
from dataclasses import replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from vae_report import study
from vae_report.bench import QUICK, StudySettings

from holdfast.errors import Interrupted
from tests.conftest import PAPERS


@pytest.fixture
def script() -> ModuleType:
    spec = spec_from_file_location("vae_report_run", PAPERS / "vae-report/run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_quick_study_takes_the_sizes_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType
) -> None:
    seen: list[StudySettings] = []

    def run_on(data: str, out: Path, settings: StudySettings, **rest: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(study, "run_on", run_on)
    monkeypatch.setattr(study, "collect", lambda *_, **__: "")
    words = ["--device", "cpu", "--out", str(tmp_path)]
    assert script.main([*words, "--quick", "--seeds", "2", "--precision", "bf16"]) == 0
    assert script.main(words) == 0
    assert seen[0] == replace(QUICK, seeds=2, precision="bf16")
    assert seen[1] == StudySettings()


def test_one_row_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> None:
    ran: list[tuple[str, int]] = []
    for name in ("ours", "labels-supervised"):
        monkeypatch.setitem(study.JOBS, name, lambda bench, name=name: ran.append((name, bench.seed)) or {})
    monkeypatch.setattr(study, "collect", lambda *_, **__: "")
    words = ["--data", "digits", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert script.main([*words, "--job", "labels-supervised", "--seed", "12"]) == 0
    assert ran == [("labels-supervised", 12)]
    assert json.loads((tmp_path / "labels-supervised-seed12.json").read_bytes())["data"] == "digits"


def test_what_is_recorded_is_kept_and_other_data_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: ModuleType
) -> None:
    recorded, page = tmp_path / "gpu.json", tmp_path / "page.md"
    recorded.write_bytes((PAPERS / "vae-report/results/gpu.json").read_bytes())
    page.write_text((PAPERS / "vae-report/README.md").read_text())
    before, shown = json.loads(recorded.read_bytes()), page.read_text()
    out = tmp_path / "out"
    out.mkdir()
    (again,) = (r for r in before["records"] if (r["job"], r["seed"]) == ("labels-supervised", 10))
    for seed, accuracy in ((10, 0.0), (13, 0.5)):
        result = again | {"seed": seed, "accuracy": {"supervised": accuracy}}
        (out / f"labels-supervised-seed{seed}.json").write_text(json.dumps(result))
    words = ["--out", str(out), "--collect", "--keep", str(recorded), "--page", str(page), "--made", "commit=abc"]
    assert script.main(words) == 0
    after = json.loads(recorded.read_bytes())
    new = [record for record in after["records"] if record not in before["records"]]
    assert [(r["job"], r["seed"], r["commit"], r["accuracy"]["supervised"]) for r in new] == [
        ("labels-supervised", 13, "abc", 0.5)
    ]
    assert [record for record in after["records"] if record not in new] == before["records"]
    assert {key: after[key] for key in after if key != "records"} == {k: before[k] for k in before if k != "records"}
    assert len(page.read_text().splitlines()) == len(shown.splitlines())
    (out / "labels-supervised-seed14.json").write_text(json.dumps(again | {"seed": 14, "data": "digits"}))
    kept = recorded.read_bytes()
    assert script.main(words) == 2
    assert (
        "these results are of digits, those recorded of fashion-anomalies; give another --keep"
        in capsys.readouterr().err
    )
    assert recorded.read_bytes() == kept


def test_an_interrupt_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: ModuleType
) -> None:
    def stopped(*_: object, **__: object) -> int:
        raise Interrupted(15)

    monkeypatch.setattr(study, "run_on", stopped)
    assert script.main(["--out", str(tmp_path)]) == 143
    assert capsys.readouterr().err == "interrupted; the same command continues the study\n"


@pytest.mark.slow
def test_the_study_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> None:
    monkeypatch.setattr(study, "JOBS", {"labels-supervised": study.JOBS["labels-supervised"]})
    words = ["--data", "digits", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert script.main(words) == 0
    assert "supervised" in (tmp_path / "study.md").read_text()
    assert "Few labels" in (tmp_path / "study.html").read_text()


@pytest.mark.parametrize("part", ["1", "one/3", "1/"])
def test_a_part_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: ModuleType, part: str
) -> None:
    with pytest.raises(SystemExit):
        script.main(["--out", str(tmp_path), "--part", part])
    assert "must be I/N" in capsys.readouterr().err


LONG = "x" * 300


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--seeds", "0"], "seeds must be >= 1, got 0"),
        (["--epochs", "-2"], "epochs must be >= 1, got -2"),
        (["--collect"], "holds no results"),
        (["--job", "our"], "there is no job 'our'; the jobs are report-latent16-lr0.001, ours,"),
        (["--data", "digits", "--quick", "--part", "3/2"], "I in 1..N"),
        (["--data", LONG, "--quick"], "File name too long"),
        (["--data", "digits", "--quick", "--out", LONG], "File name too long"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: ModuleType, words: list[str], reason: str
) -> None:
    assert script.main(["--device", "cpu", "--out", str(tmp_path / "study"), *words]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "[Errno" not in said


def test_a_file_that_may_not_be_read_is_called_neither_missing_nor_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, script: ModuleType
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("set.npy").write_bytes(b"secret")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: str(path) != "set.npy" and real(path, mode, **more))
    assert script.main(["--data", "set.npy", "--out", "study"]) == 2
    assert "cannot read set.npy: Permission denied; correct the path" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["charts", "study", "tables"])
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(import_module(f"vae_report.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
