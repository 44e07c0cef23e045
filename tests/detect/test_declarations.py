"""Detectors are known by their declarations alone: in lists, help, the OOD check, and what is saved and loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast import detect
from holdfast.cli import main
from holdfast.detect import FittedDetector, make_detector
from holdfast.parts import DETECTORS
from tests.test_docs import ROOT, table

MINE = """
from holdfast.detect import Detector
from holdfast.parts import detector


@detector("feature-range", about="how far features reach beyond what is normal", reads=("features",))
class FeatureRange(Detector):
    def __init__(self, extractor=None, *, margin=0.5):
        super().__init__(extractor)
        self.margin = margin

    def learn(self, features):
        return {"low": features.features.amin(0), "high": features.features.amax(0)}

    def compute(self, features):
        x, low, high = features.features, self.state["low"] - self.margin, self.state["high"] + self.margin
        return ((low - x).clamp(min=0) + (x - high).clamp(min=0)).sum(1) + x.norm(dim=1)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector in one file of somebody else's."""
    (tmp_path / "somebodys_detector.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    assert "knn" in DETECTORS  # ours are there before theirs
    monkeypatch.setattr(DETECTORS, "_parts", dict(DETECTORS._parts))
    monkeypatch.delitem(sys.modules, "somebodys_detector", raising=False)
    __import__("somebodys_detector")


@pytest.mark.usefixtures("mine")
def test_a_detector_in_one_file_is_listed_fitted_saved_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "detectors"]) == 0
    assert re.search(r"^feature-range +how far features reach beyond what is normal$", capsys.readouterr().out, re.M)
    with pytest.raises(SystemExit):
        main(["detect", "fit", "--help"])
    assert "feature-range" in " ".join(capsys.readouterr().out.split())
    assert set(DETECTORS["feature-range"].reads) <= {"features", "logits"}
    draw = np.random.default_rng(0)
    (tmp_path / "normal").mkdir()
    for i in range(80):
        Image.fromarray(draw.integers(0, 99, (16, 16), dtype=np.uint8)).save(tmp_path / "normal" / f"{i}.png")
    words = ["detect", "fit", "--data", str(tmp_path / "normal"), "--out", str(tmp_path / "d"), "--device", "cpu"]
    scores = ["--scores", "feature-range", "knn", "--encoder-epochs", "1", "--false-alarm-rate", "0.2"]
    assert main([*words, *scores]) == 0
    kept = json.loads((tmp_path / "d" / "detector.json").read_text())["detector"]["members"]
    assert kept == {"feature-range": {"margin": 0.5}, "knn": {"k": 5, "normalise": True}}
    fitted = FittedDetector.load(tmp_path / "d")
    assert [member.name for member in fitted.detector.members] == ["feature-range", "knn"]
    out = str(tmp_path / "scores.csv")
    assert main(["detect", "score", str(tmp_path / "d"), "--data", str(tmp_path / "normal"), "--out", out]) == 0
    assert len(Path(out).read_text().splitlines()) == 81


def test_declarations_are_read_without_torch() -> None:
    code = (
        "import sys; from holdfast.parts import DETECTORS; from holdfast import detect; "
        "assert len(DETECTORS) >= 13 and detect.DETECTORS is DETECTORS and detect.KNN.name == 'knn'; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_wrong_score_is_refused_without_torch() -> None:
    code = (
        "import sys; from holdfast.cli import main; "
        "assert main(['detect', 'fit', '--data', 'digits', '--out', 'x', '--scores', 'elbow']) == 2; "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "did you mean 'elbo'" in done.stderr


def test_settings_make_the_same_detector_again() -> None:
    for name in DETECTORS:
        assert make_detector(name, **make_detector(name).settings).settings == make_detector(name).settings
    assert make_detector("knn", k=3).settings == {"k": 3, "normalise": True}
    assert make_detector("energy", temperature=2.0).settings == {"temperature": 2.0}


def test_the_page_on_detectors_has_all_of_them() -> None:
    rows = [re.sub(r"`", "", row[0]) for row in table(ROOT / "docs/methods/detect.md", "name", "needs")]
    assert sorted(rows) == sorted([*DETECTORS, "fused"])


def test_every_public_name_is_there() -> None:
    assert {name for name in detect.__all__ if not hasattr(detect, name)} == set()
    assert set(detect.__all__) == set(dir(detect))
