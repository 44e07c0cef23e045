"""The command line as a person meets it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from holdfast.cli import COMMANDS, main, parse_train
from holdfast.comparisons.running import compare
from holdfast.errors import HoldfastError
from holdfast.reports import read_findings
from holdfast.train import fit
from tests.conftest import make_data

QUICK = ["--data", "digits", "--device", "cpu", "--epochs", "1", "--quiet"]


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_train_writes_a_run_and_report_rebuilds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", *QUICK, "--out", str(out)]) == 0
    text = said(capsys)[0]
    assert str(out / "report.html") in text.replace("\n", "")
    assert "accuracy" in text
    assert "worst_group_accuracy" not in text  # digits have no groups
    names = {"run.yaml", "metrics.jsonl", "model.safetensors", "model.json", "findings.json", "report.html"}
    assert names <= {p.name for p in out.iterdir()}
    before = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").read_bytes() == before


@pytest.mark.slow
def test_what_two_checks_measure_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # no row goes over two lines
    words = ["train", "--data", "coloured-digits", "--epochs", "1", "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--device", "cpu"]) == 0
    cells = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines() if " %" in line]
    measures = [tuple(row[:2]) for row in cells]
    assert ("bias_conflicting_accuracy", "all") in measures
    assert len(set(measures)) == len(measures)


@pytest.mark.slow
def test_a_runs_own_settings_repeat_it(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert main(["train", *QUICK, "--lr", "0.02", "--seed", "3", "--out", str(first)]) == 0
    assert main(["train", "--config", str(first / "run.yaml"), "--quiet", "--out", str(again)]) == 0
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_of_what_was_in_memory_is_not_repeated_on_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch import nn

    own, digits = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), ["--data", "digits"]
    fit(make_data(), model=own, out=tmp_path / "own", epochs=1, device="cpu")
    fit(make_data(), out=tmp_path / "named", epochs=1, device="cpu")
    words = ["--quiet", "--out", str(tmp_path / "again")]
    for command in ("train", "compare"):
        for run, given, message in (
            (
                "own",
                [],
                "a set in memory (bars) and a module of its own (Sequential), which settings do not hold; name",
            ),
            ("own", digits, "run.yaml is of a run with a module of its own (Sequential), which settings do not hold"),
            ("own", ["--model", "convnet"], "a set in memory (bars), which settings do not hold; name one with --data"),
            ("named", [], "a set in memory (bars)"),
            ("named", ["--recipe", "erm/coloured-digits"], "a set in memory (bars)"),  # the file wins over the recipe
        ):
            assert main([command, "--config", str(tmp_path / run / "run.yaml"), *given, *words]) == 2
            assert message in " ".join(said(capsys)[1].split())
    assert not (tmp_path / "again").exists()
    with pytest.raises(HoldfastError, match="name one with --data"):
        compare(config=tmp_path / "named" / "run.yaml", out=tmp_path / "again")
    settings, _ = parse_train(["--config", str(tmp_path / "own" / "run.yaml"), *digits, "--model=cifar-vgg16"])
    assert (settings.data.name, settings.model.name, settings.loop.epochs) == ("digits", "cifar-vgg16", 1)
    assert main(["train", "--config", str(tmp_path / "named" / "run.yaml"), *digits, *words]) == 0
    assert main(["train", "--resume", "--out", str(tmp_path / "own")]) == 2
    assert "started with a module of its own, Sequential; continue it with that" in said(capsys)[1]


@pytest.mark.slow
def test_a_restartable_command_says_whether_it_starts_or_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    words = ["train", *(word for word in QUICK if word != "--quiet"), "--batch-size", "512", "--resume", "--out", out]
    assert main(words) == 0
    assert f"no run in {out} yet; starting one" in said(capsys)[1]
    assert main(words) == 0
    again = said(capsys)[1]
    assert "starting one" not in again
    assert "this run is already finished, at step 3; nothing is left to train" in again
    assert "continuing" not in again


def test_flags_win_over_the_file_and_the_file_over_the_recipe(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("epochs: 7\nlr: 1e-2\nascent: {name: fsam, rho: 0.3}\n")
    words = ["--recipe", "erm/cifar10-resnet18", "--config", str(config), "--epochs", "9", "--ascent.sigma", "0.5"]
    settings, _ = parse_train(words)
    assert settings.loop.epochs == 9  # flag
    assert settings.optimizer.lr == 0.01  # file
    assert settings.augment.crop == 4  # recipe
    assert settings.optimizer.momentum == 0.9  # default
    assert (settings.ascent.rho, settings.ascent.sigma) == (0.3, 0.5)  # type: ignore[attr-defined]


def test_of_a_repeated_flag_the_last_counts(tmp_path: Path) -> None:
    for name, epochs in (("one", 1), ("two", 2)):
        (tmp_path / f"{name}.yaml").write_text(f"epochs: {epochs}\n")
    words = ["--method", "lff", "--method=jtt", "--ascent", "sam", "--ascent", "fsam", "--lr", "0.1", "--lr", "0.2"]
    words += ["--config", f"{tmp_path}/one.yaml", "--config", f"{tmp_path}/two.yaml"]
    words += ["--recipe", "erm/coloured-digits", "--recipe", "erm/cifar10-resnet18"]
    settings, options = parse_train([*words, "--method.up", "7", "--ascent.sigma", "0.5"])
    assert (settings.method.name, settings.ascent.name, settings.optimizer.lr) == ("jtt", "fsam", 0.2)
    assert (settings.loop.epochs, settings.data.name) == (2, "cifar10")
    assert options.recipe == "erm/cifar10-resnet18"


def test_printed_settings_are_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--optimizer", "adam", "--ascent", "sam", "--print-config"]) == 0
    text = said(capsys)[0]
    (tmp_path / "a.yaml").write_text(text)
    again, _ = parse_train(["--config", str(tmp_path / "a.yaml")])
    assert again == parse_train(["--optimizer", "adam", "--ascent", "sam"])[0]
    assert yaml.safe_load(text)["optimizer"] == "adam"


def test_weights_from_a_file_win_over_a_recipe_that_asks_for_published_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("weights: own.pth\n")
    for words, shown in {
        ("--recipe", "finetune/default", "--weights", "own.pth"): "pretrained: false\nweights: own.pth\n",
        ("--config", str(tmp_path / "mine.yaml"), "--pretrained"): "pretrained: true\nweights: null\n",
    }.items():
        assert main(["train", *words, "--print-config"]) == 0, capsys.readouterr().err
        assert shown in capsys.readouterr().out
    assert main(["train", "--pretrained", "--weights", "own.pth", "--print-config"]) == 2
    assert "pretrained and weights (own.pth) exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tran"], "unknown command 'tran'; did you mean 'train' or 'tune'?"),
        (["train", "--method", "ermm"], "unknown method 'ermm'; did you mean 'erm'?"),
        (["train", "--ascent", "fsamm"], "unknown ascent 'fsamm'; did you mean 'fsam'"),
        (["train", "--data", "cifr10"], "'cifr10'; did you mean 'cifar10'"),
        (["train", "--data", "/nowhere/photos"], "'/nowhere/photos'"),
        (["train", "--recipe", "erm/cifar"], "unknown recipe 'erm/cifar'; did you mean 'erm/cifar10-resnet18'?"),
        (["train", "--epochs", "0"], "epochs must be >= 1, got 0"),
        (["train", "--image-size", "0"], "image_size must be in 1..4096, got 0"),
        (["train", "--data", "bar", "--conflict", "0.05"], "conflict 0.05 is for data made with a shortcut"),
        (["shortcuts", "--data", "digits", "--conflict", "0.1"], "conflict 0.1 is for data made with a shortcut"),
        (["compare", "--data", "digits", "--conflict", "0.1", "--plan"], "conflict 0.1 is for data made with"),
        (["data", "make", "coloured", "--data", "digits", "--severity", "3", "--out", "a.npz"], "severity 3"),
        (["data", "make", "coloured", "--data", "digits", "--kind", "dfa", "--out", "a.npz"], "kind dfa"),
        (["data", "make", "watermark", "--data", "digits", "--frost", "ice", "--out", "a.npz"], "frost ice"),
        (["data", "make", "corrupted-cifar10", "--data", "mnist", "--out", "a.npz"], "data mnist"),
        (["data", "make", "fashion-anomalies", "--conflict", "0.1", "--out", "a"], "conflict 0.1"),
        (["data", "make", "coloured", "--data", "digits", "--strength", "0.5", "--out", "a.npz"], "strength 0.5"),
        (
            ["data", "make", "coloured", "--data", "digits", "--anomalies", "noise", "--out", "a.npz"],
            "anomalies {'noise'",
        ),
        (["train", "--data", "digits", "--labels", "20", "--unlabeled", "rest"], "erm learns from labels alone"),
        (["train", "--method", "jtt", "--method.up", "1000000000"], "up must be in 1..10000, got 1000000000"),
        (["train", "--batch-size", "2", "--accumulate", "3"], "accumulate (3) cannot exceed batch_size (2)"),
        (
            ["train", "--resume", "--out", "r"],
            "no run in r; correct --out, or say what to train there (--data",
        ),
        (["train", "--resume", "--out", "r", "--device", "cpu"], "no run in r; correct --out"),
        (["train", "--resume", "--overwrite", *QUICK], "resume and overwrite exclude each other"),
        (["train", "--out", "", *QUICK], "--out is empty"),
        (["train", "--out", "r" * 300, *QUICK], "File name too long"),
        (["train", "--resume", "--out", "r" * 300], "File name too long"),
        (["train", "--weights", "w" * 300, *QUICK], "File name too long"),
        (["train", *QUICK, "--data", "cifar10", "--root", "r" * 300], "File name too long"),
        (["train", *QUICK, "--labels", "100", "--method", "fixmatch", "--unlabeled", "u" * 300], "File name too long"),
        (["compare", *QUICK, "--out", "r" * 300], "File name too long"),
        (["train", "emoji", *QUICK], "train takes options alone, got 'emoji'; if that is the data, write --data emoji"),
        (["train", "--config", "", *QUICK], "--config is empty; give it a value or leave it out"),
        (["train", "--recipe=", *QUICK], "--recipe is empty"),
        (["audit", "", "--data", "digits"], "an argument is empty"),
        (["train", "--config", "missing.yaml"], "cannot read settings from missing.yaml"),
        (["train", "--model", "resnet1", *QUICK], "unknown model 'resnet1'; did you mean"),
        (["train", "--model", "zqxj", *QUICK], "unknown model 'zqxj'; 'holdfast list models' lists the"),
        (["train", "--recipe", "zqxj"], "unknown recipe 'zqxj'; 'holdfast list recipes' lists the"),
        (["compare", "--vary", "zqxj=1"], "unknown settings key 'zqxj'; 'holdfast train --print-config' lists the"),
        (["audit", "zqxj", "--data", "digits"], "known (nor is there a run folder or file of that name)"),
        (["train", "--weights", "no.pth", *QUICK], "no.pth"),
        (["train", "--device", "cuda:9", *QUICK[4:], "--data", "digits"], "device 'cuda:9' is not there"),
        (["report", "/nowhere"], "/nowhere"),
        (["report"], "no run folder given"),
        (["data", "check", "nothing-here"], "'nothing-here'"),
        (["shortcuts", "--data", "digits", "--label", "age"], "names, label and group are for folders"),
        (["data", "check", "digits", "--names", "{age}_"], "names, label and group are for folders"),
        (["list", "mthods"], "unknown kind 'mthods'; did you mean 'methods'"),
    ],
)
def test_bad_input_is_named_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = said(capsys)[1]
    assert message in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_flag_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--epoch", "3"])
    assert exit_.value.code == 2
    assert "--epochs" in said(capsys)[1]


def test_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = said(capsys)[0]
    assert all(word in text for word in ("erm", "fsam", "coloured-digits", "erm/cifar10-resnet18"))
    assert main(["list", "corruptions"]) == 0
    text = said(capsys)[0]
    assert all(word in text for word in ("gaussian-noise", "falling snow", "imgaug-gaussian-blur"))


def test_data_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not expand ~ in --data=~/set.npz, nor inside quotes."""
    import numpy as np

    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "set.npz", x_train=np.zeros((20, 8, 8), np.uint8), y_train=np.arange(20) % 2)
    assert main(["data", "check", "~/set.npz"]) == 0
    assert main(["data", "check", "~/other.npz"]) == 2


def test_data_check_finds_the_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (8, 8), (i * 40, 0, 0)).save(tmp_path / name / f"{i}.png")
    assert main(["data", "check", str(tmp_path)]) == 0
    (tmp_path / "dog" / "1.png").write_bytes(b"no picture")
    said(capsys)
    assert main(["data", "check", str(tmp_path)]) == 2
    assert "1.png" in said(capsys)[0]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Python keeps what it has compiled, empty at first."""
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["train", "--methd", "x"], ["train", "--data", "x"]]
)
def test_help_and_usage_errors_answer_at_once_without_torch(words: list[str], compiled: Path) -> None:
    """Half a second where importing tyro and rich takes 0.08 s, more where the machine is slower. Processor time: the
    wall clock also counts what else the machine does. Compiled code is kept, as ever.
    """
    code = "import sys; from holdfast.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "sys.exit(7 if 'torch' in sys.modules else 0)"
    surroundings = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    surroundings["PYTHONPYCACHEPREFIX"] = str(compiled)

    def seconds(*given: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", *given], capture_output=True, env=surroundings)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    took, usual = [1.0], [1.0]  # the first start compiles; a busy machine slows some of the others down
    while len(took) < 3 or (min(took[1:]) >= 6 * min(usual[1:]) and len(took) < 12):
        took.append(seconds(code, *words))
        usual.append(seconds("import tyro, yaml, rich.console, rich.table"))
    assert 0 < min(took[1:]) < 6 * min(usual[1:])


@pytest.mark.slow
def test_tensorboard_gets_the_numbers_of_every_epoch(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main(["train", *QUICK, "--epochs", "2", "--track", "tensorboard", "--out", str(tmp_path)]) == 0
    read = events.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    for name in ("train_loss", "test_accuracy", "lr"):
        shown = [(event.step, event.value) for event in read.Scalars(f"main/{name}")]
        assert shown == [(row["step"], pytest.approx(row[name])) for row in rows]
    (last,) = read.Scalars("results/accuracy")
    found = {f.name: f.value for f in read_findings(tmp_path / "findings.json").findings if not f.where}
    assert last.value == pytest.approx(found["accuracy"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_one_default_and_never_nothing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", said(capsys)[0]).split())
    assert re.findall(r"\S+ \S+ \(default: (?:None)?\)", text) == []
    assert "{None" not in text
    assert "--no-no-" not in text
    assert "options options" not in text
    assert re.findall(r"\(default: [^)]*\)\.? \(default: [^)]*\)", text) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_argument(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    rows = [line.strip("│ ") for line in said(capsys)[0].splitlines() if line.startswith("│")]
    for row, below in pairwise([*rows, ""]):
        if row.startswith("--"):
            words, _, beside = row.partition("  ")
            assert re.match(r"[^(-]", beside.strip() or below), words
    assert not any(row.lstrip("[{").startswith("STR") for row in rows)  # what is no flag has a name of its own


@pytest.mark.slow
def test_the_demonstration_shows_the_shortcut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # heads of the table are folded at 80
    assert main(["demo", "--seeds", "2", "--epochs", "2", "--quiet", "--out", str(tmp_path)]) == 0
    assert "conflicting" in said(capsys)[0]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    findings = json.loads((tmp_path / "erm-seed0" / "findings.json").read_text())["findings"]
    side = {f["name"]: f["value"] for f in findings if f["check"] == "groups"}
    assert side["bias_aligned_accuracy"] > side["bias_conflicting_accuracy"] + 0.3


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_shortcuts_says_a_warning_once(
    quiet: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One look by a model that knows nothing warns; it stands in for trainings that would."""
    from torch import nn

    from holdfast import shortcuts

    real = shortcuts.find_shortcuts
    blind = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    nn.init.zeros_(blind[-1].weight)
    monkeypatch.setattr(shortcuts, "find_shortcuts", lambda *args, **kwargs: real(*args, **{**kwargs, "model": blind}))
    assert main(["shortcuts", "--data", "coloured-digits", "--out", str(tmp_path / "found"), *quiet]) == 0
    assert capfd.readouterr().err.count("there may be no simple shortcut") == 1
