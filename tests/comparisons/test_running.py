"""A comparison on the coloured digits: what it trains, what it does not train again, what it says."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
import signal
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.comparisons.plans import GridCell, make_plan
from holdfast.comparisons.running import Comparison, carry_out, compare, folder_name
from holdfast.errors import HoldfastError
from holdfast.files import InUse
from holdfast.models.saved_model import load_model
from holdfast.reports import RunFiles, read_runs
from holdfast.reports.arms import AVERAGE, CONFLICTING
from holdfast.reports.html import render
from holdfast.reports.report_tables import paired_table
from holdfast.reports.sections.sensitivity import sensitivity
from holdfast.settings import TrainSettings, build
from holdfast.train import Interrupted
from holdfast.train.checkpoints import Checkpoints
from holdfast.train.engine import Trainer
from holdfast.train.folder import claim
from holdfast.train.preparing import load_data
from holdfast.train.step_parts import Diverged
from tests.conftest import Heard, SignalAt

BASE: dict[str, Any] = {
    "data": "coloured-digits", "conflict": 0.3, "model": "convnet", "optimizer": "adam", "lr": 3e-3, "epochs": 2,
    "batch_size": 64, "device": "cpu", "val": 0.1, "method": {"name": "lff", "q": 0.7},
}  # fmt: skip
ASKED: dict[str, Any] = {"methods": ["erm", "lff"], "vary": {"method.q": [0.2]}, "seeds": 2, "progress": False}
NAMES = ["erm-seed0", "erm-seed1", "lff-q0.2-seed0", "lff-q0.2-seed1", "lff-seed0", "lff-seed1"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(out=tmp_path_factory.mktemp("compare"), **BASE, **ASKED)


def copied(done: Comparison, to: Path) -> Path:
    shutil.copytree(done.out, to)
    return to


@pytest.mark.slow
def test_each_cell_and_seed_is_an_ordinary_run(done: Comparison) -> None:
    assert sorted(p.parent.name for p in done.out.glob("*/run.yaml")) == NAMES
    settings = RunFiles.read(done.out / "lff-q0.2-seed1").settings
    assert (settings["method"]["q"], settings["seed"], settings["conflict"]) == (0.2, 1, 0.3)
    assert all((done.out / name / "report.html").exists() for name in NAMES)


def test_the_numbers_are_those_of_the_runs(done: Comparison) -> None:
    record = json.loads((done.out / "comparison.json").read_text())
    assert record["baseline"] == "erm"
    cells = {cell["settings"]: cell for cell in record["cells"]}
    assert set(cells) == {"erm", "lff", "lff q=0.2"}

    def found(name: str) -> float:
        findings = json.loads((done.out / name / "findings.json").read_text())["findings"]
        return next(f["value"] for f in findings if f["name"] == "bias_conflicting_accuracy")

    erm, lff = ([found(f"{name}-seed{seed}") for seed in (0, 1)] for name in ("erm", "lff"))
    assert cells["lff"]["bias_conflicting_accuracy"]["mean"] == pytest.approx(fmean(lff))
    assert cells["lff"]["bias_conflicting_accuracy"]["sd"] == pytest.approx(stdev(lff))
    gaps = [a - b for a, b in zip(lff, erm, strict=True)]
    difference = cells["lff"]["bias_conflicting_accuracy"]["difference"]
    assert difference["mean"] == pytest.approx(fmean(gaps))
    # Two seeds: t with one degree of freedom is 12.7062, and s / √2 is half the distance of the two.
    assert difference["high"] - difference["mean"] == pytest.approx(12.7062 * abs(gaps[0] - gaps[1]) / 2, rel=1e-4)
    assert "difference" not in cells["erm"]["bias_conflicting_accuracy"]


def test_the_table_is_there_for_other_programs(done: Comparison) -> None:
    """CSV, Markdown and LaTeX have the numbers of comparison.json and the rows of the table."""
    cells = json.loads((done.out / "comparison.json").read_text())["cells"]
    with open(done.out / "comparison.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["settings"] for row in rows] == [cell["settings"] for cell in cells] == ["erm", "lff", "lff q=0.2"]
    for row, cell in zip(rows, cells, strict=True):
        own = cell["bias_conflicting_accuracy"]
        assert int(row["n"]) == len(cell["runs"]) == 2
        assert float(row["bias_conflicting_accuracy mean"]) == own["mean"]
        assert float(row["bias_conflicting_accuracy sd"]) == own["sd"]
        assert float(row["val-average mean"]) == cell["val-average"]["mean"]
        if "difference" in own:
            ends = [float(row[f"bias_conflicting_accuracy {end}"]) for end in ("low", "high")]
            assert ends == [own["difference"][end] for end in ("low", "high")]
    shown = [[cell.text for cell in row] for row in done.table().rows]
    lines = (done.out / "comparison.md").read_text().splitlines()
    assert [[part.strip() for part in line.strip("|").split(" | ")] for line in lines[2:5]] == shown
    text = (done.out / "comparison.tex").read_text()
    body = text[text.index("\\midrule\n") : text.index("\\bottomrule")].splitlines()[1:]
    for line, row in zip(body, shown, strict=True):
        plain = re.sub(r"\\textbf{(.*?)}", r"\1", line.removesuffix(r" \\"))
        plain = plain.replace(r"$\pm$", "±").replace(r"\_", "_")
        assert plain.split(" & ") == row


def test_the_choice_is_made_on_held_out_data_alone(done: Comparison) -> None:
    assert done.chosen is not None
    data = load_data(build(TrainSettings, BASE))
    assert data.val is not None
    images = data.val.read(range(len(data.val)))  # type: ignore[arg-type]
    means = {}
    for arm in done.arms:
        own = []
        for run in arm.runs:
            model, _ = load_model(done.out / run.name)
            own.append(float((model(images.float() / 255).argmax(1) == data.val.labels).double().mean()))
        assert done.chosen.scores[arm.label] == pytest.approx(own)
        means[arm.label] = fmean(own)
    best = [label for label, mean in means.items() if mean == max(means.values())]
    assert done.chosen.label == (best[0] if len(best) == 1 else None)
    assert all(label in done.why for label in best)
    record = json.loads((done.out / "comparison.json").read_text())
    assert record["chosen"] == {"settings": done.chosen.label, "rule": "val-average"}


@pytest.mark.parametrize(("scores", "label"), [([0.7, 0.9, 0.8], "lff"), ([0.9, 0.9, 0.8], None)])
def test_the_highest_mean_is_chosen_and_a_tie_is_called_one(
    done: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float], label: str | None
) -> None:
    """Cells erm, lff and lff q=0.2 with the given scores, one seed each."""
    module = importlib.import_module("holdfast.comparisons.running")
    told = iter(scores)
    monkeypatch.setattr(module, "held_out_score", lambda *_: next(told))
    again = compare(out=copied(done, tmp_path / "c"), **BASE, **{**ASKED, "seeds": 1})
    assert again.chosen is not None
    assert again.chosen.label == label
    assert again.why.startswith("lff is chosen" if label else "no cell is chosen")
    assert again.why.endswith("no part" if label else "level: erm, lff")


def test_the_report_knows_the_baseline_from_the_files_alone(done: Comparison) -> None:
    runs = read_runs([done.out])
    assert {run.name for run in runs if run.model.get("role") == "baseline"} == {"erm-seed0", "erm-seed1"}
    section = sensitivity(runs)
    assert section is not None
    assert "Dashed: erm, the baseline." in section.lead
    assert (done.out / "report.html").read_text() == render(runs)


@pytest.mark.slow
def test_what_is_finished_is_not_repeated_and_what_is_new_is_added(done: Comparison, tmp_path: Path) -> None:
    out = copied(done, tmp_path / "again")
    before = {p: p.stat().st_mtime_ns for p in out.glob("*/model.safetensors")}
    heard = Heard()
    plan = make_plan(build(TrainSettings, BASE), methods=["erm", "lff"], vary={"method.q": [0.2, 0.9]}, baseline="lff")
    wider = carry_out(plan, out, seeds=1, progress=heard)
    assert [note for note in heard.notes if " of " in note] == ["4 of 4: lff q=0.9, seed 0"]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert wider.baseline.label == "lff"
    runs = read_runs([out])
    assert {run.name for run in runs if run.model.get("role") == "baseline"} == {"lff-seed0"}


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_to_the_same_weights(done: Comparison, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    plan = make_plan(build(TrainSettings, BASE), methods=["erm", "lff"])
    with pytest.raises(Interrupted):
        carry_out(plan, out, seeds=1, progress=SignalAt(20, signal.SIGTERM))
    assert not (out / "erm-seed0" / "findings.json").exists()
    heard = Heard()
    carry_out(plan, out, seeds=1, progress=heard)
    assert any(note.startswith("continuing at step") for note in heard.notes)
    for name in ("erm-seed0", "lff-seed0"):
        assert (out / name / "model.safetensors").read_bytes() == (done.out / name / "model.safetensors").read_bytes()


def test_other_settings_in_the_same_folder_are_refused_before_anything_runs(done: Comparison, tmp_path: Path) -> None:
    out = copied(done, tmp_path / "other")
    shutil.rmtree(out / "erm-seed0")
    with pytest.raises(HoldfastError, match="lff-seed0 was trained with other settings .epochs: 2 -> 3"):
        compare(out=out, **{**BASE, "epochs": 3}, **{**ASKED, "methods": ["lff", "erm"]})
    assert not (out / "erm-seed0").exists()


@pytest.mark.slow
def test_a_cell_that_fails_leaves_the_others(tmp_path: Path) -> None:
    fails = {"vary": {"lr": [1e30]}, "seeds": 1, "progress": False}
    found = compare(out=tmp_path / "a", **{**BASE, "epochs": 1, "method": "erm", "val": 0.0}, **fails)
    assert list(found.failed) == ["erm-lr1.0e+30-seed0"]
    assert "not finite" in found.failed["erm-lr1.0e+30-seed0"]
    assert [arm.label for arm in found.arms] == ["erm"]
    assert found.chosen is None
    assert "nothing is held out" in found.why
    assert found.baseline.spread(AVERAGE) is not None
    assert found.baseline.spread(CONFLICTING) is not None


@pytest.mark.parametrize("name", ["erm-seed0", "erm-lr0.01-seed0"])
def test_a_cell_that_another_process_trains_is_no_failed_one(name: str, tmp_path: Path) -> None:
    base = {**BASE, "epochs": 1, "method": "erm", "val": 0.0}
    with claim(tmp_path / name), pytest.raises(InUse, match=f"{name} is in use by process .*; wait until it has ended"):
        compare(out=tmp_path, **base, vary={"lr": [0.01]}, seeds=1, progress=False)
    assert not (tmp_path / "comparison.json").exists()


@pytest.mark.slow
def test_a_cell_that_fails_is_not_stood_in_for_by_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {**BASE, "epochs": 1, "method": "erm", "val": 0.0}
    asked = {"vary": {"lr": [0.01]}, "seeds": 1, "progress": False}
    assert len(compare(out=tmp_path, **base, **asked).arms) == 2
    real = Trainer.run

    def fails(self: Trainer) -> None:
        if self.settings.optimizer.lr == 0.01:
            raise Diverged("diverged")
        real(self)

    monkeypatch.setattr(Trainer, "run", fails)
    again = compare(out=tmp_path, **base, **asked, overwrite=True)
    assert list(again.failed) == ["erm-lr0.01-seed0"]
    assert [arm.label for arm in again.arms] == ["erm"]
    assert [run.name for run in read_runs([tmp_path])] == ["erm-seed0"]


def test_folder_names_are_safe_and_never_shared() -> None:
    settings = TrainSettings()
    names = {folder_name(GridCell(f"erm data={d}", settings), settings) for d in ("a/b", "a_b", "a b", "../a")}
    assert len(names) == 4
    assert all("/" not in name and " " not in name for name in names)


def test_bad_requests(tmp_path: Path, done: Comparison) -> None:
    with pytest.raises(HoldfastError, match="seeds must be >= 1, got 0"):
        carry_out(make_plan(TrainSettings()), tmp_path, seeds=0)
    with pytest.raises(HoldfastError, match="is a run itself"):
        compare(out=done.out / "erm-seed0", **BASE, **ASKED)
    with pytest.raises(HoldfastError, match="unknown study 'biasadv-sensitivty'; did you mean 'biasadv-sensitivity'"):
        compare(out=tmp_path, study="biasadv-sensitivty")


def test_a_study_of_your_own_lists_its_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "own.yaml"
    cells = "cells: {slow: {lr: 0.01}, lff: {method: lff}, fast: {}}"
    study.write_text(f"common: {{data: digits, lr: 0.1}}\n{cells}\nseeds: 5\n")
    asked: list[Any] = []
    monkeypatch.setattr(
        "holdfast.comparisons.running.carry_out", lambda plan, _, **how: asked.append((plan, how["seeds"]))
    )
    compare(out=tmp_path, study=str(study), only=["lff", "slow"], epochs=4)
    ((plan, seeds),) = asked
    found = [(cell.label, cell.settings.method.name, cell.settings.optimizer.lr) for cell in plan.cells]
    assert (found, seeds) == ([("slow", "erm", 0.01), ("lff", "lff", 0.1)], 5)
    assert {cell.settings.loop.epochs for cell in plan.cells} == {4}
    with pytest.raises(HoldfastError, match=r"own\.yaml lists its cells; give no others"):
        compare(out=tmp_path, study=str(study), methods=["erm"])


def test_runs_on_data_that_was_changed_in_between_are_not_compared(tmp_path: Path) -> None:
    def write(seed: int) -> None:
        x = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), np.uint8)
        y = np.arange(40) % 2
        np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    own = {"data": str(tmp_path / "d.npz"), "device": "cpu", "epochs": 1, "batch_size": 16}
    write(0)
    compare(methods=["erm"], seeds=1, out=tmp_path / "c", **own)
    write(1)
    with pytest.raises(HoldfastError, match="the data has changed since .*erm-seed0 was trained"):
        compare(methods=["erm", "mixup"], seeds=1, out=tmp_path / "c", **own)
    assert not (tmp_path / "c" / "mixup-seed0").exists()
    compare(methods=["erm"], seeds=1, out=tmp_path / "c", **own)  # what is there may be shown again
    compare(methods=["erm", "mixup"], seeds=1, out=tmp_path / "c", overwrite=True, **own)


@pytest.mark.slow
def test_a_disk_that_is_full_ends_a_comparison_and_keeps_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"data": "digits", "device": "cpu", "epochs": 1, "batch_size": 512}
    compare(methods=["erm", "mixup"], seeds=1, out=tmp_path / "c", **own)
    before = (tmp_path / "c/mixup-seed0/model.safetensors").read_bytes()

    def full(self: Checkpoints, step: int, state: object) -> None:
        if "mixup" in str(self.folder):
            raise HoldfastError("cannot write a checkpoint")
        plain(self, step, state)

    plain = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(HoldfastError, match="cannot write a checkpoint"):
        compare(methods=["erm", "mixup"], seeds=1, out=tmp_path / "c", overwrite=True, **own)
    assert (tmp_path / "c/mixup-seed0/model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_a_row_says_how_long_it_was_trained_for(tmp_path: Path) -> None:
    """JTT's first stage is training too, and its errors are shown several times: three epochs are not three."""
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    y = np.arange(60) % 3
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    own = {"data": str(tmp_path / "d.npz"), "device": "cpu", "epochs": 3, "batch_size": 20}
    heard = Heard()
    plan = make_plan(build(TrainSettings, own), methods=["erm", "jtt", "lff"])
    done = carry_out(plan, tmp_path / "c", seeds=1, progress=heard)
    said = next(note for note in heard.notes if "equally long" in note)
    assert "3 epochs: erm, lff; 1 + 3 epochs: jtt" in said
    assert "--method jtt --method.first-epochs N" in said
    cells = {cell["settings"]: cell for cell in json.loads((tmp_path / "c" / "comparison.json").read_text())["cells"]}
    shown = [r["images"] for r in RunFiles.read(tmp_path / "c" / "jtt-seed0").metrics]
    assert len(shown) == 4
    assert {name: cell["epochs"] for name, cell in cells.items()} == {"erm": "3", "jtt": "1 + 3", "lff": "3"}
    assert cells["erm"]["passes"] == [3.0]
    assert cells["lff"]["passes"] == [6.0], "its biased model is trained too"
    assert cells["jtt"]["passes"] == [pytest.approx(sum(shown) / 60)]
    assert sum(shown) >= 60 * 4
    table = paired_table(done.arms, done.baseline)
    titles = [column.title for column in table.columns]
    rows = {row[0].text: dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows}
    assert (rows["jtt"]["epochs"], rows["erm (baseline)"]["epochs"]) == ("1 + 3", "3")
    assert (rows["lff"]["passes"], rows["erm (baseline)"]["passes"]) == ("6", "3")
    assert "1 + 3" in (tmp_path / "c" / "report.html").read_text()


def test_equal_budgets_need_no_word(tmp_path: Path) -> None:
    assert make_plan(TrainSettings(), methods=["erm", "lff"]).unequal_epochs() == ""
    pretrained = build(TrainSettings, {"pretrain": "rotation", "pretrain_for": 7, "epochs": 4})
    assert make_plan(pretrained).cells[0].epochs == "7 + 4"
    assert "5 epochs: erm epochs=5" in make_plan(TrainSettings(), vary={"epochs": [5]}).unequal_epochs()


@pytest.mark.slow
def test_a_cell_is_chosen_by_its_worst_group_where_groups_are_held_out(done: Comparison, tmp_path: Path) -> None:
    """Against the lowest accuracy of any cell of class and colour, counted by hand on the held-out digits."""
    again = compare(out=copied(done, tmp_path / "c"), **BASE, **ASKED, choose="val-worst-group")
    assert again.chosen is not None
    data = load_data(build(TrainSettings, BASE))
    assert data.val is not None
    images = data.val.read(torch.arange(len(data.val))).float() / 255
    for name, label in (("erm", "erm"), ("lff-q0.2", "lff q=0.2")):
        for seed in (0, 1):
            with torch.no_grad():
                right = load_model(tmp_path / "c" / f"{name}-seed{seed}")[0].eval()(images).argmax(1) == data.val.labels
            cells: dict[tuple[int, int], list[bool]] = {}
            for y, g, hit in zip(data.val.labels.tolist(), data.val.groups.tolist(), right.tolist(), strict=True):
                cells.setdefault((y, g), []).append(hit)
            worst = min(fmean(own) for own in cells.values())
            assert again.chosen.scores[label][seed] == pytest.approx(worst)
    record = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert "val-worst-group" in record["cells"][0]
    assert "no group labels" not in again.why


def test_a_choice_by_groups_needs_groups(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="val-worst-group needs groups in the validation set, and digits has none"):
        compare(out=tmp_path / "c", data="digits", val=0.1, epochs=1, device="cpu", choose="val-worst-group")
    assert not (tmp_path / "c").exists()
