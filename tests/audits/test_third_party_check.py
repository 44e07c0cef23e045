"""A check from another package is one file: listed, explained, settable, gated, budgeted and reported."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast.cli import main
from holdfast.parts import CHECKS
from holdfast.reports.findings_file import read_findings
from holdfast.settings.audit_settings import command_settings
from tests.audits.nearest import MODEL, QUICK

CHECK = '''
from __future__ import annotations

from dataclasses import dataclass

from holdfast.parts import check
from holdfast.types import Finding, Measure, Needs


@check(
    "mirror",
    title="Mirror images",
    about="Accuracy on images that are flipped left to right.",
    needs=Needs.IMAGES | Needs.MODEL,
    measures=(Measure("mirror_accuracy", "accuracy on mirror images", gate=True, headline=True),),
    share=0.1,
)
@dataclass(frozen=True)
class Mirror:
    """images: how many test images to flip."""

    images: int = 64
    flip: bool = True

    def passes(self, device):
        return 1.0

    def usual_images(self, device):
        return self.images

    def run(self, subject):
        import torch
        from holdfast.metrics import wilson_interval

        with torch.no_grad():
            x = subject.split.read(torch.arange(self.images)).float() / 255
            answers = subject.model(x.flip(3) if self.flip else x).argmax(1)
        hits = int((answers == subject.split.labels[: self.images]).sum())
        low, high = wilson_interval(hits, self.images)
        yield Finding("mirror", "mirror_accuracy", hits / self.images, self.images, low, high)
'''


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHECKS  # found before, or the check would be added to a registry that forgets it
    monkeypatch.setattr(CHECKS, "_parts", dict(CHECKS._parts))
    module = ModuleType("mirror")
    monkeypatch.setitem(sys.modules, "mirror", module)
    exec(compile(CHECK, "mirror.py", "exec"), vars(module))


@pytest.mark.usefixtures("mirror")
def test_it_is_settable_gated_budgeted_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "mirror" in CHECKS
    assert list(command_settings("mirror")) == ["images", "flip"]
    words = ["audit", MODEL, *QUICK, "--checks", "accuracy", "mirror", "--set", "mirror.images=32", "--budget", "2m"]
    assert main([*words, "--fail-under", "mirror_accuracy=0.99", "--out", "out"]) == 1
    file = read_findings("out/findings.json")
    (found,) = [f for f in file.findings if f.check == "mirror"]
    assert (found.name, found.n) == ("mirror_accuracy", 32)
    (gate,) = file.gates
    assert (gate["measure"], gate["passed"], gate["value"]) == ("mirror_accuracy", False, found.value)
    assert "mirror: measured" in capsys.readouterr().err
    same = holdfast.audit(MODEL, QUICK[1], checks=["mirror"], settings={"mirror": {"flip": False}}, device="cpu")
    clean = holdfast.audit(MODEL, QUICK[1], checks=["accuracy"], device="cpu")
    assert same["mirror_accuracy"].n == 64
    assert clean["accuracy"].value is not None
    assert "mirror" in Path("out/report.html").read_text(encoding="utf-8")
