"""Which runs belong together, and what is said of them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.arms import ALIGNED, AVERAGE, CONFLICTING, Spread, arms
from holdfast.reports.report_tables import method_table
from holdfast.reports.robustness_summary import arm_sentence, arms_verdict
from holdfast.types import Finding
from tests.reports.fake_runs import finding

Make = Callable[..., RunFiles]


def biased(average: float, aligned: float, conflicting: float, n: int = 10_000) -> list[Finding]:
    return [
        finding(average, n),
        finding(aligned, n, bias="aligned"),
        finding(conflicting, n, bias="conflicting"),
    ]


def test_runs_that_differ_only_in_seed_are_one_arm(runs: list[RunFiles]) -> None:
    grouped = arms(runs)
    assert [(arm.label, len(arm.runs)) for arm in grouped] == [("erm", 3), ("lff", 3)]


def test_order_of_keys_is_no_difference(make_run: Make) -> None:
    first, second = make_run("a", seed=0), make_run("b", seed=1)
    second = replace(second, settings=dict(reversed(second.settings.items())))
    assert len(arms([first, second])) == 1


def test_settings_that_change_no_number_do_not_tell_seeds_apart(make_run: Make) -> None:
    first, second = make_run("a", seed=0, workers=4), make_run("b", seed=1, workers=None, device="cuda")
    assert len(arms([first, second])) == 1
    assert len(arms([first, make_run("c", seed=1, lr=0.5)])) == 2


def test_a_repeated_seed_does_not_count_as_another(make_run: Make) -> None:
    grouped = arms([make_run("a", seed=0), make_run("b", seed=0), make_run("c", seed=1)])
    assert [[run.name for run in arm.runs] for arm in grouped] == [["a", "c"], ["b"]]
    assert [arm.label for arm in grouped] == ["erm · a", "erm · b"]


def test_mean_and_sample_deviation(runs: list[RunFiles]) -> None:
    for arm in arms(runs):
        for measure in (AVERAGE, ALIGNED, CONFLICTING):
            values = [f.value for run in arm.runs for f in run.findings if f.name == measure.name and not f.where]
            assert len(values) == 3
            spread = arm.spread(measure)
            assert spread is not None
            assert spread.mean == pytest.approx(statistics.mean(values), abs=1e-15)
            assert spread.sd == pytest.approx(statistics.stdev(values), abs=1e-15)
            assert (spread.low, spread.high) == pytest.approx(
                (statistics.mean(values) - statistics.stdev(values), statistics.mean(values) + statistics.stdev(values))
            )


def test_one_seed_keeps_its_own_interval_and_has_no_deviation() -> None:
    spread = Spread.of([Finding("accuracy", "accuracy", 0.5, 100, 0.4, 0.6)])
    assert (spread.mean, spread.sd, spread.low, spread.high, spread.n) == (0.5, None, 0.4, 0.6, 100)


def test_an_empty_part_has_no_mean_and_a_part_empty_in_one_seed_has_the_mean_of_the_others() -> None:
    empty = Finding("accuracy", "accuracy", None, 0)
    assert Spread.of([empty, empty]).mean is None
    assert Spread.of([empty, Finding("accuracy", "accuracy", 0.5, 9, 0.2, 0.8)]) == Spread((0.5,), 9, 0.2, 0.8)


def test_a_number_that_is_not_finite_is_not_averaged() -> None:
    spread = Spread.of([Finding("accuracy", "accuracy", v, 4) for v in (0.25, float("nan"), 0.75)])
    assert spread.values == (0.25, 0.75)


def test_one_run_never_counts_twice_and_other_checks_are_not_mixed_in(make_run: Make) -> None:
    attacked = Finding("attacks", "accuracy", 0.01, 600)
    run = make_run("a", findings=[attacked, finding(0.7, 600), finding(0.1, 600)])
    (arm,) = arms([run])
    spread = arm.spread(AVERAGE)
    assert spread is not None
    assert spread.values == (0.7,)


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ([{}, {"method": "lff", "lr": 0.1}], ["erm", "lff"]),
        ([{}, {"lr": 0.1}], ["erm · lr 0.05", "erm · lr 0.1"]),
        ([{}, {"ascent": "sam"}], ["erm", "erm · sam"]),
        ([{"data": "a"}, {"data": "b", "method": "lff"}], ["erm · a", "lff · b"]),
        (
            [{"method": {"name": "alps", "epsilon": e}} for e in (0.1, 0.2)],
            ["alps · method.epsilon 0.1", "alps · method.epsilon 0.2"],
        ),
    ],
)
def test_labels_tell_arms_apart(make_run: Make, changes: list[dict[str, object]], labels: list[str]) -> None:
    made = [make_run(f"run{i}", **{"method": "erm", **change}) for i, change in enumerate(changes)]
    assert [arm.label for arm in arms(made)] == labels


def test_bare_findings_are_named_after_the_run() -> None:
    bare = [RunFiles(name, findings=(finding(0.5, 10),)) for name in ("a", "b", "b")]
    assert [arm.label for arm in arms(bare)] == ["a", "b · b (1)", "b · b (2)"]


def test_seeds_that_are_not_measured_yet_are_not_counted(runs: list[RunFiles]) -> None:
    training = replace(runs[2], findings=())
    table = method_table(arms([*runs[:2], training]))
    assert [cell.text for cell in table.rows[0]][-1] == "2 of 3"


def test_a_drop_is_said_in_points(make_run: Make) -> None:
    (arm,) = arms([make_run("a", findings=biased(0.712, 0.981, 0.66))])
    assert arm_sentence(arm) == (
        "erm: 71.2 % clean accuracy, 98.1 % bias-aligned, 66.0 % bias-conflicting: "
        "drops 32.1 points on bias-conflicting samples"
    )
    assert arms_verdict([arm]) == arm_sentence(arm)


@pytest.mark.parametrize(
    ("aligned", "conflicting", "n", "words"),
    [
        (0.90, 0.89, 100, "no clear drop on bias-conflicting"),
        (0.90, 0.89, 1_000_000, "drops 1.0 points on bias"),
        (0.80, 0.90, 10_000, "gains 10.0 points on bias"),
    ],
)
def test_a_drop_must_be_clear(make_run: Make, aligned: float, conflicting: float, n: int, words: str) -> None:
    (arm,) = arms([make_run("a", findings=biased(0.85, aligned, conflicting, n))])
    assert words in arm_sentence(arm)


def test_without_a_bias_the_weakest_part_is_named(make_run: Make) -> None:
    parts = [finding(v, 50, class_=c) for c, v in (("cat", 0.9), ("dog", 0.4), ("eel", 0.8))]
    (arm,) = arms([make_run("a", findings=[finding(0.7, 150), finding(None, 0, class_="fox"), *parts])])
    assert arm_sentence(arm) == "erm: 70.0 % clean accuracy; lowest of 3 classes: dog, 40.0 % of 50 images"
    level = [finding(1.0, 50, class_=c) for c in ("cat", "dog")]
    (arm,) = arms([make_run("b", findings=[finding(1.0, 100), *level])])
    assert arm_sentence(arm) == "erm: 100.0 % clean accuracy"


def test_a_clear_lead_and_a_level_pair(make_run: Make) -> None:
    erm = make_run("a", findings=biased(0.7, 0.98, 0.60))
    lff = make_run("b", "lff", findings=biased(0.8, 0.95, 0.75))
    jtt = make_run("c", "jtt", findings=biased(0.8, 0.95, 0.752))
    assert arms_verdict(arms([erm, lff])) == ("lff is ahead on bias-conflicting samples: 75.0 %, 15.0 points above erm")
    assert arms_verdict(arms([erm, lff, jtt])).startswith("jtt and lff do not clearly differ on bias-conflicting")


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_methods_that_are_equally_good_are_seldom_called_ahead(seeds: int) -> None:
    """The first sentence names a winner of two equal methods in about 5 % of comparisons, whatever the seeds."""
    draw, runs = random.Random(0), 1000
    ahead = sum(
        Spread(tuple(draw.gauss(0.7, 0.02) for _ in range(seeds)), 500).differs(
            Spread(tuple(draw.gauss(0.7, 0.02) for _ in range(seeds)), 500)
        )
        for _ in range(runs)
    )
    assert ahead / runs < 0.065
    assert Spread((0.9,) * seeds, 500).differs(Spread((0.7,) * seeds, 500))
    assert not Spread((0.7,) * seeds, 500).differs(Spread((0.7,) * seeds, 500))


def test_a_run_without_findings_says_how_far_it_got(make_run: Make) -> None:
    (arm,) = arms([replace(make_run("a"), findings=())])
    assert arm_sentence(arm).startswith("erm: nothing measured yet; trained to epoch 30, ")


def test_numbers_on_different_data_are_not_ranked(make_run: Make) -> None:
    groups = arms([make_run("a", data="digits"), make_run("b", "lff", data="cifar10")])
    assert arms_verdict(groups).startswith("2 models on 2 data sets; ")
    assert not [cell for row in method_table(groups).rows for cell in row if cell.strong]


def test_the_best_of_a_column_is_marked(runs: list[RunFiles]) -> None:
    erm, lff = method_table(arms(runs)).rows
    assert [cell.strong for cell in erm] == [False, False, True, False, False, False]
    assert [cell.strong for cell in lff] == [False, True, False, True, True, False]
