"""``holdfast detect study``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.detect.study import JOBS


def test_a_quick_study_takes_the_sizes_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.comparisons import vae_study

    seen: list[vae_study.StudySettings] = []

    def study(data: str, out: str, settings: vae_study.StudySettings, **rest: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(vae_study, "study", study)
    monkeypatch.setattr(vae_study, "collect", lambda *_, **__: "")
    words = ["detect", "study", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*words, "--quick", "--seeds", "2", "--precision", "bf16"]) == 0
    assert main(words) == 0
    assert seen[0] == replace(vae_study.QUICK, seeds=2, precision="bf16")
    assert seen[1] == vae_study.StudySettings()


def test_the_study_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.detect.study.run.JOBS", {"labels-supervised": JOBS["labels-supervised"]})
    words = ["detect", "study", "--data", "digits", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "supervised" in (tmp_path / "study.md").read_text()
    assert "Few labels" in (tmp_path / "study.html").read_text()
