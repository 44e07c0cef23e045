"""Gates on classes, groups and calibration, from the command line and in Python, against answers by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor

import holdfast
from holdfast.cli import main
from holdfast.data import load
from holdfast.errors import HoldfastError
from tests.audits.nearest import MODEL, QUICK, answers

SHORT = [*QUICK, "--checks", "accuracy", "groups", "--quiet", "--out", "out"]


def test_gates_on_a_class_a_group_and_a_cell(folder: Path) -> None:
    predicted, labels = answers()
    data = load("coloured-digits")
    assert data.test is not None
    right, in_class = predicted == labels, labels == data.classes.index("3")
    in_group = data.test.groups == 4
    group = data.group_names[4]
    shares = {
        "class_accuracy:3": right[in_class],
        f"group_accuracy:{group}": right[in_group],
        f"group_accuracy:3/{group}": right[in_class & in_group],
    }
    gates = {name: own.double().mean().item() for name, own in shares.items()}
    words = [f"{name}={value - 1e-9}" for name, value in gates.items()]
    assert main(["audit", MODEL, *SHORT, "--fail-under", *words, "--fail-over", "ece=1"]) == 0
    judged = json.loads(Path("out/findings.json").read_text())["gates"]
    assert [gate["n"] for gate in judged[:3]] == [len(own) for own in shares.values()]
    assert [gate["value"] for gate in judged[:3]] == pytest.approx(list(gates.values()))
    assert [gate["measure"] for gate in judged] == [*gates, "ece"]
    assert main(["audit", MODEL, *SHORT, "--fail-over", "ece=0"]) == 1
    least = {name: value + 1e-6 for name, value in gates.items() if value < 1}
    assert len(least) >= 2
    found = holdfast.audit(
        MODEL, "coloured-digits", checks=("accuracy", "groups"), fail_under=least, fail_over={"ece": 1.0}, device="cpu"
    )
    assert [gate["passed"] for gate in found.gates] == [*([False] * len(least)), True]


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("class_accuracy:33=0.5", "unknown class in --fail-under class_accuracy '33'; did you mean '3'?"),
        ("group_accuracy:nihgt=0.5", "unknown group in --fail-under group_accuracy 'nihgt'"),
    ],
)
def test_a_class_that_the_data_does_not_have_is_refused_before_measuring(
    gate: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", MODEL, *SHORT, "--fail-under", gate]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()


def test_data_without_groups_has_no_gate_on_one() -> None:
    def first_pixels(images: Tensor) -> Tensor:
        return 9 * images.flatten(1)[:, 20:30]

    with pytest.raises(HoldfastError, match="group_accuracy:a: the data has no group; leave it out"):
        holdfast.audit(first_pixels, "digits", fail_under={"group_accuracy:a": 0.5}, device="cpu", tell=str)
