"""What each section shows, and when it stays away."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.reports import RunFiles
from holdfast.reports.blocks import Chart, Gallery, Section, Side, Table
from holdfast.reports.sections import SECTIONS, sections
from holdfast.reports.sections.accuracy import accuracy as clean
from holdfast.reports.sections.runs import comparison, samples, settings
from holdfast.reports.sections.training import curves, track
from holdfast.types import Finding
from tests.reports.fake_runs import finding, png

Make = Callable[..., RunFiles]


def charts(section: Section | None) -> dict[str, Chart]:
    assert section is not None
    inner = [b for block in section.blocks for b in (block.blocks if isinstance(block, Side) else (block,))]
    return {b.title: b for b in inner if isinstance(b, Chart)}


def with_metrics(*records: Mapping[str, Any], **settings: Any) -> RunFiles:
    return RunFiles("run", settings=settings, metrics=tuple(records))


def pictured(*pictures: Mapping[str, Any]) -> RunFiles:
    return RunFiles("run", findings=(Finding("accuracy", "samples", None, 3, evidence={"pictures": list(pictures)}),))


def gallery(run: RunFiles) -> Gallery:
    section = samples([run])
    assert section is not None
    (block,) = section.blocks
    assert isinstance(block, Gallery)
    return block


def test_nothing_to_say_is_no_section() -> None:
    assert [SECTIONS[name].made([RunFiles("bare")]) for name in SECTIONS] == [None] * len(SECTIONS)


def test_ids_are_words_and_unique(runs: list[RunFiles]) -> None:
    ids = [section.id for section in sections(runs)]
    assert len(ids) == len(set(ids))
    assert ids == [
        "comparison",
        "accuracy",
        "training",
        "samples",
        "settings",
        "glossary",
    ]  # what these runs have something on
    assert all(id.isalpha() for id in ids)


def test_one_run_is_not_compared(runs: list[RunFiles]) -> None:
    assert comparison(runs[:1]) is None
    assert comparison(runs[:2]) is not None


def test_only_measures_that_exist_are_columns(make_run: Make) -> None:
    section = comparison([make_run(m, m, findings=[finding(0.5, 10)]) for m in ("erm", "lff")])
    assert section is not None
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert [column.title for column in table.columns] == ["method", "clean accuracy, %", "seeds"]


def test_many_classes_show_the_weakest_and_say_so(make_run: Make) -> None:
    found = [finding(i / 1000, 50, class_=f"c{i}") for i in range(999, -1, -1)]
    chart = charts(clean([make_run("a", findings=[finding(0.5, 50_000), *found])]))["By class"]
    assert "The 20 weakest of 1000" in chart.note
    assert ">c0<" in chart.svg
    assert ">c19<" in chart.svg
    assert ">c20<" not in chart.svg


def test_a_lone_run_has_all_splits_in_one_chart(runs: list[RunFiles]) -> None:
    assert list(charts(curves(runs[:1]))) == ["Loss", "Accuracy, %"]
    assert ">train</text>" in charts(curves(runs[:1]))["Loss"].svg


def test_several_methods_have_a_chart_a_split_with_thin_lines_for_seeds(runs: list[RunFiles]) -> None:
    made = charts(curves(runs))
    assert list(made) == [
        "Loss on the training set", "Loss on the test set",
        "Accuracy on the training set, %", "Accuracy on the test set, %",
    ]  # fmt: skip
    svg = made["Accuracy on the test set, %"].svg
    assert svg.count('class="line s0 thin"') == svg.count('class="line s1 thin"') == 3
    assert svg.count('class="line s0"') == svg.count('class="line s1"') == 1
    last = [run.metrics[-1]["test_accuracy"] for run in runs[:3]]
    assert f"erm ends at {statistics.fmean(last) * 100:.1f}" in svg


def test_bias_aligned_and_bias_conflicting_images_have_curves_of_their_own() -> None:
    both = {"test_bias_aligned_accuracy": 0.9, "test_bias_conflicting_accuracy": 0.25}
    erm = with_metrics({"epoch": 1, "test_accuracy": 0.5} | both, seed=0, method="erm")
    lff = with_metrics({"epoch": 1, "test_accuracy": 0.6} | both, seed=0, method="lff")
    alone = charts(curves([erm]))
    assert list(alone) == ["Accuracy, %"]
    assert "test, conflicting ends at 25.0" in alone["Accuracy, %"].svg
    made = charts(curves([erm, lff]))
    assert list(made) == [
        "Accuracy on the test set, %", "Accuracy on bias-aligned images of the test set, %",
        "Accuracy on bias-conflicting images of the test set, %",
    ]  # fmt: skip
    assert "lff ends at 90.0" in made["Accuracy on bias-aligned images of the test set, %"].svg


def test_the_mean_ends_where_the_first_seed_ends() -> None:
    long = with_metrics(*({"epoch": e, "train_loss": 1.0 * e} for e in (1, 2, 3)), seed=0, method="erm")
    short = with_metrics({"epoch": 1, "train_loss": 3.0}, {"epoch": 2, "train_loss": 4.0}, seed=1, method="erm")
    assert "train ends at 3" in charts(curves([long, short]))["Loss"].svg


def test_a_repeated_epoch_counts_once_as_it_ended() -> None:
    values = track(
        with_metrics(*({"epoch": e, "train_loss": v} for e, v in ((1, 5.0), (2, 4.0), (2, 3.0)))), "train_loss"
    )
    assert values == {(0, 1.0): 5.0, (0, 2.0): 3.0}


@pytest.mark.parametrize("second", [(1, 2), (3, 4)], ids=["counted anew", "counted on"])
def test_stages_follow_each_other(second: tuple[int, int]) -> None:
    records = [{"stage": 0, "epoch": 1, "train_loss": 4.0}, {"stage": 0, "epoch": 2, "train_loss": 3.0}]
    records += [{"stage": 1, "epoch": e, "train_loss": 2.0} for e in second]
    run = with_metrics(*records)
    assert list(track(run, "train_loss")) == [(0, 1.0), (0, 2.0), (1, 3.0), (1, 4.0)]
    section = curves([run])
    assert section is not None
    assert "new stage" in section.lead
    assert charts(section)["Loss"].svg.count('class="line s0"') == 2


def test_values_that_are_not_finite_are_not_drawn() -> None:
    run = with_metrics(
        {"epoch": 1, "train_loss": 2.0}, {"epoch": 2, "train_loss": float("nan")}, {"epoch": 3, "train_loss": None}
    )
    assert track(run, "train_loss") == {(0, 1.0): 2.0}
    assert "nan" not in charts(curves([run]))["Loss"].svg


@pytest.mark.parametrize(("last", "log"), [(1.0, False), (0.01, True), (0.0, False)])
def test_a_loss_over_decades_is_logarithmic(last: float, log: bool) -> None:
    run = with_metrics({"epoch": 1, "train_loss": 2.0}, {"epoch": 2, "train_loss": last})
    assert ("Loss, logarithmic" in charts(curves([run]))) is log


def test_pictures_say_in_words_what_went_wrong() -> None:
    wrong = {"png": png("7", (9, 9, 9)), "label": "7", "prediction": "3", "confidence": 0.912, "group": None}
    right = {**wrong, "prediction": "7", "group": "red", "source": "a/b.png"}
    first, second = gallery(pictured(wrong, right)).pictures
    assert (first.title, first.detail, first.wrong) == ("7 → 3", "91.2 % sure", True)
    assert first.alt == "7, taken for 3; 91.2 % sure"
    assert (second.title, second.detail, second.wrong) == ("7", "91.2 % sure, group red", False)
    assert second.alt == "7, recognised; 91.2 % sure; group red; a/b.png"


@pytest.mark.parametrize("bad", ["", "not base64!", base64.b64encode(b"<svg onload=x>").decode(), '"><script>'])
def test_what_is_no_png_is_left_out_and_counted(bad: str) -> None:
    shown = gallery(pictured({"png": bad}, {"png": png("1", (9, 9, 9)), "label": "1", "prediction": "1"}))
    assert len(shown.pictures) == 1
    assert shown.note == "1 could not be read."


def test_pictures_beyond_the_most_are_counted() -> None:
    one = {"png": png("1", (9, 9, 9)), "label": "1", "prediction": "2"}
    assert gallery(pictured(*[one] * 30)).note == "6 more in findings.json of run."


def test_settings_that_differ_are_told_apart_from_those_that_do_not(runs: list[RunFiles]) -> None:
    section = settings(runs)
    assert section is not None
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert [column.title for column in table.columns] == ["run", "method", "seed"]
    assert [[cell.text for cell in row] for row in table.rows[2:4]] == [["erm-2", "erm", "2"], ["lff-0", "lff", "0"]]


def test_a_setting_that_one_run_lacks_differs(runs: list[RunFiles]) -> None:
    section = settings([runs[0], replace(runs[0], settings={**runs[0].settings, "ascent": None})])
    assert section is not None
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert [[cell.text for cell in row] for row in table.rows] == [["erm-0", ""], ["erm-0", "none"]]


def test_a_method_has_one_colour_in_all_charts(runs: list[RunFiles]) -> None:
    unmeasured = replace(runs[0], findings=())
    third = replace(runs[3], name="jtt-0", settings={**runs[3].settings, "method": "jtt"})
    untrained = replace(third, metrics=())
    given = [unmeasured, untrained, runs[3]]
    bars = charts(clean(given))["Overall"]
    assert bars.legend == ((1, "jtt"), (2, "lff"))
    assert "not measured" not in bars.svg
    svg = charts(curves(given))["Loss on the training set"].svg
    assert ('class="name s0"' in svg, 'class="name s1"' in svg, 'class="name s2"' in svg) == (True, False, True)


def test_long_names_go_to_a_legend(make_run: Make) -> None:
    made = charts(curves([make_run(name, name) for name in ("erm", "a-method-with-a-very-long-name")]))
    chart = made["Loss on the training set"]
    assert chart.legend == ((0, "erm"), (1, "a-method-with-a-very-long-name"))
    assert 'class="name' not in chart.svg
