"""The training curves of an audited run are in its report, also when that is made anew without the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import main
from tests.audits.nearest import MODEL, QUICK
from tests.reports.page import Page

WORDS = [*QUICK, "--checks", "accuracy", "--quiet", "--out", "out"]


@pytest.fixture
def run(folder: Path) -> Path:
    holdfast.fit("coloured-digits", epochs=2, batch_size=512, device="cpu", progress=False, out=str(folder / "trained"))
    return folder / "trained"


def drawn() -> bool:
    return "Training" in Page(Path("out/report.html").read_text(encoding="utf-8")).text("h2")


@pytest.mark.slow
def test_an_audited_run_shows_its_training_also_once_the_run_is_gone(run: Path) -> None:
    assert main(["audit", "trained", *WORDS]) == 0
    assert drawn()
    before = Path("out/report.html").read_bytes()
    shutil.rmtree(run)
    Path("out/report.html").unlink()
    assert main(["report", "out"]) == 0
    assert Path("out/report.html").read_bytes() == before
    assert main(["audit", MODEL, *WORDS]) == 0  # another model in the same folder was not trained so
    assert not drawn()


@pytest.mark.slow
def test_of_several_models_those_that_are_runs_show_theirs(run: Path) -> None:
    assert main(["audit", MODEL, "--against", "trained", *WORDS]) == 0
    assert not Path("out/python-nearest-make/metrics.jsonl").exists()
    assert Path("out/trained/metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert drawn()


@pytest.mark.slow
def test_metrics_that_cannot_be_read_cost_the_curves_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.jsonl").write_text("{}\nbroken\n{}\n")
    assert main(["audit", "trained", *[word for word in WORDS if word != "--quiet"]]) == 0
    assert "no training curves: line 2 of trained/metrics.jsonl" in capsys.readouterr().err
    assert not drawn()
