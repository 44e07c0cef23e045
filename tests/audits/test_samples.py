"""Each check's verdict on a single image."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.audits.audit_folder import verdicts
from holdfast.audits.checks.slices.weak_slices import Slice, attributes, slice_findings
from holdfast.audits.sample_passes import encode
from holdfast.cli import main
from holdfast.types import Finding
from tests.audits.checks.from_logits import one_hot, split, told
from tests.audits.checks.run_checks import groups
from tests.audits.nearest import MODEL, QUICK, table


def test_parquet_holds_what_csv_holds(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "groups", "--quiet", "--out", "out"]
    assert main(words) == 0
    rows = table(Path("out"))
    assert main([*words, "--samples", "parquet"]) == 0
    assert not Path("out/samples.csv").exists()  # of another audit, perhaps
    read = parquet.read_table("out/samples.parquet").to_pylist()
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in read] == rows
    assert isinstance(read[0]["confidence"], float)
    assert isinstance(read[0]["id"], int)


def test_parquet_without_its_library_is_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.data.tables.find_spec", lambda name: None)
    assert main(["audit", MODEL, *QUICK, "--samples", "parquet", "--out", "out"]) == 2
    assert "pip install 'holdfast[parquet]'" in capsys.readouterr().err
    assert not Path("out").exists()


def test_verdicts_speak_of_single_images() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    test = split(labels, torch.tensor([0, 1, 0, 1]))
    subject = told(one_hot(torch.tensor([0, 1, 1, 1]), 2), test, group_names=("red", "blue"))
    findings = [
        *groups(subject),
        Finding(
            "attacks", "attack_error", 0.5, 2, evidence={"verdicts": encode(torch.tensor([3, 1]), ["right", "wrong"])}
        ),
    ]
    assert verdicts(subject, findings) == {
        "accuracy": ["right", "wrong", "right", "right"],
        "groups": [None, "worst", None, None],
        "attacks": [None, "wrong", None, "right"],
    }


def test_an_image_names_the_confirmed_slices_it_belongs_to() -> None:
    images = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    images[2:] = 200
    subject = told(
        one_hot(torch.zeros(4, dtype=torch.int64), 2), split(torch.zeros(4, dtype=torch.int64), images=images)
    )
    part = Slice("brightness", "above", 0.5, 1.0)
    values, halves = attributes(subject)["brightness"], (torch.tensor([0, 2]), torch.tensor([1, 3]))
    findings = [
        f
        for words, confirmed in (("bright", True), ("doubtful", False))
        for f in slice_findings(subject, part, words, values, *halves, {"confirmed": confirmed})
    ]
    assert verdicts(subject, findings)["slices"] == [None, None, "bright", "bright"]
