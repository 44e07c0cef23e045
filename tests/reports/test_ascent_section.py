"""The chapter on the ascent: drawn from a real run that was told to look, absent otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Chart, Side
from holdfast.reports.sections.training import CHARTS, ascent
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from tests.conftest import make_data


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    out: Path = tmp_path_factory.mktemp("run") / "fsam"
    values = {"ascent": "fsam", "diagnose": 1, "epochs": 3, "batch_size": 16, "device": "cpu"}
    train(build(TrainSettings, values), data=make_data(48), out=out)
    return RunFiles.read(out)


def test_every_look_is_drawn(looked: RunFiles) -> None:
    section = ascent([looked])
    assert section is not None
    (side,) = section.blocks
    assert isinstance(side, Side)
    charts = {block.title: block for block in side.blocks if isinstance(block, Chart)}
    assert set(charts) == {title for title, _ in CHARTS.values()}
    drawn = charts["Length of the ascent step"].svg
    assert looked.settings["ascent"]["rho"] == 0.05
    assert looked.metrics[-1]["ascent_norm"] == pytest.approx(0.05, rel=1e-4)
    assert "epoch 3" in drawn or ">3<" in drawn


def test_a_run_that_never_looked_has_no_such_chapter() -> None:
    assert ascent([RunFiles("plain", metrics=({"epoch": 1, "train_loss": 1.0},))]) is None
