"""A method and an ascent of a third party are one file: no list, builder or stage of the package knows of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.parts import ASCENTS, METHODS
from holdfast.settings import TrainSettings, build
from holdfast.train import fit, train
from tests.conftest import Heard, make_data, same_weights

THEIRS = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.ascents import Sam
from holdfast.methods import Method
from holdfast.parts import ascent, method
from holdfast.types import View, Views


@method("darker", about="Train on darker images.", passes=1)
@dataclass(frozen=True)
class Darker(Method):
    share: float = 0.5
    """What is left of the light."""

    def views(self, batch, *, model, state, rng):
        return Views((View(self.share * batch.x, batch.y),))


@dataclass(frozen=True)
class SignMetric:
    def scale(self, weights, gradients, direction):
        signs = [d.sign() for d in direction]
        return signs, signs


@ascent("sign-full", about="Climb along the sign of the full gradient.", passes=1)
@dataclass(frozen=True)
class SignFull(Sam):
    reads_whole_set: ClassVar[bool] = True
    rho: float = 0.2

    def metric(self):
        return SignMetric()

    def direction(self, step, drawn, others):
        step.full_gradient()

    def radius(self, done):
        return self.rho * (1 - done)
'''
SETTINGS = {"device": "cpu", "batch_size": 16, "epochs": 3, "model": "convnet", "optimizer": "adam", "lr": 5e-3}


@pytest.fixture
def _installed(tmp_path: Path) -> Iterator[None]:
    """The file imported, as an entry point of the group holdfast is."""
    file = tmp_path / "theirs.py"
    file.write_text(THEIRS, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("theirs", file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["theirs"] = importlib.util.module_from_spec(spec)
    len(METHODS), len(ASCENTS)  # finds the package's own first
    spec.loader.exec_module(sys.modules["theirs"])
    yield
    del sys.modules["theirs"], METHODS._parts["darker"], ASCENTS._parts["sign-full"]


@pytest.mark.usefixtures("_installed")
def test_they_train_and_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    heard, data = Heard(), make_data(48)
    chosen = {"method": {"name": "darker", "share": 0.8}, "ascent": "sign-full", **SETTINGS}
    ours = train(build(TrainSettings, chosen), data=data, progress=heard)
    assert ours.history[-1]["train_loss"] < ours.history[0]["train_loss"]
    assert any("sign-full takes the gradient of all 48 training images" in note for note in heard.notes)
    assert not same_weights(ours.model, fit(data, **{**chosen, "ascent": "none"}).model)
    assert not same_weights(ours.model, fit(data, **{**chosen, "method": "erm"}).model)
    for kind, line in (
        ("methods", "Train on darker images."),
        ("ascents", "Climb along the sign of the full gradient."),
    ):
        assert main(["list", kind]) == 0
        assert line in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--method", "darker", "--ascent", "sign-full", "--help"])
    shown = capsys.readouterr().out
    assert "--method.share" in shown
    assert "--ascent.rho" in shown
