"""report.html: the findings' numbers, nothing from outside, and names that are only names."""

from __future__ import annotations

import base64
import hashlib
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast.reports
from holdfast.errors import HoldfastError
from holdfast.reports import RunFiles, report, write_report
from holdfast.reports.html import render
from holdfast.types import Finding
from tests.reports.fake_runs import COLOURS, fake_findings, finding, png, write_runs
from tests.reports.page import Page

Make = Callable[..., RunFiles]

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "\"><img src=x onerror=alert(1)>'",
    "[red]bold[/red]",
    "\x1b[31mred\x07",
    "\u202edesrever",
    "{{ 7 * 7 }}{% raw %}",
    "]]><svg/onload=alert(1)>",
    "javascript:alert(1)",
)


def test_every_number_of_a_run_is_there_digit_for_digit(runs: list[RunFiles]) -> None:
    page = Page(render(runs))
    for run in runs:
        numbers = [f for f in run.findings if f.name != "samples"]
        _, *rows = page.tables[f"Findings of {run.name} ({run.settings['method']})"]
        assert [row[2].value for row in rows] == [f.value for f in numbers]
        assert [row[3].value for row in rows] == [f.low for f in numbers]
        assert [row[4].value for row in rows] == [f.n for f in numbers]
        for (name, part, value, interval, n), f in zip(rows, numbers, strict=True):
            assert (name.text, n.text) == (f.name, str(f.n))
            assert part.text == (" ".join(v for k, v in f.where.items()) if "bias" in f.where else
                                 " ".join(f"{k} {v}" for k, v in f.where.items()) or "all")  # fmt: skip
            if f.value is None:
                assert (value.text, interval.text) == ("empty", "–")
            elif f.name == "nll":
                assert value.text == f"{f.value:.3f}"
            else:
                assert value.text == f"{f.value * 100:.1f} %"
                if f.low is not None and f.high is not None:
                    assert interval.text == f"{f.low * 100:.1f} to {f.high * 100:.1f} %"


def test_the_comparison_is_mean_and_sample_deviation_over_seeds(runs: list[RunFiles]) -> None:
    page = Page(render(runs))
    assert [cell.text for cell in page.column("Accuracy by method", "method")] == ["erm", "lff"]
    assert [cell.text for cell in page.column("Accuracy by method", "seeds")] == ["3", "3"]
    for title, name, where in (
        ("clean accuracy, %", "accuracy", {}),
        ("bias-aligned, %", "bias_aligned_accuracy", {}),
        ("bias-conflicting, %", "bias_conflicting_accuracy", {}),
        ("harmonic mean, %", "harmonic_mean", {}),
    ):
        for cell, seeds in zip(page.column("Accuracy by method", title), (runs[:3], runs[3:]), strict=True):
            values = [f.value for run in seeds for f in run.findings if f.name == name and f.where == where]
            assert cell.text == f"{statistics.mean(values) * 100:.1f} ± {statistics.stdev(values) * 100:.1f}"
            assert cell.value == pytest.approx(statistics.mean(values), abs=1e-15)


def test_the_headline_says_what_drops(runs: list[RunFiles]) -> None:
    average, aligned, conflicting = (
        next(f.value for f in runs[0].findings if f.name == name and not f.where)
        for name in ("accuracy", "bias_aligned_accuracy", "bias_conflicting_accuracy")
    )
    (headline,) = Page(render(runs[:1])).text("h1")
    assert " %" not in headline, "a percent sign may not start a line"
    assert headline.replace("\u00a0", " ") == (
        f"erm: {average * 100:.1f} % clean accuracy, {aligned * 100:.1f} % bias-aligned, "
        f"{conflicting * 100:.1f} % bias-conflicting: drops {(aligned - conflicting) * 100:.1f} points "
        "on bias-conflicting samples"
    )


def test_an_empty_group_is_empty_and_not_zero(make_run: Make) -> None:
    page = render(
        [make_run("a", findings=[finding(0.5, 8), finding(0.0, 8, group="red"), finding(None, 0, group="blue")])]
    )
    _, *rows = Page(page).tables["Findings of a"]
    assert [(row[1].text, row[2].text, row[2].value) for row in rows[1:]] == [
        ("group red", "0.0 %", 0.0),
        ("group blue", "empty", None),
    ]
    assert '<text class="none"' in page


def test_rebuilding_from_the_files_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = write_runs(tmp_path / "a"), write_runs(tmp_path / "b")
    paths = [
        write_report([RunFiles.read(folder) for folder in folders], tmp_path / name)
        for folders, name in ((first, "1.html"), (first, "2.html"), (second, "3.html"))
    ]
    one, two, three = (path.read_bytes() for path in paths)
    assert one == two == three
    assert str(tmp_path).encode() not in one


def test_the_report_is_replaced_whole(tmp_path: Path, runs: list[RunFiles]) -> None:
    path = tmp_path / "deep" / "report.html"
    write_report(runs[:1], path)
    write_report(runs, path)
    assert path.read_text(encoding="utf-8") == render(runs)
    assert list(path.parent.iterdir()) == [path]


def test_bare_findings_make_a_report(tmp_path: Path) -> None:
    path = report(fake_findings("erm", 0), tmp_path / "report.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert len(page.tables["Findings of model"]) == 21
    assert len(page.attributes("img")) == 14 + 6, "six of them above, too"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_makes_the_report_that_the_command_makes(tmp_path: Path, kind: type) -> None:
    folder = write_runs(tmp_path)[0]
    report(kind(folder), str(tmp_path / "report.html"))
    write_report([RunFiles.read(folder)], tmp_path / "command.html")
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "command.html").read_bytes()


def test_what_is_neither_findings_nor_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no such run folder: runs/none"):
        report("runs/none", tmp_path / "report.html")
    for wrong, kind in ((3, "int"), ([0.5], "float"), (None, "NoneType"), (["runs/a"], "str")):
        with pytest.raises(HoldfastError, match=rf"a report is of findings.* or of a run folder, got {kind}"):
            report(wrong, tmp_path / "report.html")  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match=r"name 'mine' is for findings alone, and runs/a has names of its own"):
        report("runs/a", tmp_path / "report.html", name="mine")


def test_a_run_in_training_has_a_report(make_run: Make) -> None:
    run = make_run("a", findings=[])
    (headline,) = Page(render([run])).text("h1")
    assert headline.startswith("erm: nothing measured yet; trained to epoch 30")


def test_a_run_with_nothing_but_a_name() -> None:
    assert Page(render([RunFiles("new")])).text("h1") == ["new: nothing measured yet"]


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="needs at least one run"):
        write_report([], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite_are_named(make_run: Make) -> None:
    found = [finding(0.5, 8), Finding("accuracy", "nll", float("inf"), 8)]
    page = Page(render([RunFiles("a", findings=tuple(found))]))
    assert [cell.text for cell in page.column("Findings of a", "value")] == ["50.0 %", "not finite"]


def hostile_runs(make_run: Make) -> list[RunFiles]:
    return [
        make_run(f"h{i}", f"erm{name}", findings=hostile_findings(), optimizer=name) for i, name in enumerate(HOSTILE)
    ]


def hostile_findings() -> list[Finding]:
    picture = {"png": png("1", COLOURS["red"]), "confidence": 0.5}
    pictures = [{**picture, "label": n, "prediction": n[::-1], "group": n, "source": n} for n in HOSTILE]
    return [
        finding(0.5, 8),
        *(finding(0.5, 8, class_=name) for name in HOSTILE),
        *(finding(0.5, 8, group=name) for name in HOSTILE),
        Finding("accuracy", "samples", None, 8, evidence={"pictures": pictures}),
    ]


def test_hostile_names_do_nothing(make_run: Make) -> None:
    source = render(hostile_runs(make_run))
    page = Page(source)
    harmless = Page(render([make_run("plain")]))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in harmless.elements} | {"ul", "li", "b", "i", "strong"}
    assert [values.get("type") for values in page.attributes("script")] == ["application/json", None]
    handlers = [name for _, values in page.elements for name in values if name.startswith("on")]
    assert handlers == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", source)
    assert "{{ 7 * 7 }}" in "".join(page.text("th"))


def test_nothing_is_asked_from_outside(runs: list[RunFiles]) -> None:
    page = Page(render(runs))
    links = [v for _, values in page.elements for k, v in values.items() if k in ("src", "href", "srcset", "action")]
    assert links
    assert all((link or "").startswith(("data:", "#")) for link in links)
    assert "url(" not in "".join(page.text("style"))
    assert "@import" not in "".join(page.text("style"))


def test_the_policy_allows_this_style_and_script_only(runs: list[RunFiles]) -> None:
    source = render(runs)
    page = Page(source)
    (policy,) = (m["content"] for m in page.attributes("meta") if m.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in (policy or "").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not [values for _, values in page.elements if "style" in values]


def test_ids_are_unique_and_links_arrive(runs: list[RunFiles]) -> None:
    page = Page(render(runs))
    ids = [values["id"] for _, values in page.elements if "id" in values]
    assert len(ids) == len(set(ids))
    assert {(a["href"] or "")[1:] for a in page.attributes("a")} <= set(ids)


def test_a_thousand_classes_stay_small(make_run: Make) -> None:
    found = [finding(0.5, 50, class_=f"class number {i}") for i in range(1000)]
    source = render([make_run("a", findings=[finding(0.5, 50_000), *found])])
    assert len(source.encode()) < 1_000_000
    assert len(Page(source).tables["Findings of a"]) == 1002


@pytest.mark.slow
def test_too_many_numbers_are_named_and_left_out(make_run: Make) -> None:
    found = [finding(0.5, 50, class_=f"c{i}") for i in range(2000)]
    page = Page(render([make_run(f"r{i}", seed=i, findings=found) for i in range(3)]))
    assert "Findings of r1 (erm)" in page.tables
    assert "Findings of r2 (erm)" not in page.tables
    (row,) = page.tables["Runs whose numbers are in their findings.json only"][1:]
    assert [cell.text for cell in row] == ["r2 (erm)", "2,000"]


def test_reports_do_not_import_torch() -> None:
    code = "import sys, holdfast.reports; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_templates_travel_with_the_package() -> None:
    folder = Path(holdfast.reports.__file__).parent / "templates"
    assert {path.name for path in folder.iterdir()} >= {"report.html", "blocks.html", "style.css", "script.js"}


def test_the_title_of_many_cells_is_short() -> None:
    runs = [RunFiles(name=f"lam{i}", settings={"method": {"name": "lff", "q": i}, "epochs": 1}) for i in range(9)]
    (title,) = Page(render(runs)).text("title")
    assert title.count("lff") == 3
    assert title.endswith(" and 6 more – holdfast")
    assert "1 epoch" in render(runs)
    assert "1 epochs" not in render(runs)
