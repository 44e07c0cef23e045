"""What is shown of trainings that run side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.comparisons import single_run
from holdfast.comparisons.single_run import CellTask, train_cell
from holdfast.settings import TrainSettings, build
from holdfast.train.progress import BarProgress, LiveTable, Progress
from tests.conftest import Heard


def shown_on_a_terminal(width: int = 100) -> tuple[BarProgress, io.StringIO]:
    file = io.StringIO()
    return BarProgress(Console(file=file, force_terminal=True, width=width, color_system=None)), file


def test_a_terminal_shows_what_is_running_held_and_waiting() -> None:
    progress, file = shown_on_a_terminal()
    with LiveTable(progress, 5) as table:
        table.ended("erm, seed 0", ["a warning"])
        table.show({"erm-seed1": "epoch 2/8  loss 0.5000", "lff-seed0": ""}, ["lff-seed1"])
        said = file.getvalue()
    assert "1 of 5: erm, seed 0" in said
    assert "a warning" in said
    (line,) = (line for line in said.splitlines() if "erm-seed1" in line)
    assert "epoch 2/8  loss 0.5000" in line
    (line,) = (line for line in said.splitlines() if "in another command" in line)
    assert "lff-seed1" in line
    assert "lff-seed0" not in said, "it waits for a worker, so there is nothing to say of it"
    assert "1 of 5 done" in said
    assert "2 waiting" in said


def test_a_log_gets_lines_and_nothing_twice() -> None:
    heard = Heard()
    with LiveTable(heard, 2) as table:
        for _ in range(3):
            table.show({"erm-seed0": "epoch 1/8"}, ["erm-seed1"])
        table.ended("erm, seed 0", ["slow loader", "few images"])
        table.ended("erm, seed 1", ["slow loader"])
    assert heard.notes == [
        "other commands are training erm-seed1; waiting for them",
        "1 of 2: erm, seed 0",
        "  slow loader",
        "  few images",
        "2 of 2: erm, seed 1",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_a_worker_draws_no_bar_over_the_table(alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its terminal is that of the command, which shows all trainings; one that runs in the command has its own bar."""
    audit, asked = single_run.audit, []

    def recorded(*given: Any, **how: Any) -> Any:
        asked.append(how["progress"])
        return audit(*given, **how)

    monkeypatch.setattr(single_run, "audit", recorded)
    settings = build(
        TrainSettings, {"data": "digits", "epochs": 1, "device": "cpu", "batch_size": 256, "model": "convnet"}
    )
    shown: Progress | None = shown_on_a_terminal()[0] if alone else None
    assert train_cell(CellTask("cell", tmp_path, settings), None, progress=shown).state == "done"
    assert asked == [None if alone else False]
