"""``holdfast tune``: what is searched, what is chosen, and what dead workers leave behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from holdfast.cli import main
from holdfast.comparisons.search_space import Interval, check_space, default_space, given_space, parse_space
from holdfast.comparisons.tuning import Tuning, tune
from holdfast.errors import HoldfastError
from holdfast.models.saved_model import load_model
from holdfast.parts import ASCENTS, METHODS
from holdfast.settings import TrainSettings, build, flatten, read_yaml

optuna: Any = pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "d.npz"
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = random.integers(0, 90, (240, 8, 8), np.uint8)
    x[np.arange(240), y * 2] += 120
    groups = np.arange(240) // 3 % 2
    np.savez(place, x_train=x, y_train=y, group_train=groups, x_val=x[:60], y_val=y[:60], group_val=groups[:60],
             x_test=x[:30], y_test=y[:30], group_test=groups[:30])  # fmt: skip
    return place


ASKED: dict[str, Any] = {
    "space": {"lr": (1e-4, 1e-1, "log"), "batch_size": [20, 40]}, "epochs": 2, "device": "cpu", "workers": 0,
    "progress": False, "trials": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return tune(data, out=tmp_path_factory.mktemp("tune") / "t", **ASKED)


def score(folder: Path, data: Path) -> float:
    """The accuracy on the validation split, by hand."""
    with np.load(data) as given, torch.no_grad():
        images = torch.from_numpy(given["x_val"]).float()[:, None] / 255
        right = load_model(folder)[0].eval()(images).argmax(1).numpy() == given["y_val"]
    return float(right.mean())


def test_the_best_on_held_out_data_is_written_as_settings_to_train_with(done: Tuning, data: Path) -> None:
    found = {trial.name: score(done.out / trial.name, data) for trial in done.trials}
    assert {trial.name: trial.scores[0] for trial in done.trials} == pytest.approx(found)
    assert found[done.front[0].name] == max(found.values())
    best = build(TrainSettings, read_yaml(done.out / "best.yaml"))
    assert best == done.best
    values = done.front[0].values
    assert (best.optimizer.lr, best.loop.batch_size) == (values["lr"], values["batch_size"])
    assert values["batch_size"] in (20, 40)
    run = yaml.safe_load((done.out / done.front[0].name / "run.yaml").read_text())
    assert run["lr"] == values["lr"]
    record = json.loads((done.out / "tuning.json").read_text())
    assert record["best"] == done.front[0].name
    assert len(record["trials"]) == 3
    assert done.front[0].name in repr(done)


def test_the_test_set_plays_no_part(done: Tuning) -> None:
    for trial in done.trials:
        assert not (done.out / trial.name / "findings.json").exists()
        assert "test_accuracy" not in (done.out / trial.name / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_search_is_extended_and_refuses_another(done: Tuning, data: Path, tmp_path: Path) -> None:
    shutil.copytree(done.out, tmp_path / "t")
    more = tune(data, out=tmp_path / "t", **ASKED | {"trials": 4})
    assert [trial.name for trial in more.trials][:3] == [trial.name for trial in done.trials]
    assert len(more.trials) == 4
    assert len(tune(data, out=tmp_path / "t", **ASKED | {"trials": 4}).trials) == 4, "nothing is left to do"
    with pytest.raises(HoldfastError, match="holds a search of other settings, space or objectives; choose another"):
        tune(data, out=tmp_path / "t", **ASKED | {"epochs": 3})


@pytest.mark.slow
def test_several_objectives_give_a_front(data: Path, tmp_path: Path) -> None:
    found = tune(data, out=tmp_path / "t", **ASKED | {"objectives": ["val-average", "val-worst-group"], "trials": 4})
    scores = {trial.name: trial.scores for trial in found.trials}
    assert all(len(own) == 2 and own[1] <= own[0] for own in scores.values())

    def beaten(own: tuple[float, ...]) -> bool:
        return any(all(a >= b for a, b in zip(o, own, strict=True)) and o != own for o in scores.values())

    assert {trial.scores for trial in found.front} == {own for own in scores.values() if not beaten(own)}
    assert found.front[0].scores[0] == max(own[0] for own in scores.values())


@pytest.mark.slow
def test_what_is_behind_is_pruned(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AfterTheFirst(optuna.pruners.BasePruner):  # type: ignore[misc]
        def prune(self, study: Any, trial: Any) -> bool:
            return bool(trial.number > 0)

    monkeypatch.setattr(optuna.pruners, "MedianPruner", AfterTheFirst)
    found = tune(data, out=tmp_path / "t", **ASKED)
    assert [trial.state for trial in found.trials] == ["complete", "pruned", "pruned"]
    assert found.front[0].name == "trial-0000"
    epochs = {path.parent.name: path.read_text().count("\n") for path in found.out.glob("*/metrics.jsonl")}
    assert epochs == {"trial-0000": 2}, "what ended before its first checkpoint leaves nothing"
    assert not any(found.out.rglob("checkpoint"))
    whole = tune(data, out=tmp_path / "u", **ASKED | {"pruning": "none", "trials": 2})
    assert [trial.state for trial in whole.trials] == ["complete", "complete"]


@pytest.mark.parametrize("ascent", list(ASCENTS))
def test_every_ascent_has_a_space_of_values_it_can_have(ascent: str) -> None:
    settings = build(TrainSettings, {"ascent": ascent, "lr": 0.1})
    check_space(settings, default_space(settings))


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_a_space_of_values_it_can_have(method: str) -> None:
    settings = build(TrainSettings, {"method": method, "optimizer": "adamw", "lr": 1e-3})
    space = default_space(settings)
    check_space(settings, space)
    assert space["lr"] == Interval(1e-4, 1e-2, log=True)


def test_python_and_the_command_line_say_the_same() -> None:
    written = parse_space(["lr=1e-4..0.1:log", "epochs=2..9", "batch_size=32,64", "method.q=0.1..0.9"])
    given = {"lr": (1e-4, 0.1, "log"), "epochs": (2, 9), "batch_size": [32, 64], "method.q": (0.1, 0.9)}
    assert written == given_space(given)
    assert written["epochs"] == Interval(2, 9, whole=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--space", "lr=0.1..0.01"], "the range of lr must rise, got 0.1 to 0.01; swap them"),
        (["--space", "lr=0..1:log"], "a logarithmic range starts above 0, and that of lr at 0"),
        (["--space", "lr=a..b"], "the range of lr must be of numbers, got 'a' to 'b'"),
        (["--space", "lr=1..2..3"], "cannot read the range 'lr=1..2..3'; write SETTING=LOW..HIGH"),
        (["--space", "lrr=0.1..1"], "unknown setting"),
        (["--space", "optimizer=sgd,adamx"], "adamx"),
        (["--space", "seed=1,2"], "seed cannot be searched"),
        (["--space", "epochs=0..3"], "epochs must be >= 1, got 0"),
        (["--trials", "0", "--val", "0.1"], "trials must be >= 1, got 0"),
        (["--val", "0"], "digits has no validation split to choose on; hold one out with --val 0.1"),
        (["--val", "0.1", "--objectives", "val-worst-group"], "val-worst-group needs groups in the validation set"),
        (
            ["--val", "0.1", "--storage", "postgresql+nodriver://h/d"],
            "cannot use the storage postgresql+nodriver://h/d",
        ),
    ],
)
def test_bad_input_is_named_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "--data", "digits", "--device", "cpu", "--quiet", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_says_what_is_best_and_how_to_train_with_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = str(tmp_path / "t")
    words = ["--data", str(data), "--epochs", "1", "--device", "cpu", "--workers", "0", "--trials", "2", "--quiet"]
    assert main(["tune", *words, "--space", "lr=0.001..0.1:log", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "val-average, %" in said
    assert f"holdfast train --config {out}/best.yaml" in said
    assert main(["train", "--config", f"{out}/best.yaml", "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == flatten(build(TrainSettings, read_yaml(Path(out) / "best.yaml")))
