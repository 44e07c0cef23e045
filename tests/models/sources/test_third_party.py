"""A source from another package is one file: it trains, it is audited, and nothing else knows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.models import build_model, model_names, open_model
from holdfast.models.source_types import ModelSource
from holdfast.parts import MODEL_SOURCES, model_syntax

SOURCE = """
from __future__ import annotations

from holdfast.models.source_types import ModelSource, SourceModel
from holdfast.parts import source


@source("mine", about="Linear networks.", syntax="mine:NAME", prefix="mine:", suffixes=(".mine",))
class Mine(ModelSource):
    def names(self):
        return ["small"]

    def build(self, name, *, num_classes, channels, image_size, pretrained):
        from torch import nn

        layers = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, num_classes)]
        return SourceModel(nn.Sequential(*layers))

    def open(self, name, request):
        made = self.build(name, num_classes=10, channels=1, image_size=None, pretrained=True)
        return SourceModel(made.net.eval().to(request.device), channels=1, classes=tuple("0123456789"))
"""


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MODEL_SOURCES  # found before, or the part would be added to a registry that forgets it
    monkeypatch.setattr(MODEL_SOURCES, "_parts", dict(MODEL_SOURCES._parts))
    exec(compile(SOURCE, "mine.py", "exec"), {"__name__": "mine"})


@pytest.mark.usefixtures("mine")
def test_it_is_listed_built_and_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_names()["mine"] == ["small"]
    assert "mine:NAME" in model_syntax()
    assert "mine:NAME" in model_syntax(training=True)
    assert main(["list", "models"]) == 0
    assert "mine:small" in capsys.readouterr().out.splitlines()
    assert build_model("small", num_classes=3, in_channels=1).name == "mine:small"
    opened = open_model("mine:small", shape=(1, 8, 8))
    assert (opened.source, opened.model(torch.rand(2, 1, 8, 8)).shape) == ("mine", (2, 10))
    (tmp_path / "net.mine").write_text("weights")
    assert open_model(str(tmp_path / "net.mine"), shape=(1, 8, 8)).source == "mine"
    with pytest.raises(HoldfastError, match="unknown model 'mine:smal'; did you mean 'mine:small'"):
        build_model("mine:smal", num_classes=3)


@pytest.mark.usefixtures("mine")
def test_it_trains_and_the_run_is_audited(tmp_path: Path) -> None:
    run, quick = tmp_path / "run", ["--data", "digits", "--device", "cpu", "--quiet"]
    assert main(["train", "--model", "mine:small", "--epochs", "1", "--out", str(run), *quick]) == 0
    for model in (str(run), "mine:small"):
        out = str(tmp_path / model.rpartition(":")[2].replace("/", "-"))
        assert main(["audit", model, "--checks", "accuracy", "--out", out, *quick]) == 0


def test_what_can_only_be_audited_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODEL_SOURCES["python"].made, "build", ModelSource.build)
    with pytest.raises(HoldfastError, match=r"python:package\.module:function can be audited, not trained"):
        build_model("python:mine:make", num_classes=2)
