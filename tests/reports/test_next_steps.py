"""What to do next: it fits what was found and what was done already, and every command is understood as written."""

from __future__ import annotations

import ast
import inspect
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.parts import CHECKS
from holdfast.reports import RunFiles, read_runs
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.next_steps import next_steps
from holdfast.types import Finding
from tests.commands import require_understood

DOCS = Path(__file__).parents[2] / "docs"
CLEAN = Finding("accuracy", "accuracy", 0.93, 1000, 0.91, 0.95)
CONFLICTING = (
    Finding("groups", "bias_conflicting_accuracy", 0.4, 500, 0.36, 0.44),
    Finding("groups", "bias_gap", 0.55, 1000, 0.5, 0.6),
)
CORRUPTED = (
    Finding("corruptions", "mean_corruption_accuracy", 0.6, 1000, 0.57, 0.63, {"strength": "1"}),
    Finding("corruptions", "mean_corruption_drop", 0.33, 1000, 0.3, 0.36, {"strength": "1"}),
)
ATTACKED = (
    Finding("attacks", "robust_accuracy", 0.1, 100, 0.05, 0.17, {"radius": "8/255"}),
    Finding("attacks", "attack_drop", 0.82, 100, 0.7, 0.9, {"radius": "8/255"}),
)
MASKED = Finding("attacks", "trusted", 0.0, 100)
AUROC = Finding("ood", "ood_auroc", 0.6, 300, 0.5, 0.7, {"score": "msp"})
UNSURE = Finding("accuracy", "ece", 0.09, 1000, evidence={"chance_high": 0.05})
SLICE = (
    Finding("slices", "slice_accuracy", 0.4, 50, 0.3, 0.5, {"slice": "dark"}, evidence={"confirmed": True}),
    Finding("slices", "slice_gap", 0.5, 50, 0.4, 0.6, {"slice": "dark"}),
)
EVERYTHING = (CLEAN, UNSURE, *CONFLICTING, *SLICE, *CORRUPTED, *ATTACKED, MASKED, AUROC)
REMEDIES = sorted({command for part in CHECKS.values() for m in part.measures for command in m.remedies})


def audit(*found: Finding, spec: str = "runs/net", source: str = "run", trained: Any = None, **more: Any) -> RunFiles:
    checks = tuple(CheckRecord(name, "measured") for name in dict.fromkeys(f.check for f in found))
    model = {"name": "net", "spec": spec, "source": source, **({"trained": trained} if trained else {})}
    return replace(RunFiles("net", findings=found, checks=checks, model=model, data={"name": "birds"}), **more)


def commands(run: RunFiles) -> list[str]:
    return [command.line for step in next_steps([run]) for command in step.commands]


def every_command(run: RunFiles) -> list[str]:
    """Those of each bad number by itself: a report shows the first few steps only."""
    parts = [(CLEAN, *own) for own in (CONFLICTING, SLICE, CORRUPTED, ATTACKED, (MASKED,), (AUROC,), (UNSURE,), ())]
    runs = [replace(run, findings=own) for own in parts]
    crashed = replace(run, checks=(CheckRecord("attacks", "crashed"),))
    return [line for one in (*runs, crashed) for line in commands(one)]


KINDS = {
    "a run": audit(CLEAN),
    "a run, with the method it should be trained with": audit(CLEAN, trained={"method": "logit-correction"}),
    "a run trained on data in memory": audit(CLEAN, trained={"method": "erm", "own_data": "mine"}),
    "a name with a space": audit(CLEAN, spec="my runs/net", data={"name": "x", "spec": "my birds/2026 (new)"}),
    "a published model": audit(CLEAN, spec="timm:resnet18.a1_in1k", source="timm"),
    "data that was read in its own way": audit(
        CLEAN,
        spec="net.onnx",
        source="onnx",
        data={"name": "f", "spec": "faces/", "names": "{age}_{sex}_", "label": "age>=40", "data_seed": 3},
    ),
    "a set made with a shortcut": audit(
        CLEAN, spec="net.onnx", source="onnx", data={"name": "coloured-digits", "conflict": 0.01, "data_seed": 2}
    ),
    "a weight file": audit(
        CLEAN, model={"name": "net", "spec": "net.pth", "source": "weights", "architecture": "timm:resnet18"}
    ),
    "a weight file of a class in Python": audit(CLEAN, spec="net.pth", source="weights"),
    "predictions": audit(CLEAN, spec="answers.csv", source="predictions", data={"name": "predictions", "spec": ""}),
    "predictions on data": audit(CLEAN, spec="answers.csv", source="predictions", data={"name": "d", "spec": "digits"}),
    "a module": audit(CLEAN, spec="Net", source="module"),
    "a module on data in memory": audit(CLEAN, spec="Net", source="module", data={"name": "mine", "spec": ""}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_that_a_report_can_print_is_understood(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/net", "my runs/net"):
        Path(folder).mkdir(parents=True)
        Path(folder, "run.yaml").write_text(yaml.safe_dump({"data": "digits", "method": "lff", "epochs": 2}))
    for folder in ("birds", "faces", "my birds/2026 (new)"):
        Path(folder, "train/a").mkdir(parents=True)
    printed = every_command(KINDS[kind])
    assert printed
    for line in printed:
        if line.startswith("holdfast."):
            require_call(line)
            continue
        program, *words = shlex.split(line)
        assert program == "holdfast"
        assert not {"RUN", "MODEL", "DATA"} & set(words)
        with monkeypatch.context() as patch:
            require_understood(words, patch)


def require_call(line: str) -> None:
    """Fails where a call in Python names a function or an argument that there is not."""
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    assert {arg.id for arg in call.args if isinstance(arg, ast.Name)} <= {"model", "data"}
    given = {str(key.arg): ast.literal_eval(key.value) for key in call.keywords}
    inspect.signature(getattr(holdfast, call.func.attr)).bind(*call.args, **given)


@pytest.mark.parametrize("remedy", REMEDIES)
def test_every_remedy_says_what_it_does(remedy: str) -> None:
    line, _, does = remedy.partition(" # ")
    assert line.startswith("holdfast ")
    assert does
    assert not does.endswith(".")


def test_commands_fit_what_was_found() -> None:
    shortcut = ["shortcuts runs/net", "repair runs/net", "train --config runs/net/run.yaml --method logit-correction"]
    assert commands(audit(CLEAN, *CONFLICTING)) == [f"holdfast {words}" for words in shortcut]
    assert commands(audit(CLEAN, AUROC)) == ["holdfast detect fit --data birds --run runs/net"]
    good = replace(AUROC, value=0.97)
    assert commands(audit(CLEAN, UNSURE, good)) == ["holdfast repair runs/net --by none"]
    assert commands(audit(CLEAN, MASKED)) == [
        "holdfast audit runs/net --data birds --checks attacks --set attacks.images=1000"
    ]
    assert commands(audit(CLEAN, *CORRUPTED)) == [
        "holdfast train --config runs/net/run.yaml --auto-augment trivialaugment"
    ]


@pytest.mark.parametrize(
    ("found", "trained", "not_again"),
    [
        (CONFLICTING, {"method": "logit-correction"}, "logit-correction"),
        (CONFLICTING, {"method": {"name": "logit-correction", "q": 0.7}}, "logit-correction"),
        (ATTACKED, {"method": "adversarial"}, "adversarial"),
        (CORRUPTED, {"method": "erm", "auto_augment": "randaugment"}, "auto-augment"),
        (CONFLICTING, {"method": "erm", "repaired_by": "dfr"}, "repair"),
        ((UNSURE,), {"method": "erm", "repaired_by": "none"}, "repair"),
    ],
)
def test_what_was_done_already_is_not_proposed(
    found: tuple[Finding, ...], trained: dict[str, Any], not_again: str
) -> None:
    fresh, done = (audit(CLEAN, *found, trained=own) for own in ({"method": "erm", "auto_augment": "none"}, trained))
    assert not_again in " ".join(commands(fresh))
    assert not_again not in " ".join(commands(done))
    as_trained = replace(done, settings=trained, model={}, folder="runs/net", environment=trained)
    assert not_again not in " ".join(commands(as_trained)), "the same where the run itself says it"
    assert "Nothing failed" not in str(next_steps([done]))


def test_a_calibrated_model_can_still_be_given_a_new_last_layer() -> None:
    calibrated = audit(CLEAN, *CONFLICTING, trained={"method": "erm", "repaired_by": "none"})
    assert "holdfast repair runs/net" in commands(calibrated)


def test_attacks_on_all_images_are_not_to_be_tried_on_more() -> None:
    assert commands(replace(audit(CLEAN, MASKED), data={"name": "birds", "n": 100})) == []
    assert commands(audit(CLEAN, replace(MASKED, n=1000))) == []


def test_where_nothing_is_bad_gates_are_proposed_unless_there_are_some() -> None:
    fine = audit(CLEAN, replace(UNSURE, value=0.04))
    assert commands(fine) == ["holdfast audit runs/net --data birds --fail-under accuracy=0.91"]
    assert commands(replace(fine, gates=({"name": "accuracy >= 0.9", "passed": True},))) == []
    assert next_steps([RunFiles("training")]) == []


def test_a_drop_that_no_command_is_known_against_is_not_called_nothing() -> None:
    """The measure is of a package that declares no remedy."""
    run = audit(CLEAN, *CORRUPTED)
    silent = {("corruptions", m.name): replace(m, remedies=()) for m in CHECKS["corruptions"].measures}
    silent |= {("accuracy", m.name): m for m in CHECKS["accuracy"].measures}
    assert next_steps([replace(run, measures=silent)]) == []


def test_a_model_that_guesses_is_given_no_gates() -> None:
    guess = Finding("accuracy", "accuracy", 0.11, 500, 0.08, 0.14)
    parts = [Finding("accuracy", "accuracy", 0.1, 50, 0.0, 0.2, {"class": f"{i}"}) for i in range(10)]
    assert next_steps([audit(guess, *parts)]) == []


def test_a_crashed_check_is_tried_again_first() -> None:
    run = audit(CLEAN, *CONFLICTING)
    run = replace(run, checks=(*run.checks, CheckRecord("attacks", "crashed", "no memory")))
    assert commands(run)[0] == "holdfast audit runs/net --data birds --checks attacks"


def test_names_are_one_word_of_a_command_and_a_file_is_not_taken_for_a_run() -> None:
    evil = "a b; rm -rf ~ $(x) `y` 'z'"
    run = audit(CLEAN, *CONFLICTING, spec=evil, source="run")
    assert [shlex.split(command)[2] for command in commands(run)[:2]] == [evil, evil]
    assert commands(audit(CLEAN, *CONFLICTING, spec="net.onnx", source="onnx")) == [
        "holdfast shortcuts --data birds",
        "holdfast train --data birds --method logit-correction",
    ]


def test_what_came_from_python_is_answered_in_python() -> None:
    module = audit(CLEAN, *CONFLICTING, spec="Net", source="module", data={"name": "mine", "spec": ""})
    assert commands(module) == ["holdfast.find_shortcuts(data)", 'holdfast.fit(data, method="logit-correction")']
    named = replace(module, data={"name": "digits", "spec": "digits"}, findings=(CLEAN,))
    assert commands(named) == ['holdfast.audit(model, "digits", fail_under={"accuracy": 0.91})']


def training(folder: Path, method: str, seed: int, conflicting: float) -> RunFiles:
    found = (
        Finding("accuracy", "accuracy", 0.5 + conflicting / 2, 600, 0.4, 0.9),
        Finding("groups", "bias_aligned_accuracy", 0.98, 60, 0.9, 1.0),
        Finding("groups", "bias_conflicting_accuracy", conflicting, 540, conflicting - 0.02, conflicting + 0.02),
        Finding("groups", "bias_gap", 0.98 - conflicting, 600, 0.96 - conflicting, 1.0 - conflicting),
    )
    settings = {"method": method, "seed": seed, "data": "coloured-digits"}
    return RunFiles(f"{method}-{seed}", settings=settings, findings=found, folder=str(folder / f"{method}-{seed}"))


def test_a_comparison_ends_in_an_audit_of_the_best_against_the_baseline(tmp_path: Path) -> None:
    rates = {"erm": 0.45, "lff": 0.7, "logit-correction": 0.84}
    runs = [training(Path("demo"), name, seed, rate) for name, rate in rates.items() for seed in (1, 2)]
    (step,) = next_steps(runs)
    assert [c.line for c in step.commands] == ["holdfast audit demo/logit-correction-1 --against demo/erm-1"]
    assert step.why == (
        "Only clean accuracy and groups are measured so far. Audit logit-correction, the best here, against erm."
    )
    (step,) = next_steps(runs[:2])
    assert [c.line for c in step.commands] == ["holdfast audit demo/erm-1"]
    other = replace(runs[-1], settings={**runs[-1].settings, "data": "another"})
    assert next_steps([*runs[:-1], other]) == [], "numbers on different sets are not compared"
    assert next_steps([replace(run, environment={"own_data": "mine"}) for run in runs]) == []


def test_a_training_is_told_what_helps_and_then_to_audit_it() -> None:
    run = training(Path("runs"), "erm", 0, 0.45)
    assert commands(run) == [
        "holdfast shortcuts runs/erm-0",
        "holdfast repair runs/erm-0",
        "holdfast train --config runs/erm-0/run.yaml --method logit-correction",
        "holdfast audit runs/erm-0",
    ]
    (*_, last) = next_steps([replace(run, folder="/home/me/runs/erm-0")])
    assert [c.line for c in last.commands] == ["holdfast audit erm-0"], "a page tells nobody where things lie"
    assert last.why.endswith(" In the folder that holds the run:")


def test_the_gallery_does_not_propose_what_its_models_were_trained_with() -> None:
    runs = read_runs([DOCS / "gallery" / "fashion"])
    lines = [command.line for step in next_steps(runs) for command in step.commands]
    assert lines
    assert not [line for line in lines if "--method adversarial" in line]


def test_the_page_says_what_a_command_does() -> None:
    page = render([audit(CLEAN, *CONFLICTING)])
    assert "<code>holdfast repair runs/net</code> <span>fits a new last layer, in seconds</span>" in page
