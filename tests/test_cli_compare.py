"""``holdfast compare`` as a person meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.cli.compare import plan_comparison
from holdfast.comparisons.comparison_result import Comparison, write_comparison
from holdfast.reports import RunFiles, read_runs
from holdfast.reports.arms import Arm
from holdfast.settings import flatten
from holdfast.types import Finding

QUICK = ["--recipe", "erm/coloured-digits", "--epochs", "1", "--device", "cpu", "--quiet"]


@pytest.mark.slow
def test_compares_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # no terminal, and nothing that says how wide: no word is broken
    words = ["--vary", "lr=0.001", "--seeds", "1", "--val", "0.1", "--choose", "val-worst-class"]
    assert main(["compare", *QUICK, *words, "--out", str(tmp_path / "c")]) == 0
    text = capsys.readouterr().out
    assert "erm (baseline)" in text
    assert "erm lr=0.001" in text
    assert "Δ bias-conflicting, points" in text
    assert "val-worst-class, %" in text
    assert "by val-worst-class on held-out data" in " ".join(text.split())
    tables = {f"comparison.{kind}" for kind in ("json", "csv", "md", "tex")}
    names = {"erm-seed0", "erm-lr0.001-seed0", "report.html", *tables}
    assert {p.name for p in (tmp_path / "c").iterdir()} == names


@pytest.mark.slow
def test_an_epoch_chosen_on_the_test_set_is_marked_wherever_its_numbers_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    mark, out = "epoch chosen on the test set", tmp_path / "c"
    words = ["--vary", "select=oracle-test", "--seeds", "1", "--out", str(out)]
    assert main(["compare", *QUICK, *words]) == 0
    assert f"select=oracle-test ({mark})" in capsys.readouterr().out
    honest, seen = out / "erm-seed0", next(out.glob("*oracle*"))
    cells = json.loads((out / "comparison.json").read_text())["cells"]
    assert [mark in cell["settings"] for cell in cells] == [False, True]
    assert mark in (out / "report.html").read_text()
    for folder, marked in ((honest, False), (seen, True)):
        assert (mark in (folder / "report.html").read_text()) == marked
        assert ("epoch_chosen_on" in json.loads((folder / "findings.json").read_text())["model"]) == marked
    for rule in ("last", "oracle-test"):
        assert main(["train", *QUICK, "--select", rule, "--out", str(tmp_path / rule)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert ("the epoch was chosen on the test set" in told) == (rule == "oracle-test")


def test_a_shortcut_upside_down_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"erm": (1.0, 0.02), "logit-correction": (0.15, 0.94)}
    groups = [
        Arm.of(name, [RunFiles(name, data={"classes": ["a", "b"]}, findings=(
            Finding("groups", "bias_aligned_accuracy", aligned, 100, aligned - 0.05, aligned + 0.05),
            Finding("groups", "bias_conflicting_accuracy", other, 100, other - 0.05, other + 0.05),
        ))])
        for name, (aligned, other) in shares.items()
    ]  # fmt: skip
    done = Comparison(tmp_path, tuple(groups), None, "no cell is chosen", {})
    write_comparison(done)
    (warning,) = json.loads((tmp_path / "comparison.json").read_text())["warnings"]
    assert warning["code"] == "shortcut-upside-down"
    monkeypatch.setattr("holdfast.comparisons.running.carry_out", lambda *_, **__: done)
    assert main(["compare", *QUICK, "--methods", "erm", "logit-correction"]) == 0
    assert "warning: logit-correction turned the shortcut upside down: 15.0 % on" in capsys.readouterr().err


def test_flags_become_cells() -> None:
    plan, options, seeds = plan_comparison(
        ["--methods", "erm", "jtt", "--grid", "method.first_epochs=1,2", "method.up=5,9", "--vary", "lr=0.1",
         "--vary", "flip=true", "--baseline", "jtt", "--epochs", "7", "--seed", "4"]
    )  # fmt: skip
    found = [cell.label for cell in plan.cells]
    assert found[0] == "jtt"
    assert set(found[1:]) == {
        *("erm", "erm lr=0.1", "erm flip=true", "jtt lr=0.1", "jtt flip=true"),
        *(f"jtt first_epochs={t} up={u}" for t in (1, 2) for u in (5, 9)),
    }
    assert all(cell.settings.loop.epochs == 7 and cell.settings.loop.seed == 4 for cell in plan.cells)
    assert (seeds, options.out) == (3, "runs/compare")


def test_the_plan_of_a_study_is_shown_without_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--recipe", "biasadv/bffhq-lff+biasadv", "--study", "biasadv-sensitivity", "--out", str(tmp_path / "c")]
    assert main(["compare", *words, "--plan"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == "lff (baseline)"
    assert "16 cells × 3 seeds = 48 trainings" in text
    assert not (tmp_path / "c").exists()


STUDY = """
recipe: erm/coloured-digits
common: {epochs: 2, lr: 0.01}
cells:
  plain: {}
  lff hot: {method: {name: lff, q: 0.5}, lr: 0.1}
  cifar: {recipe: erm/cifar10-resnet18}
baseline: lff hot
seeds: 2
"""


def test_a_study_of_your_own_lists_its_cells(tmp_path: Path) -> None:
    """Later ones win: the recipe, what is common, the cell, and what the command says."""
    (tmp_path / "own.yaml").write_text(STUDY)
    words = ["--study", str(tmp_path / "own.yaml")]
    plan, _, seeds = plan_comparison([*words, "--batch-size", "7"])
    assert (seeds, plan.labels) == (2, ["lff hot", "plain", "cifar"])
    hot, plain, cifar = (flatten(cell.settings) for cell in plan.cells)
    assert (plain["data"], plain["conflict"], plain["epochs"], plain["lr"]) == ("coloured-digits", 0.05, 2, 0.01)
    assert (hot["method"]["name"], hot["method"]["q"], hot["lr"]) == ("lff", 0.5, 0.1)
    assert (cifar["data"], cifar["conflict"], cifar["model"], cifar["epochs"]) == ("cifar10", None, "cifar-resnet18", 2)
    assert {own["batch_size"] for own in (hot, plain, cifar)} == {7}
    few, _, _ = plan_comparison([*words, "--only", "cifar", "plain", "--lr", "0.3"])
    assert few.labels == ["plain", "cifar"]
    assert {cell.settings.optimizer.lr for cell in few.cells} == {0.3}


@pytest.mark.parametrize(
    ("study", "words", "message"),
    [
        (STUDY, ["--only", "plian"], "unknown cell 'plian'; did you mean 'plain'?"),
        (STUDY, ["--methods", "erm"], "lists its cells; leave out --methods"),
        (STUDY, ["--recipe", "erm/coloured-digits"], "lists its cells; leave out --recipe"),
        (STUDY.replace("q: 0.5", "q: 0"), [], "q must be"),
        (STUDY.replace("baseline", "base"), [], "unknown key of the study"),
        (
            STUDY.replace("cifar10-resnet18", "cifar10-resnet19"),
            [],
            "unknown recipe 'erm/cifar10-resnet19'; did you mean",
        ),
        ("common: {lr: 1}", [], "has common but no cells"),
        ("cells: [1, 2]", [], "must be 'label: {setting: value}' lines"),
        ("cells: {a: 3}", [], "must be 'label: {setting: value}' lines"),
        ("cells: {}", [], "must be 'label: {setting: value}' lines"),
        ("cells: {a: {epoch: 3}}", [], "unknown settings key 'epoch'; did you mean 'epochs'?"),
        (None, [], "cannot read settings from"),
    ],
)
def test_mistakes_in_a_study_are_named(
    study: str | None, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if study is not None:
        (tmp_path / "own.yaml").write_text(study)
    assert main(["compare", "--study", str(tmp_path / "own.yaml"), *words, "--out", str(tmp_path / "c")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "c").exists()


def test_a_plan_says_which_cells_are_trained_longer(capsys: pytest.CaptureFixture[str]) -> None:
    """JTT trains a first model beside the second, by default for a tenth of the epochs."""
    assert main(["compare", "--data", "digits", "--epochs", "3", "--methods", "erm", "jtt", "--plan"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not all are trained equally long: 3 epochs: erm; 1 + 3 epochs: jtt" in text
    assert "--method jtt --method.first-epochs N" in text
    assert main(["compare", "--data", "digits", "--epochs", "3", "--methods", "erm", "mixup", "--plan"]) == 0
    assert "equally long" not in capsys.readouterr().out


def test_a_plan_shows_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JTT's first model, and what is learned without labels before it."""
    monkeypatch.chdir(tmp_path)
    first = "  first: 9 epochs of a model whose errors are then shown more often (--method.first-epochs)"
    jtt = [
        "--method",
        "jtt",
        "--method.first-epochs",
        "9",
        "--data",
        "digits",
        "--epochs",
        "3",
        "--pretrain",
        "rotation",
    ]
    stages = [
        "  pretraining: 20 epochs without labels, rotation (--pretrain-for)",
        first,
        "  second: 3 epochs (--epochs)",
    ]
    assert main(["train", *jtt, "--plan"]) == 0
    title, *shown = capsys.readouterr().out.splitlines()
    assert (title.split(":")[0], shown[:3]) == ("jtt", stages)
    assert shown[3].startswith("  chosen for 1,198 training images")
    assert [line.split()[0] for line in shown[4:8]] == ["--optimizer", "--lr", "--batch-size", "--warmup"]
    assert main(["compare", *jtt, "--methods", "erm", "jtt", "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["erm (baseline)", stages[0], "  main: 3 epochs (--epochs)"]
    assert lines[3:7] == ["jtt", *stages]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "lff+biasadv", "--vary", "method.lambda=1"], "unknown setting 'method.lambda'; did you mean"),
        (["--vary", "epochs=0,3"], "epochs must be >= 1, got 0"),
        (["--vary", "epochs"], "write SETTING=VALUE,VALUE"),
        (["--study", "jtt-gird"], "unknown study 'jtt-gird'; did you mean 'jtt-grid'?"),
        (["--study", "jtt-grid"], "unknown setting 'method.first_epochs'; method erm has none"),
        (["--vary", "data=digits,cifr10"], "'cifr10'; did you mean 'cifar10'"),
        (["--seeds", "0", *QUICK], "seeds must be >= 1, got 0"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_flag_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["compare", "--vari", "lr=1"])
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "--vari" in err
    assert "run holdfast compare --help" in err, "the command that was called, and not train, whose flags it takes"


@pytest.mark.slow
def test_methods_stand_in_tables_and_reports_as_they_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "c"
    assert main(["compare", *QUICK, "--methods", "mixup", "erm", "cutmix", "--seeds", "1", "--out", str(out)]) == 0
    shown = re.findall(r"^\W*(mixup|erm|cutmix)\b", capsys.readouterr().out, flags=re.MULTILINE)
    assert shown == ["mixup", "erm", "cutmix"]
    written = (out / "report.html").read_bytes()
    assert [files.name for files in read_runs([out])] == ["mixup-seed0", "erm-seed0", "cutmix-seed0"]
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").read_bytes() == written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "erm", "group-dro", "--data", "digits"], "group-dro cannot be trained on digits"),
        (["--methods", "erm", "mixup", "--data", "digits", "--select", "val-average"], "needs a validation set"),
        (["--methods", "erm", "lff", "erm"], "erm is given twice among the methods"),
        (["--methods", "erm", "lfff"], "unknown method 'lfff'; did you mean 'lff'?"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_is(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--epochs", "1", "--device", "cpu", "--quiet", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["--help"], ["--vary", "lrr=1"], ["--recipe", "biasadv/bar-jtt", "--study", "jtt-grid", "--plan"]]
)
def test_answers_without_torch(words: list[str]) -> None:
    code = "import sys; from holdfast.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "sys.exit(7 if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code, "compare", *words], capture_output=True)
    assert done.returncode == 0, done.stderr
