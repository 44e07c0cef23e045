"""Gates hold, fail, and fail where there is nothing to judge."""

from __future__ import annotations

from math import hypot
from typing import Any

import pytest

from holdfast.audits.gates import Gate, Number, drop, gate_names, judge, parse_gates, target_of
from holdfast.errors import HoldfastError
from holdfast.parts import CHECKS
from holdfast.settings.audit_settings import make_checks
from holdfast.types import Finding

MEASURED = dict.fromkeys(("accuracy", "groups", "attacks", "corruptions", "ood"), ("measured", ""))
CLEAN = Finding("accuracy", "accuracy", 0.9, 100, 0.83, 0.94)
WORST = Finding("groups", "worst_group_accuracy", 0.72, 25, 0.5, 0.85)


def verdict(word: str, *findings: Finding, fail_on: Any = "value", states: Any = None) -> dict[str, Any]:
    (gate,) = parse_gates([word], [], against=False)
    return judge(gate, findings, fail_on=fail_on, states=MEASURED if states is None else states)


def test_a_gate_holds_at_its_threshold_and_fails_under_it() -> None:
    assert verdict("accuracy=0.9", CLEAN)["passed"]
    failed = verdict("accuracy=0.91", CLEAN)
    assert not failed["passed"]
    assert failed["reason"] == "value 0.9000 is under 0.91"
    assert (failed["value"], failed["low"], failed["high"], failed["n"]) == (0.9, 0.83, 0.94, 100)


def test_failing_on_the_low_end_asks_for_more() -> None:
    assert verdict("worst_group_accuracy=0.7", WORST)["passed"]
    assert not verdict("worst_group_accuracy=0.7", WORST, fail_on="low")["passed"]
    assert verdict("worst_group_accuracy=0.5", WORST, fail_on="low")["passed"]


def test_a_number_without_an_interval_cannot_hold_on_its_low_end() -> None:
    bare = Finding("accuracy", "accuracy", 1.0, 3)
    made = verdict("accuracy=0.1", bare, fail_on="low")
    assert not made["passed"]
    assert "no interval" in made["reason"]


@pytest.mark.parametrize("state", [("not applicable", "no groups"), ("crashed", "boom"), ("skipped", "not asked")])
def test_a_gate_on_an_unmeasured_check_fails_and_says_so(state: tuple[str, str]) -> None:
    made = verdict("worst_group_accuracy=0", states={"groups": state})
    assert not made["passed"]
    assert state[0] in made["reason"]
    assert state[1] in made["reason"]


def test_a_gate_fails_where_the_check_has_no_such_number() -> None:
    assert "no number for bias_conflicting_accuracy" in verdict("bias_conflicting_accuracy=0", WORST)["reason"]
    assert not verdict("worst_group_accuracy=0", Finding("groups", "worst_group_accuracy", None, 0))["passed"]


def test_of_several_columns_the_worst_counts() -> None:
    columns = [
        Finding("groups", "worst_group_accuracy", v, 9, 0, 1, {"column": c}) for c, v in (("a", 0.9), ("b", 0.4))
    ]
    made = verdict("worst_group_accuracy=0.5", *columns)
    assert (made["passed"], made["value"]) == (False, 0.4)


def test_a_gate_on_the_low_end_must_hold_in_every_column() -> None:
    """The column of the lowest value need not be that of the lowest end: a further column never rescues a gate."""
    site = Finding("groups", "worst_group_accuracy", 0.69, 200, 0.623, 0.765, {"column": "site"})
    ward = Finding("groups", "worst_group_accuracy", 0.695, 20, 0.359, 0.749, {"column": "ward"})
    for columns in ((ward,), (site, ward), (ward, site)):
        made = verdict("worst_group_accuracy=0.6", *columns, fail_on="low")
        assert (made["passed"], made["column"], made["value"], made["low"]) == (False, "ward", 0.695, 0.359)
        assert made["reason"] == "lower end of the interval 0.3590 is under 0.6 in column ward"
    assert verdict("worst_group_accuracy=0.6", site, ward)["passed"]
    bare = Finding("groups", "worst_group_accuracy", 0.9, 1, None, None, {"column": "bed"})
    assert (
        "no interval to fail on in column bed"
        in verdict("worst_group_accuracy=0.1", site, bare, fail_on="low")["reason"]
    )


def test_a_drop_is_judged_in_every_column() -> None:
    def worst(**columns: float) -> list[Finding]:
        return [
            Finding("groups", "worst_group_accuracy", v, 99, v - 0.1, v + 0.1, {"column": c})
            for c, v in columns.items()
        ]

    ours, base = worst(site=0.4, ward=0.7), worst(site=0.4, ward=0.9)
    made = judge(
        Gate("max-drop", "worst_group_accuracy", 0.1), ours, fail_on="value", states=MEASURED, base=base, against="b"
    )
    assert (made["passed"], made["value"]) == (False, pytest.approx(0.2))
    assert made["reason"] == "drop is 0.2000, more than 0.1 in column ward"


def test_attacks_count_what_withstands_them_and_only_where_they_can_be_trusted() -> None:
    where = {"radius": "8/255"}
    error = Finding("attacks", "robust_accuracy", 0.75, 100, 0.65, 0.83, where, evidence={"trusted": True})
    made = verdict("robust_accuracy@8/255=0.7", error)
    assert (made["passed"], made["value"]) == (True, 0.75)
    assert (made["low"], made["high"]) == pytest.approx((0.65, 0.83))
    doubtful = Finding("attacks", "robust_accuracy", 0.75, 100, 0.65, 0.83, where, evidence={"trusted": False})
    assert "trust checks" in verdict("robust_accuracy@8/255=0", doubtful)["reason"]


def test_a_drop_is_judged_by_the_paired_comparison_where_there_is_one() -> None:
    base = [Finding("accuracy", "accuracy", 0.92, 100, 0.85, 0.96)]
    lead = Finding("against", "lead", -0.02, 100, -0.03, 0.005, {"against": "base", "measure": "accuracy"})
    gate = Gate("max-drop", "accuracy", 0.02)
    made = judge(gate, [CLEAN, lead], fail_on="value", states=MEASURED, base=base, against="base")
    assert (made["passed"], made["value"], made["low"], made["high"]) == (True, 0.02, -0.005, 0.03)
    assert not judge(gate, [CLEAN, lead], fail_on="low", states=MEASURED, base=base, against="base")["passed"]


def test_binary_fractions_do_not_fail_a_gate() -> None:
    base = [Finding("groups", "worst_group_accuracy", 0.9, 100, 0.8, 0.95)]
    ours = [Finding("groups", "worst_group_accuracy", 0.89, 100, 0.8, 0.95)]
    assert 0.9 - 0.89 > 0.01
    gate = Gate("max-drop", "worst_group_accuracy", 0.01)
    assert judge(gate, ours, fail_on="value", states=MEASURED, base=base, against="b")["passed"]


def test_a_drop_against_what_was_not_measured_fails() -> None:
    made = judge(Gate("max-drop", "accuracy", 0.5), [CLEAN], fail_on="value", states=MEASURED, base=[], against="base")
    assert not made["passed"]
    assert "not measured on base" in made["reason"]


def test_the_interval_of_a_drop_is_that_of_variance_recovery() -> None:
    made = drop(Number(0.9, 0.85, 0.93, 100), Number(0.8, 0.7, 0.87, 50))
    assert made.value == pytest.approx(0.1)
    assert made.low == pytest.approx(0.1 - hypot(0.05, 0.07))
    assert made.high == pytest.approx(0.1 + hypot(0.03, 0.1))
    assert made.n == 50


@pytest.mark.parametrize(
    ("under", "most", "against", "message"),
    [
        (["acuracy=0.9"], [], False, "unknown gate 'acuracy'; did you mean 'accuracy'"),
        (["accuracy"], [], False, "takes NAME=NUMBER such as accuracy=0.9, got 'accuracy'"),
        (["accuracy=high"], [], False, "takes a share such as 0.9, got 'high'"),
        (["accuracy=90"], [], False, r"must be in \[0, 1\], got 90"),
        (["accuracy=nan"], [], False, r"must be in \[0, 1\], got nan"),
        ([], ["accuracy=0.1"], False, "name it with --against"),
        ([], ["atacks=0.1"], True, "unknown gate 'atacks'"),
    ],
)
def test_bad_gates_are_refused(under: list[str], most: list[str], against: bool, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        parse_gates(under, most, against=against)


def test_names_follow_the_checks() -> None:
    """What a gate may name is what the checks declare and will measure with their settings."""
    usual = gate_names(make_checks({}))
    assert {"accuracy", "worst_group_accuracy", "mean_corruption_accuracy", "mean_corruption_accuracy@2"} <= {*usual}
    assert [n for n in usual if n.startswith("robust")] == [f"robust_accuracy@{r}/255" for r in (2, 4, 8, 16)]
    assert {target_of(name).check for name in usual} <= {*CHECKS}
    told = make_checks({"attacks": {"radii": (0.5,), "norm": "l2"}, "ood": {"scores": ("msp",)}})
    assert [n for n in gate_names(told) if "@" in n] == [
        "mean_corruption_accuracy@2",
        "robust_accuracy@0.5",
        "ood_auroc@msp",
    ]
    with pytest.raises(HoldfastError, match="unknown gate 'robust_accuracy@8/255'; did you mean 'robust_accuracy@0.5'"):
        parse_gates({"robust_accuracy@8/255": 0.5}, {}, against=False, checks=told)
    (one,) = parse_gates(["mean-corruption-accuracy@1=0.5"], (), against=False)
    assert one.name == "mean_corruption_accuracy"


ECE = Finding("accuracy", "ece", 0.06, 100, 0.03, 0.09)
CAT = Finding("accuracy", "accuracy", 0.5, 20, 0.3, 0.7, {"class": "cat"})
NIGHT = Finding("groups", "group_accuracy", 0.6, 30, 0.4, 0.8, {"group": "night"})
CELL = Finding("groups", "group_accuracy", 0.2, 10, 0.1, 0.5, {"class": "cat", "group": "night"})


def over(word: str, *findings: Finding, fail_on: Any = "value") -> dict[str, Any]:
    (gate,) = parse_gates([], [], [word], against=False)
    return judge(gate, findings, fail_on=fail_on, states=MEASURED)


def test_a_calibration_error_must_not_be_over_its_gate() -> None:
    assert over("ece=0.06", ECE)["passed"]
    assert over("ece=0.05", ECE)["reason"] == "value 0.0600 is over 0.05"
    assert over("ece=0.05", ECE)["name"] == "ece <= 0.05"
    assert over("ece=0.08", ECE, fail_on="low")["reason"] == "upper end of the interval 0.0900 is over 0.08"
    assert over("nll=2.5", Finding("accuracy", "nll", 2.4, 9))["passed"], "not a share"


def test_of_what_should_be_low_a_drop_is_a_rise() -> None:
    base = [Finding("accuracy", "ece", 0.02, 100, 0.01, 0.04)]
    gate = Gate("max-drop", "ece", 0.03)
    made = judge(gate, [ECE], fail_on="value", states=MEASURED, base=base, against="b")
    assert (made["passed"], made["value"], made["name"]) == (False, pytest.approx(0.04), "ece at most 0.03 above b")
    assert (made["low"], made["high"]) == pytest.approx((0.04 - hypot(0.03, 0.02), 0.04 + hypot(0.03, 0.01)))
    assert judge(gate, base, fail_on="value", states=MEASURED, base=[ECE], against="b")["passed"]


def test_a_gate_on_a_class_or_group_judges_that_part_alone() -> None:
    found = (CLEAN, CAT, WORST, NIGHT, CELL, Finding("accuracy", "accuracy", 0.99, 9, 0, 1, {"group": "cat"}))
    for word, value in (
        ("class_accuracy:cat", 0.5),
        ("class-accuracy@cat", 0.5),
        ("group_accuracy:night", 0.6),
        ("group_accuracy:cat/night", 0.2),
        ("accuracy", 0.9),
    ):
        made = verdict(f"{word}={value}", *found)
        assert (made["passed"], made["value"]) == (True, value)
        assert not verdict(f"{word}={value + 0.01}", *found)["passed"]
    columns = [
        Finding("groups", "group_accuracy", v, 9, 0, 1, {"column": c, c: "night"}) for c, v in (("a", 0.9), ("b", 0.4))
    ]
    assert verdict("group_accuracy:night=0.5", *columns)["column"] == "b", "of several columns each"


def test_a_gate_may_be_called_as_tables_call_its_measure() -> None:
    for check in CHECKS.values():
        for measure in (m for m in check.measures if m.gate and not m.part):
            kind = "fail-over" if measure.better == "lower" else "fail-under"
            for name in (measure.name, measure.title, measure.title.upper()):
                given = {"fail-under": [], "max-drop": [], "fail-over": []} | {kind: {name: 0.5}}
                assert parse_gates(*given.values(), against=False) == (Gate(kind, measure.name, 0.5),)


@pytest.mark.parametrize(
    ("kind", "word", "message"),
    [
        ("under", "ece=0.05", "of ece, lower is better: use --fail-over ece=0.05"),
        ("over", "accuracy=0.9", "of accuracy, higher is better: use --fail-under accuracy=0.9"),
        (
            "under",
            "class_accuracy=0.5",
            "of many parts; say which: --fail-under class_accuracy:CLASS=0.7",
        ),
        ("under", "average_accuracy=0.5", "no gate can be set on average_accuracy; 'holdfast list measures' marks"),
        ("over", "calibration=0.5", "did you mean .*calibration error"),
        ("under", "worst_grup_accuracy=0.5", "did you mean 'worst_group_accuracy'"),
        ("over", "nll=-1", "nll must be >= 0 and finite, got -1"),
        ("over", "nll=inf", "nll must be >= 0 and finite, got inf"),
    ],
)
def test_a_near_miss_is_told_what_is_meant(kind: str, word: str, message: str) -> None:
    under, most = ([word], []) if kind == "under" else ([], [word])
    with pytest.raises(HoldfastError, match=message):
        parse_gates(under, [], most, against=False)
