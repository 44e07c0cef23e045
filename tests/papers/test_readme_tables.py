"""READMEs and figures say what is recorded: every table, every number in the text, every curve."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from evidence import PAPERS, write_rows
from figures import drawn, figures
from readme_tables import MARKED, Table, filled, mean_interval, pages, trained_lines


@pytest.mark.parametrize("page", pages(), ids=lambda page: "/".join(page.parts[-2:]))
def test_the_tables_of_a_page_are_what_was_measured(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == filled(page)


def test_every_paper_with_tables_shows_them() -> None:
    assert {path.parent / "README.md" for path in PAPERS.glob("*/tables.yaml")} <= set(pages())


@pytest.mark.parametrize("path", [path for path, _ in figures()], ids=lambda path: "/".join(path.parts[-3:]))
def test_figures_are_drawn_from_what_was_measured_and_shown(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == dict(figures())[path]
    assert f"](figures/{path.name})" in (path.parents[1] / "README.md").read_text(encoding="utf-8")


def test_a_figure_has_the_mean_of_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [{"1": 0.25, "2": 0.5, "3": 0.5}, {"1": 0.75, "3": 0.7}]
    rows = [
        {"cell": "a", "seed": seed, "flags": {}, "curves": {"test_accuracy": own}} for seed, own in enumerate(curves)
    ]
    monkeypatch.setattr("evidence.PAPERS", tmp_path)
    write_rows(tmp_path / "mine/results/one.json", rows)
    spec = {"study": "one", "curve": "test_accuracy", "title": "Accuracy, %", "rows": {"a": "mine"}}
    svg = drawn("mine", "accuracy", spec)
    assert "mine ends at 60.0" in svg
    assert svg.count('class="line s0 thin"') == 2
    assert drawn("mine", "accuracy", spec | {"from": 0.55}).count('class="line s0 thin"') == 1, "one is below"


NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)")
FROM_ELSEWHERE = {
    "alps": {"0.75": "the paper's range of the mode", "0.5": "the paper's range of the radius"},
    "biasadv": {
        "57.8": "BiasAdv as published, 57.78", "56.3": "DeNetDM as published", "44.2": "DeNetDM as published",
        "38.9": "DeNetDM as published, 38.93",
        "8.3": "papers/composition", "17.6": "the same",
    },
    "friendly-sam": {
        "0.05": "the learning rate", "4.5": "minutes of a training", "3.31": "seconds of an epoch", "1.69": "the same",
        "1.36": "the same", "2.11": "the same", "4.68": "the same", "1.35": "a ratio of them",
        "1.44": "a ratio of them", "0.17": "the difference of two published figures",
    },
    "composition": {
        "0.006": "papers/vae-report", "0.0005": "the same", "0.0108": "the same", "89.4": "papers/biasadv",
        "8.4": "the same", "3.2": "the same", "13.5": "the same", "2.2": "the same", "1.1": "the same",
        "3.4": "the same",
    },
}  # fmt: skip


def readings(paper: str) -> Iterator[float]:
    """Numbers of the first runs, which have files of another form, and means over their seeds."""
    for path in (PAPERS / paper / "results").glob("readings_*.json"):
        runs = json.loads(path.read_bytes())["figures"]
        keys = [key for key, value in runs[0].items() if isinstance(value, float)]
        for name, key in product({run["reading"] for run in runs}, keys):
            values = [run[key] for run in runs if run["reading"] == name]
            yield from (*values, fmean(values))


@pytest.mark.parametrize("paper", FROM_ELSEWHERE)
def test_numbers_in_the_text_stand_in_a_table_of_the_page(paper: str) -> None:
    """Or round one of them, or are settings of a study: what is measured again changes them together. Tables of
    readings are held to their files by tests/test_docs_numbers.py."""
    page = (PAPERS / paper / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", MARKED.sub("", page), flags=re.DOTALL)
    tables = "".join(found[0] for found in MARKED.finditer(page))
    studies = "".join(path.read_text(encoding="utf-8") for path in (PAPERS / paper).glob("*.yaml"))
    known = [*map(float, NUMBER.findall(tables + studies)), *(100 * value for value in readings(paper))]

    def stands(number: str) -> bool:
        digits = len(number.partition(".")[2])
        return any(f"{value:.{digits}f}" == number for value in known)

    assert not {number for number in NUMBER.findall(prose) if not stands(number)} - FROM_ELSEWHERE[paper].keys()


def test_a_table_has_means_deviations_and_paired_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": [0.50, 0.52, 0.57], "b": [0.40, 0.44, 0.45]}
    rows = [
        {"cell": cell, "seed": seed, "flags": {}, "measures": {"accuracy": [value, value - 0.01, value + 0.01, 99]}}
        for cell, own in values.items()
        for seed, value in enumerate(own)
    ]
    rows.append({"cell": "a", "seed": 0, "flags": {"conflict": "0.01"}, "measures": {"accuracy": [0.9, 0, 1, 9]}})
    monkeypatch.setattr("evidence.PAPERS", tmp_path)
    write_rows(tmp_path / "mine/results/one.json", rows)
    shown: dict[str, Any] = {"study": "one", "head": "cell", "columns": {"accuracy": "accuracy"}, "baseline": "b"}
    lines = Table("mine", {**shown, "rows": {"a": None, "b": None, "c": None}}).lines()
    # differences 10, 8 and 12 points: sd 2, t(0.975, 2) = 4.303
    assert lines[2:] == [
        "| `a` | 53.0 ± 3.6 | 3 | 10.0 (5.0 to 15.0) |",
        "| `b` | 43.0 ± 2.6 | 3 |  |",
        "",
        "Not run yet: `c`.",
    ]
    errors = {"kind": "seeds", "study": "one", "head": "cell", "measure": "accuracy", "error": True, "seeds": [0]}
    assert Table("mine", {**errors, "rows": {"a": {"paper": 6.1}}}).lines()[2] == (
        "| `a` | 50.0 (49.0 to 51.0) | 47.0 ± 3.6 | 3 | 6.1 |"
    )
    assert mean_interval([8, 10, 12])[1:] == pytest.approx((10 - 4.3027 * 2 / 3**0.5, 10 + 4.3027 * 2 / 3**0.5), 1e-4)


def test_a_table_of_cells_that_differ_in_two_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a, 1 %": [0.50, 0.60], "b, 1 %": [0.40, 0.55, 0.10], "a, 5 %": [0.7]}
    rows = [
        {"cell": cell, "seed": seed, "flags": {}, "measures": {"accuracy": [value, None, None, 9]}}
        for cell, own in values.items()
        for seed, value in enumerate(own)
    ]
    monkeypatch.setattr("evidence.PAPERS", tmp_path)
    write_rows(tmp_path / "mine/results/one.json", rows)
    spec: dict[str, Any] = {"kind": "grid", "study": "one", "head": "share", "measure": "accuracy"}
    columns = {"A": "a, {}", "A − B": ["a, {}", "b, {}"]}
    assert Table("mine", spec | {"columns": columns, "rows": {"1 %": None, "5 %": None}}).lines() == [
        "| share | A | A − B | n |",
        "| --- | --- | --- | --- |",
        "| 1 % | 55.0 ± 7.1 | 7.5 (−24.3 to 39.3) | 2 |",  # 10 and 5 points: half of 12.706 × 5 / 2 = 31.8 each way
        "| 5 % | 70.0 | – | 0 |",
    ]


def test_an_overview_has_differences_from_several_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"one": {"a": [0.50, 0.60], "b": [0.40, 0.55]}, "two": {"a": [0.5], "b": [0.7]}}
    monkeypatch.setattr("evidence.PAPERS", tmp_path)
    for study, cells in values.items():
        rows = [
            {"cell": cell, "seed": seed, "flags": flags, "measures": {"accuracy": [value + more, None, None, 9]}}
            for cell, own in cells.items()
            for seed, value in enumerate(own)
            for flags, more in (({}, 0.0), ({"lr": "0.5"}, 0.1 * (cell == "a")))
        ]
        write_rows(tmp_path / f"mine/results/{study}.json", rows)
    spec: dict[str, Any] = {"kind": "overview", "head": "base", "measure": "accuracy", "digits": 1}
    columns = {"first": "one", "second": "two", "faster": {"study": "two", "flags": {"lr": 0.5}}, "paper": ""}
    both = ["a", "b"]
    rows_of = {"A": {"first": both, "second": both, "faster": both, "paper": "2.5"}, "B": {"first": ["b", "a"]}}
    assert Table("mine", spec | {"columns": columns, "rows": rows_of}).lines() == [
        "| base | first | second | faster | paper |",
        "| --- | --- | --- | --- | --- |",
        "| A | 7.5 (−24.3 to 39.3), 2 seeds | −20.0, one seed | −10.0, one seed | 2.5 |",
        "| B | −7.5 (−39.3 to 24.3), 2 seeds | – | – | – |",
    ]


def test_a_table_reads_curves_and_says_in_a_line_that_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = {
        "a": [{"10": 0.5, "20": 0.7, "30": 0.9}, {"10": 0.4, "20": 0.5, "30": 0.9}],
        "b": [{"10": 0.4, "20": 0.6}],
    }
    rows = [
        {"cell": cell, "seed": seed, "flags": {}, "measures": {}, "curves": {"test_accuracy": own}}
        for cell, each in curves.items()
        for seed, own in enumerate(each)
    ]
    monkeypatch.setattr("evidence.PAPERS", tmp_path)
    write_rows(tmp_path / "mine/results/one.json", rows)
    measures = {"early": "test_accuracy, epochs 10 to 20", "at 20": "test_accuracy, epoch 20"}
    spec: dict[str, Any] = {"kind": "differences", "study": "one", "pairs": [["a", "b"]], "measures": measures}
    assert Table("mine", spec).lines()[2:] == [
        "| `a` − `b`, early | 10.0 | 10.0, one seed | 1 |",  # 60 − 50
        "| `a` − `b`, at 20 | 10.0 | 10.0, one seed | 1 |",  # 70 − 60
    ]
    columns = {"early": "test_accuracy, epochs 10 to 20"}
    shown = {"study": "one", "head": "cell", "columns": columns, "rows": {"a": None}}
    assert Table("mine", shown).lines()[2] == "| `a` | 52.5 ± 10.6 | 2 |"  # of 60 and 45
    assert Table("mine", shown | {"only_seeds": [0]}).lines()[2] == "| `a` | 60.0 | 1 |"
    assert Table("mine", shown | {"study": "two"}).lines() == ["Not run yet: 1 row of `two.yaml`."]
    pairs = [["a", "b"], ["a", "c"]]
    assert Table("mine", spec | {"pairs": pairs, "measures": {"early": measures["early"]}}).lines()[3:] == [
        "",
        "Not run yet: `a` − `c`, early.",
    ]
    both = {"at 20": measures["at 20"], "at 30": "test_accuracy, epoch 30"}
    uneven = Table("mine", shown | {"columns": both, "rows": {"a": None}, "only_seeds": [0, 1]})
    del uneven.rows[1]["curves"]["test_accuracy"]["30"]
    assert uneven.lines()[2] == "| `a` | 60.0 ± 14.1 | 90.0 | 1 to 2 |"


def test_what_a_papers_studies_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("readme_tables.PAPERS", tmp_path)
    audits = {"attacks": {"seconds": 300.0}}
    gpu = {"hardware": "NVIDIA H200", "seconds": 600.0, "trainings_at_once": 5, "audits": audits}
    cpu = {"hardware": "x86_64, 2 cores", "seconds": 120.0}
    write_rows(tmp_path / "mine/results/one.json", [gpu, gpu, cpu])
    assert trained_lines("mine")[2:] == ["| `one` | 2 | NVIDIA H200 | 4 | 2 |", "| `one` | 1 | CPU | at most 2 | 0 |"]
    later = {"attacks": {"seconds": 300.0, "of_another_training": {}}}  # beside how many others, nobody noted
    write_rows(tmp_path / "mine/results/one.json", [gpu | {"audits": later}])
    assert trained_lines("mine")[2:] == ["| `one` | 1 | NVIDIA H200 | 2 | at most 5 |"]


def test_a_table_of_one_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("readme_tables.PAPERS", tmp_path)
    figures = {
        "easy": {"a": {"right": 0.5}, "b": {"right": 0.25}},
        "hard": {"a": {"right": [0.1, 0.3]}, "b": {"right": [0]}},
    }
    (tmp_path / "mine/results").mkdir(parents=True)
    (tmp_path / "mine/results/one.json").write_text(json.dumps({"figures": figures}))
    columns = {"easy": ("easy", "right"), "hard": ("hard", "right")}
    spec = {"kind": "recorded", "file": "one.json", "head": "way", "columns": columns, "rows": {"a": None, "b": None}}
    assert Table("mine", spec).lines() == [  # of 10 and 30: mean 20, sd √200
        "| way | easy | hard |",
        "| --- | --- | --- |",
        "| `a` | 50.0 | 20.0 ± 14.1 |",
        "| `b` | 25.0 | 0.0 |",
    ]
