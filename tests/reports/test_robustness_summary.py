"""The top of an audit's report: what drops, by how much, on which check, against what was demanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Chart, Details, Side, Table
from holdfast.reports.findings_file import CheckRecord
from holdfast.reports.html import render
from holdfast.reports.report_tables import lead_sentence, leads, paired
from holdfast.reports.robustness_summary import RobustnessResult, robustness, summary_sentence
from holdfast.reports.sections.glance import glance
from holdfast.types import Finding
from tests.reports.page import Page

MEAN = {"strength": "1"}


def strongest(radius: str, size: float, error: float) -> Finding:
    low, value, high = 0.95 - error, 1 - error, 1.05 - error
    return Finding("attacks", "robust_accuracy", value, 100, low, high, {"radius": radius}, evidence={"radius": size})


OLD = {"against": "old", "measure": "accuracy"}
CORRUPTED = Finding("corruptions", "mean_corruption_accuracy", 0.85, 1000, 0.83, 0.87, MEAN)
FOUND = (
    Finding("accuracy", "accuracy", 0.9, 1000, 0.88, 0.92),
    Finding("accuracy", "accuracy", 0.2, 10, 0.1, 0.4, {"class": "cat"}),
    Finding("groups", "bias_conflicting_accuracy", 0.89, 500, 0.86, 0.91, {}),
    Finding("groups", "bias_gap", 0.08, 1000, -0.01, 0.11),
    Finding("groups", "worst_group_accuracy", 0.4, 20, 0.2, 0.6, evidence={"cell": {"class": "cat", "group": "red"}}),
    Finding("groups", "worst_group_accuracy", 0.3, 20, 0.1, 0.5, {"column": "site"},
            evidence={"cell": {"site": "north"}}),
    Finding("slices", "slice_accuracy", 0.7, 50, 0.6, 0.8, {"slice": "dark"}, evidence={"confirmed": True}),
    Finding("slices", "slice_gap", 0.22, 100, 0.1, 0.3, {"slice": "dark"}),
    Finding("slices", "slice_accuracy", 0.1, 50, 0.0, 0.2, {"slice": "chance"}, evidence={"confirmed": False}),
    Finding("slices", "slice_gap", 0.8, 100, 0.7, 0.9, {"slice": "chance"}),
    CORRUPTED,
    Finding("corruptions", "mean_corruption_drop", 0.05, 1000, 0.04, 0.06, MEAN),
    Finding("attacks", "attack_error", 0.12, 100, 0.07, 0.2, {"attack": "clean", "access": "none"}),
    Finding("attacks", "attack_drop", 0.83, 100, where={"radius": "8/255"}),
    strongest("2/255", 2 / 255, 0.5), strongest("8/255", 8 / 255, 0.95), strongest("16/255", 16 / 255, 1.0),
    Finding("ood", "ood_auroc", 0.75, 300, 0.7, 0.8, {"score": "msp"}),
    Finding("against", "lead", 0.034, 1000, 0.01, 0.058, OLD, {}, {"only_this": 60, "only_other": 26}),
    Finding("against", "mcnemar_p", 0.00031, 1000, where=OLD,
            evidence={"adjusted_p": 0.0062, "correction": "Holm", "comparisons": 20}),
)  # fmt: skip


def results(findings: Sequence[Finding], gates: Sequence[dict[str, Any]] = ()) -> tuple[RobustnessResult, ...]:
    return robustness(findings, {}, gates)


def gate(measure: str, threshold: float, value: float, passed: bool) -> dict[str, Any]:
    name = f"{measure} >= {threshold}"
    return {
        "name": name, "kind": "fail-under", "measure": measure, "check": "", "threshold": threshold,
        "value": value, "low": value - 0.1, "high": value + 0.1, "n": 100, "passed": passed,
    }  # fmt: skip


GATES = (
    gate("worst_group_accuracy", 0.7, 0.3, False),
    gate("accuracy", 0.8, 0.9, True),
    gate("robust_accuracy@2/255", 0.4, 0.5, True),
)
CHECKS = (CheckRecord("accuracy", "measured", ""),)


def test_each_check_is_one_share_and_its_drop_is_told() -> None:
    found = {s.name: s for s in results(FOUND)}
    drops = {name: None if s.drop is None else round(s.drop, 9) for name, s in found.items()}
    assert drops == {
        "accuracy": None, "bias_conflicting_accuracy": 0.08, "worst_group_accuracy": 0.6, "slice_accuracy": 0.22,
        "mean_corruption_accuracy": 0.05, "robust_accuracy": 0.83, "ood_auroc": None,
    }  # fmt: skip
    attacked = found["robust_accuracy"]
    assert (attacked.value, attacked.low, attacked.high) == pytest.approx((0.05, 0.0, 0.1))
    assert found["worst_group_accuracy"].detail == "site north", "of several columns the lowest"
    assert (found["mean_corruption_accuracy"].drop_low, found["mean_corruption_accuracy"].drop_high) == (0.04, 0.06)


def test_drops_of_attacks_and_of_the_worst_group_have_the_interval_that_was_measured() -> None:
    """Of the same radius and column, not the first of that name."""
    eight = {"radius": "8/255"}
    more = (
        Finding("attacks", "attack_drop", 0.3, 100, 0.2, 0.4, {**eight, "radius": "2/255"}),
        Finding("attacks", "attack_drop", 0.83, 100, 0.74, 0.9, eight),
        Finding("groups", "worst_group_drop", 0.5, 1000, 0.3, 0.7),
        Finding("groups", "worst_group_drop", 0.6, 1000, -0.1, 0.8, {"column": "site"}),
    )
    found = {s.name: s for s in results((*(f for f in FOUND if f.name != "attack_drop"), *more))}
    attacked, worst = found["robust_accuracy"], found["worst_group_accuracy"]
    assert (attacked.drop, attacked.drop_low, attacked.drop_high) == (0.83, 0.74, 0.9)
    assert (worst.drop, worst.drop_low, worst.drop_high) == (0.6, -0.1, 0.8)
    assert not worst.clear(found["accuracy"]), "its own interval decides"


def test_of_several_columns_the_lowest_share_stands_with_the_gap_of_its_own_column() -> None:
    columns = (
        Finding("groups", "bias_conflicting_accuracy", 0.28, 32, 0.16, 0.45, {"column": "ward"}),
        Finding("groups", "bias_gap", 0.385, 146, 0.19, 0.53, {"column": "ward"}),
        Finding("groups", "bias_conflicting_accuracy", 0.66, 60, 0.54, 0.77, {"column": "scanner"}),
        Finding("groups", "bias_gap", -0.14, 150, -0.31, 0.05, {"column": "scanner"}),
    )
    shortcut = {s.name: s for s in results((FOUND[0], *columns))}["bias_conflicting_accuracy"]
    assert (shortcut.value, shortcut.drop, shortcut.drop_low, shortcut.drop_high) == (0.28, 0.385, 0.19, 0.53)
    said = summary_sentence(results((FOUND[0], *columns)))
    assert said.endswith("drops to 28.0 % bias-conflicting accuracy (column ward; from 66.5 % bias-aligned accuracy)")


def test_a_failed_gate_stands_with_the_column_it_failed_in() -> None:
    """On the low end that need not be the column of the lowest value."""
    columns = (
        Finding(
            "groups",
            "worst_group_accuracy",
            0.69,
            200,
            0.62,
            0.77,
            {"column": "site"},
            evidence={"cell": {"site": "n"}},
        ),
        Finding(
            "groups", "worst_group_accuracy", 0.7, 20, 0.36, 0.75, {"column": "ward"}, evidence={"cell": {"ward": "x"}}
        ),
    )
    low = {**gate("worst_group_accuracy", 0.6, 0.7, False), "fail_on": "low", "column": "ward"}
    found = {s.name: s for s in results((FOUND[0], *columns), (low,))}["worst_group_accuracy"]
    assert (found.value, found.low, found.detail, found.passed) == (0.7, 0.36, "ward x", False)
    held = {s.name: s for s in results((FOUND[0], *columns), ({**low, "passed": True},))}["worst_group_accuracy"]
    assert (held.value, held.detail, held.passed) == (0.69, "site n", True)


def test_the_sentence_starts_with_the_greatest_drop_and_ends_with_what_is_too_low() -> None:
    assert summary_sentence(results(FOUND, GATES)) == (
        "90.0 % clean accuracy on 1,000 images; drops to 5.0 % accuracy under attack (radius 8/255; from 88.0 % clean "
        "accuracy on the same 100 images), 30.0 % worst-group accuracy (site north), 70.0 % accuracy in a weak slice "
        "(dark; from 92.0 % accuracy in the rest), 85.0 % accuracy under corruptions (strength 1); not clearly "
        "lower: 89.0 % bias-conflicting accuracy (from 97.0 % bias-aligned accuracy; 95 % interval 86.0 to 91.0, "
        "n = 500); "
        "gate failed: worst-group accuracy (site north) 30.0 %, 95 % interval 10.0 to 50.0, must be at least 70.0"
    )


def test_a_drop_that_chance_explains_is_none() -> None:
    drop = Finding("corruptions", "mean_corruption_drop", 0.05, 1000, -0.01, 0.11, MEAN)
    said = summary_sentence(results((FOUND[0], CORRUPTED, drop)))
    assert said.endswith(
        "not clearly lower: 85.0 % accuracy under corruptions (strength 1; 95 % interval 83.0 to 87.0, n = 1,000)"
    )
    gain = Finding("corruptions", "mean_corruption_drop", -0.05, 1000, -0.06, -0.04, MEAN)
    said = summary_sentence(results((FOUND[0], CORRUPTED, gain)))
    assert said.endswith(
        "no drop: 85.0 % accuracy under corruptions (strength 1; from 80.0 % of what it is compared with)"
    )


def test_what_else_is_demanded_has_a_row_and_thresholds_are_marked() -> None:
    found = {s.name: s for s in results(FOUND, GATES)}
    assert (found["robust_accuracy@2/255"].value, found["robust_accuracy@2/255"].threshold) == (0.5, 0.4)
    assert {name: s.passed for name, s in found.items() if s.threshold is not None} == {
        "accuracy": True, "worst_group_accuracy": False, "robust_accuracy@2/255": True,
    }  # fmt: skip
    section = glance([RunFiles("new", findings=FOUND, checks=CHECKS, gates=GATES)])
    assert section is not None
    side = section.blocks[0]
    assert isinstance(side, Side)
    chart, table = side.blocks
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert chart.svg.count('class="mark"') == 3
    assert chart.svg.count('class="whisker"') == 8
    row = next(r for r in table.rows if r[0].text == "worst-group accuracy")
    assert [c.text for c in row] == ["worst-group accuracy", "30.0", "60.0", "90.0 clean accuracy", "70.0 FAILED"]


def test_a_model_without_other_checks_has_no_such_sentence() -> None:
    assert summary_sentence(results(FOUND[:2])) == ""
    assert summary_sentence(results(())) == ""


@pytest.mark.parametrize(
    ("value", "low", "high", "said"),
    [
        (0.034, 0.01, 0.058, "new is 3.4 points ahead of old in clean accuracy (95 % interval 1.0 to 5.8)"),
        (-0.034, -0.058, -0.01, "new is 3.4 points behind old in clean accuracy (95 % interval 1.0 to 5.8)"),
        (0.01, -0.01, 0.03, "new and old do not clearly differ in clean accuracy: 1.0 points apart "
                            "(95 % interval -1.0 to 3.0)"),
        (-0.01, -0.03, 0.01, "old and new do not clearly differ in clean accuracy: 1.0 points apart "
                             "(95 % interval -1.0 to 3.0)"),
    ],
)  # fmt: skip
def test_models_are_compared_by_what_was_paired(value: float, low: float, high: float, said: str) -> None:
    lead = replace(FOUND[-2], value=value, low=low, high=high)
    tail = " on the same 1,000 images, McNemar's p = 0.0062 (Holm's correction for 20 comparisons)"
    assert lead_sentence([lead, FOUND[-1]], "new") == said + tail


def test_a_lead_that_the_corrected_p_speaks_against_is_not_called_one() -> None:
    chance = replace(FOUND[-1], evidence={"adjusted_p": 0.21, "correction": "Holm", "comparisons": 20})
    assert lead_sentence([FOUND[-2], chance], "new") == (
        "new and old do not clearly differ in clean accuracy: 3.4 points apart (95 % interval 1.0 to 5.8, not "
        "corrected) on the same 1,000 images, McNemar's p = 0.21 (Holm's correction for 20 comparisons)"
    )


def test_paired_differences_are_the_findings() -> None:
    table = paired(leads(FOUND, {}, "new"))
    assert table is not None
    (row,) = table.rows
    assert table.caption == "Paired differences: new − old"
    assert [c.text for c in row] == ["clean accuracy", "3.4 (1.0 to 5.8)", "60", "26", "0.0062", "1,000"]
    assert "corrected for all comparisons of the audit (Holm)" in table.note
    two = paired([*leads(FOUND, {}, "new"), *leads(FOUND, {}, "newer")])
    assert two is not None
    assert two.caption == "Paired differences"
    assert [r[0].text for r in two.rows] == ["new − old", "newer − old"]
    assert paired(leads(FOUND[:3], {}, "new")) is None
    where = {"against": "old", "measure": "ood_auroc", "score": "msp"}
    told = [
        Finding("against", "lead", 0.02, 90, -0.01, 0.05, where),
        Finding("against", "delong_p", 0.12345, 90, where=where),
    ]
    ((*cells,),) = leads(told, {}, "new")
    assert [c.text for c in cells] == [
        "new − old", "AUROC on OOD images, score msp", "2.0 (-1.0 to 5.0)", "", "", "0.12 (not corrected)", "90",
    ]  # fmt: skip


def test_parts_of_a_check_are_compared_on_demand() -> None:
    """What stands for a check is at the top; every group and corruption is below, and none in both."""
    standing: list[dict[str, str]] = [
        {"measure": "bias_conflicting_accuracy"}, {"measure": "bias_aligned_accuracy", "column": "site"},
        {"measure": "group_accuracy", "worst cell of": "new", "class": "cat", "group": "red"},
    ]  # fmt: skip
    auroc = {"measure": "ood_auroc"}
    confidence, nearest, noise = (
        {**auroc, **w} for w in ({"score": "msp"}, {"score": "knn"}, {"score": "msp", "ood": "noise"})
    )
    others: list[dict[str, str]] = [
        {"measure": "group_accuracy", "group": "red"},
        {"measure": "group_accuracy", "column": "site", "site": "north"},
        {"measure": "mean_corruption_accuracy", "strength": "2"},
        {"measure": "corruption_accuracy", "corruption": "fog", "strength": "1"},
    ]
    attacked = {"measure": "robust_accuracy", "radius": "2/255"}
    mean = {"measure": "mean_corruption_accuracy", **MEAN}
    every = ({"measure": "accuracy"}, *standing, mean, attacked, confidence, *others, nearest, noise)
    found = [Finding("against", "lead", 0.1, 50, 0.0, 0.2, {"against": "old", **w}) for w in every]
    told = {parts: [row[1].text for row in leads(found, {}, "new", parts=parts)] for parts in (False, True)}
    assert told == {
        False: [
            "clean accuracy",
            "bias-conflicting accuracy",
            "bias-aligned accuracy, column site",
            "accuracy by group, worst cell of new, class cat, group red",
            "accuracy under corruptions, strength 1",
            "accuracy under attack, radius 2/255",
            "AUROC on OOD images, score msp",
        ],
        True: [
            "accuracy by group, group red",
            "accuracy by group, column site, site north",
            "accuracy under corruptions, strength 2",
            "accuracy under one corruption, corruption fog, strength 1",
            "AUROC on OOD images, score knn",
            "AUROC on OOD images, score msp, ood noise",
        ],
    }
    section = glance([RunFiles("new", findings=(*FOUND, *found), checks=CHECKS)])
    assert section is not None
    (more,) = [block for block in section.blocks if isinstance(block, Details)]
    (table,) = more.blocks
    assert isinstance(table, Table)
    assert len(table.rows) == len(told[True])


def test_the_page_begins_with_it() -> None:
    new = RunFiles("new", findings=FOUND, checks=CHECKS, gates=GATES)
    old = RunFiles("old", findings=FOUND[:-2], checks=CHECKS)
    (alone,) = Page(render([new])).text("h1")
    failure = "30.0 % worst-group accuracy (site north; 95 % interval 10.0 to 50.0, n = 20)"
    gates = "1 of 3 failed (worst_group_accuracy >= 0.7)."
    assert alone.replace("\u00a0", " ") == f"new: 90.0 % clean accuracy on 1,000 images, but {failure}. Gates: {gates}"
    page = Page(render([new, old]))
    lead = "new is 3.4 points ahead of old in clean accuracy (95 % interval 1.0 to 5.8) on the same 1,000 images"
    assert page.text("h1")[0].replace("\u00a0", " ") == (
        f"{lead}; new has 90.0 %. Largest failure of new: {failure}. Gates of new: {gates}"
    )
    assert page.text("b") == ["Clean accuracy", "new", "old"]
    assert [cell.text for cell in page.column("Paired differences: new − old", "measure")] == ["clean accuracy"]


def test_an_audit_without_accuracy_says_what_was_measured() -> None:
    checks = (CheckRecord("attacks", "measured"), CheckRecord("accuracy", "skipped"))
    run = RunFiles("net", findings=tuple(f for f in FOUND if f.check == "attacks"), checks=checks)
    assert Page(render([run])).text("h1") == [
        "net: 88.0\u00a0% clean accuracy on the 100 images measured, but 5.0\u00a0% accuracy under attack (radius "
        "8/255; 95\u00a0% interval 0.0 to 10.0, n\u00a0=\u00a0100)"
    ]
    page = Page(render([run, replace(run, name="other")]))
    assert page.text("h1") == ["2 models; clean accuracy was not measured"]
    assert page.text("b") == ["net", "other"]
