"""The chapter on sensitivity: which arms form a sweep, where points, whiskers and the dashed line stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.arms import AVERAGE, CONFLICTING, arms
from holdfast.reports.blocks import Chart, Side, Table
from holdfast.reports.report_tables import against, baseline_of, by_seed, difference, paired_table
from holdfast.reports.sections.sensitivity import sensitivity, sweeps
from tests.reports.fake_runs import finding

Make = Callable[..., RunFiles]


def measured(make_run: Make, name: str, method: Any, seed: int, average: float, conflicting: float) -> RunFiles:
    found = [finding(average, 600), finding(conflicting, 450, bias="conflicting")]
    return make_run(f"{name}-{seed}", method, seed, findings=found)


def marked(run: RunFiles) -> RunFiles:
    return replace(run, model={**run.model, "role": "baseline"})


@pytest.fixture
def one_at_a_time(make_run: Make) -> list[RunFiles]:
    """lff as the baseline; lam over three values at radius 0.3, and one other radius at lam 0.5."""
    runs = []
    for seed, shift in enumerate((0.0, 0.02, 0.06)):
        runs.append(marked(measured(make_run, "lff", "lff", seed, 0.60 + shift, 0.50)))
        for lam in (1.0, 0.25, 0.5):
            method = {"name": "lff+biasadv", "lam": lam, "radius": 0.3}
            runs.append(measured(make_run, f"lam{lam}", method, seed, 0.70 + shift, 0.60 + lam / 10 + shift))
        method = {"name": "lff+biasadv", "lam": 0.5, "radius": 0.9}
        runs.append(measured(make_run, "radius0.9", method, seed, 0.65, 0.55))
    return runs


def charts_of(runs: list[RunFiles]) -> dict[str, Chart]:
    section = sensitivity(runs)
    assert section is not None
    side = section.blocks[0]
    assert isinstance(side, Side)
    return {chart.title: chart for chart in side.blocks if isinstance(chart, Chart)}


def test_a_sweep_holds_the_arms_that_differ_in_one_setting_alone_in_its_order(one_at_a_time: list[RunFiles]) -> None:
    found = {family[0].key: [v for v, _ in family[0].points] for family in sweeps(arms(one_at_a_time))}
    assert found == {"method.lam": [0.25, 0.5, 1.0], "method.radius": [0.3, 0.9]}
    assert all(len(family) == 1 for family in sweeps(arms(one_at_a_time)))


def test_the_chart_says_mean_and_deviation_of_every_value_and_the_baseline(one_at_a_time: list[RunFiles]) -> None:
    chart = charts_of(one_at_a_time)["lff+biasadv: method.lam, %"]
    assert [name for _, name in chart.legend] == ["clean accuracy", "bias-conflicting"]
    conflicting = [0.60 + 0.1 + shift for shift in (0.0, 0.02, 0.06)]
    text = f"{100 * fmean(conflicting):.1f} ± {100 * stdev(conflicting):.1f} %"
    assert f"bias-conflicting, method.lam 1.0: {text}" in chart.svg
    baseline = [0.60, 0.62, 0.66]
    assert f"lff, clean accuracy: {100 * fmean(baseline):.1f} ± {100 * stdev(baseline):.1f} %" in chart.svg
    assert chart.svg.count("dashed") == 2  # one a measure


def test_points_and_whiskers_are_drawn_to_scale(one_at_a_time: list[RunFiles]) -> None:
    """The axis marks of the picture itself give the scale that its points are read with."""
    svg = str(charts_of(one_at_a_time)["lff+biasadv: method.lam, %"].svg)
    ticks = [(float(t), float(y) - 4) for y, t in re.findall(r'class="tick" x="36" y="([\d.]+)"[^>]*>([\d.]+)<', svg)]
    (first, y_first), (last, y_last) = ticks[0], ticks[-1]
    assert last > first
    assert y_last < y_first

    def shown(y: float) -> float:
        return first + (y - y_first) / (y_last - y_first) * (last - first)

    conflicting = [100 * (0.60 + 0.1 + shift) for shift in (0.0, 0.02, 0.06)]
    group = next(g for g in re.findall(r"<g>.*?</g>", svg) if "bias-conflicting, method.lam 1.0" in g)
    centre = re.search(r'cy="([\d.]+)"', group)
    ends = re.search(r'class="whisker" d="M[\d.]+ ([\d.]+)V([\d.]+)', group)
    assert centre is not None
    assert ends is not None
    assert shown(float(centre[1])) == pytest.approx(fmean(conflicting), abs=0.05)
    assert shown(float(ends[1])) == pytest.approx(fmean(conflicting) - stdev(conflicting), abs=0.05)
    assert shown(float(ends[2])) == pytest.approx(fmean(conflicting) + stdev(conflicting), abs=0.05)
    dashed = re.search(r"lff, bias-conflicting.*?<path class=\"line dashed s1\" d=\"M[\d.]+ ([\d.]+)H", svg)
    assert dashed is not None
    assert shown(float(dashed[1])) == pytest.approx(50.0, abs=0.05)


def test_a_grid_gives_one_line_for_each_value_of_the_other_setting(make_run: Make) -> None:
    runs = [
        measured(make_run, f"{first}-{up}", {"name": "jtt", "first_epochs": first, "up": up}, 0, 0.7, 0.5)
        for first in (10, 2)
        for up in (50, 20, 5)
    ]
    charts = charts_of(runs)
    measures = ("clean accuracy", "bias-conflicting")
    assert set(charts) == {f"jtt: method.{key}, {name}, %" for key in ("first_epochs", "up") for name in measures}
    up, first = (charts[f"jtt: method.{key}, clean accuracy, %"] for key in ("up", "first_epochs"))
    assert [name for _, name in up.legend] == ["first_epochs 2", "first_epochs 10"]
    assert [name for _, name in first.legend] == ["up 5", "up 20", "up 50"]
    assert "dashed" not in up.svg  # no baseline was named
    assert "whisker" not in up.svg  # one seed has no deviation


def test_words_are_not_joined_by_a_line(make_run: Make) -> None:
    runs = [
        measured(make_run, norm, {"name": "lff+biasadv", "norm": norm}, 0, 0.7 + i / 10, 0.5)
        for i, norm in enumerate(("l2", "linf"))
    ]
    svg = charts_of(runs)["lff+biasadv: method.norm, %"].svg
    assert "<circle" in svg
    assert 'class="line' not in svg


def test_methods_alone_get_the_paired_table_only_with_a_baseline(make_run: Make) -> None:
    runs = [measured(make_run, name, name, seed, 0.6, 0.5) for name in ("erm", "lff") for seed in (0, 1)]
    assert sensitivity(runs) is None
    section = sensitivity([marked(run) if run.settings["method"] == "erm" else run for run in runs])
    assert section is not None
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows] == ["erm (baseline)", "lff"]


def test_the_interval_is_that_of_the_paired_t_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    own, other = [0.71, 0.68, 0.80, 0.74], [0.60, 0.66, 0.69, 0.70]
    expected = stats.ttest_rel(own, other)
    low, high = expected.confidence_interval(0.95)
    found = difference(own, other)
    assert (found.value, found.low, found.high) == pytest.approx((fmean(own) - fmean(other), low, high), abs=1e-12)
    assert difference([0.7], [0.6]).low is None


def test_no_interval_is_of_differences_that_two_shares_cannot_have() -> None:
    """Two seeds: t with one degree of freedom reaches 12.7062 × 0.02 to both sides of 0.97."""
    gain, loss = difference([0.95, 0.99], [0.0, 0.0]), difference([0.0, 0.0], [0.95, 0.99])
    assert (gain.low, gain.high) == (pytest.approx(0.97 - 12.7062 * 0.02, abs=1e-5), 1.0)
    assert (loss.low, loss.high) == (-1.0, pytest.approx(12.7062 * 0.02 - 0.97, abs=1e-5))


def test_differences_that_do_not_vary_have_no_interval() -> None:
    """Two seeds that happen to agree say nothing of how far others would be apart; 0.5 - 0.3 is not 0.6 - 0.4."""
    assert 0.5 - 0.3 != 0.6 - 0.4
    for own, other, text in (([0.5, 0.6], [0.3, 0.4], "+20.0"), ([0.7] * 3, [0.7] * 3, "+0.0")):
        found = difference(own, other)
        assert (found.low, found.high, found.n) == (None, None, len(own))
        assert str(found) == text


def test_seeds_are_paired_by_their_number_not_by_their_order(make_run: Make) -> None:
    values = {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.1}
    erm = [marked(measured(make_run, "erm", "erm", seed, values[seed], 0.5)) for seed in (3, 0, 1, 2)]
    lff = [measured(make_run, "lff", "lff", seed, values[seed] + 0.1, 0.5) for seed in (2, 1, 0)]
    groups = arms([*erm, *lff])
    baseline = baseline_of(groups)
    assert baseline is not None
    gap = against(groups[1], baseline, AVERAGE)
    assert gap is not None
    assert gap.n == 3  # seed 3 has no partner
    assert gap.value == pytest.approx(0.1)
    assert gap.low is None, "all pairs differ by the same, as no other pairing would"
    assert by_seed(groups[1], CONFLICTING) == {"2": 0.5, "1": 0.5, "0": 0.5}
    assert "+10.0" in [cell.text for cell in paired_table(groups, baseline).rows[1]]


def test_numbers_on_different_sets_are_not_compared(make_run: Make) -> None:
    runs = [
        marked(measured(make_run, "here", "erm", 0, 0.6, 0.5)),
        make_run("there", "erm", 0, data="digits", findings=[finding(0.9, 600)]),
    ]
    groups = arms(runs)
    assert against(groups[1], groups[0], AVERAGE) is None
    assert "dashed" not in charts_of(runs)["erm: data, %"].svg
