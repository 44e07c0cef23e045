"""What ``fit`` and ``audit`` return: a line in a terminal, a table in a notebook, looked up, saved and compared."""

from __future__ import annotations

import builtins
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.audits.audit_result import Audit
from holdfast.errors import HoldfastError
from holdfast.metrics import wilson_interval
from holdfast.reports.findings_file import CheckRecord, FindingsFile, write_findings
from holdfast.train.progress import NotebookProgress, Progress, in_notebook, make_progress
from holdfast.types import Finding, Note
from tests.conftest import make_data


def file_of(right: int, n: int = 200, *, name: str = "mine", data: str = "a", gate: bool = True) -> FindingsFile:
    low, high = wilson_interval(right, n)
    found = (
        Finding("accuracy", "accuracy", right / n, n, low, high),
        Finding("accuracy", "nll", 0.4, n),
        Finding("groups", "worst_group_accuracy", 0.5, 20, 0.3, 0.7, evidence={"cell": "<b>red</b>"}),
        Finding("accuracy", "pictures", None, 0, evidence={"pictures": []}),
    )
    gates = ({"name": "accuracy >= 0.9", "passed": gate, "reason": "value 0.7 is under 0.9", "n": n},)
    checks = (CheckRecord("accuracy", "measured"), CheckRecord("groups", "measured"))
    return FindingsFile(found, {"name": name}, {"name": "<photos>", "hash": data}, checks=checks, gates=gates)


def audit_of(*files: FindingsFile, warning: str = "") -> Audit:
    return Audit(files, (Note("odd", warning, "look <twice>", "warning"),) if warning else ())


def test_an_audit_is_one_line_in_a_terminal_and_a_table_with_warnings_first_in_a_notebook() -> None:
    audit = audit_of(file_of(140, gate=False), warning="half of the images are the same")
    counts = "2 of 2 checks measured, 1 warnings, the gate failed, 4 findings"
    assert repr(audit) == f"<Audit of mine on <photos>: {counts}>"
    html = audit._repr_html_()
    assert len(html) < 10_000
    places = [html.index(text) for text in ("gate failed", "half of the images", "70.0\u00a0%", "<table>")]
    assert places == sorted(places), "what changes how to read the numbers comes before them"
    assert "look &lt;twice&gt;" in html
    assert "&lt;photos&gt;" in html
    assert not re.search(r"<(?!/?(div|h4|p|b|table|caption|thead|tbody|tr|th|td)\b)", html), "names are never markup"
    assert "<script" not in html


def test_numbers_are_looked_up_by_measure() -> None:
    audit = audit_of(file_of(140))
    assert audit["worst-group-accuracy"] is audit["worst_group_accuracy"]
    assert "nll" in audit
    assert "worst-group-accuracy" in audit
    assert "curvature" not in audit
    with pytest.raises(HoldfastError, match="unknown measure 'acc'; did you mean 'accuracy'"):
        audit["acc"]
    with pytest.raises(HoldfastError, match="by the name of its measure, got 0"):
        audit[0]  # type: ignore[index]


def test_of_several_group_columns_the_lowest_is_looked_up() -> None:
    by_column = [
        Finding("groups", "worst_group_accuracy", value, 20, where={"column": column})
        for column, value in (("sky", 0.8), ("site", 0.4), ("hour", 0.6))
    ]
    assert audit_of(replace(file_of(140), findings=tuple(by_column)))["worst_group_accuracy"].value == 0.4


def test_an_audit_passes_where_every_gate_holds_and_no_check_crashed() -> None:
    crashed = replace(file_of(140), checks=(CheckRecord("accuracy", "crashed", "out of memory"),))
    failed = file_of(140, gate=False)
    made = [audit_of(*files) for files in ((file_of(140),), (failed,), (file_of(140), failed), (failed, crashed))]
    assert [(audit.passed, audit.exit_code) for audit in made] == [(True, 0), (False, 1), (False, 1), (False, 3)]


def test_rows_have_every_number_of_every_model() -> None:
    audit = audit_of(file_of(140), file_of(120, name="before"))
    rows = audit.rows()
    assert [row["model"] for row in rows] == ["mine"] * 3 + ["before"] * 3, "pictures alone are not a number"
    assert rows[0] | {"low": 0, "high": 0} == {
        "model": "mine", "check": "accuracy", "measure": "accuracy", "part": "all", "value": 0.7, "low": 0, "high": 0,
        "n": 200, "unit": "%", "better": "higher",
    }  # fmt: skip
    assert rows[1]["better"] == "lower"


@pytest.mark.dev
def test_a_data_frame_holds_the_rows() -> None:
    pytest.importorskip("pandas")
    audit = audit_of(file_of(140))
    frame = audit.to_dataframe()
    assert frame.to_dict("records")[0] == audit.rows()[0]
    assert frame.set_index("measure").loc["worst_group_accuracy", "value"] == 0.5


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HoldfastError, match=r"needs pandas, .* pip install 'holdfast\[pandas\]'"):
        audit_of(file_of(140)).to_dataframe()


def test_two_audits_are_compared_with_an_interval_and_a_verdict() -> None:
    ours, theirs = audit_of(file_of(180)), audit_of(file_of(140, name="before"))
    made = ours.compare(theirs)
    (row,) = [row for row in made.rows() if row["measure"] == "accuracy"]
    # Newcombe's interval of a difference of shares, method 10, computed from its formula
    (l1, u1), (l2, u2) = wilson_interval(180, 200), wilson_interval(140, 200)
    assert row["difference"] == pytest.approx(0.2)
    assert row["low"] == pytest.approx(0.2 - math.sqrt((0.9 - l1) ** 2 + (u2 - 0.7) ** 2))
    assert row["high"] == pytest.approx(0.2 + math.sqrt((u1 - 0.9) ** 2 + (0.7 - l2) ** 2))
    assert row["verdict"] == "better"
    assert [r["verdict"] for r in theirs.compare(ours).rows() if r["measure"] == "accuracy"] == ["worse"]
    assert {r["verdict"] for r in ours.compare(audit_of(file_of(181))).rows()} == {""}
    assert "+20.0 points" in repr(made)
    assert "better" in made._repr_html_()
    assert len(made) == 3
    assert "different images" in repr(ours.compare(audit_of(file_of(140, data="b"))))
    assert "different images" not in repr(made)


def test_an_audit_is_compared_with_a_folder_and_reported(tmp_path: Path) -> None:
    file = file_of(140)
    (tmp_path / "before").mkdir()
    write_findings(tmp_path / "before" / "findings.json", file.findings, model=file.model, data=file.data)
    made = audit_of(file_of(180)).compare(tmp_path / "before")
    assert [row["other"] for row in made.rows()] == [0.7, 0.4, 0.5]
    assert audit_of(file).report(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(HoldfastError, match="holds no findings.json; give the folder of an audit"):
        audit_of(file).compare(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def run() -> hf.Run:
    return hf.fit(make_data(groups=2), epochs=2, batch_size=32, device="cpu", workers=0)


def test_a_run_shows_itself_and_is_looked_up(run: hf.Run) -> None:
    assert re.fullmatch(r"<Run of erm on bars: convnet, 2 epochs, test accuracy \d+\.\d %>", repr(run))
    assert run["test_accuracy"] == run["test-accuracy"] == run.history[-1]["test_accuracy"]
    with pytest.raises(HoldfastError, match="unknown metric 'test_acuracy'; did you mean 'test_accuracy'"):
        run["test_acuracy"]
    html = run._repr_html_()
    assert "epoch 2, whose weights were kept" in html
    assert "96 train, 48 test; 3 classes" in html
    warned = replace(run, data=replace(run.data, notes=(Note("odd", "too few", level="warning"),)))
    assert warned._repr_html_().index("too few") < warned._repr_html_().index("<table>")
    assert "1 warnings" in repr(warned)
    assert [row["epoch"] for row in run.rows()] == [1, 2]
    assert run.card is not None
    assert run.card.classes == ("bar0", "bar1", "bar2")


def test_the_metrics_of_a_run_are_those_of_the_epoch_that_was_kept(run: hf.Run) -> None:
    assert replace(run, epoch=1)["test_loss"] == run.history[0]["test_loss"]
    kept = hf.fit(make_data(), epochs=3, batch_size=32, device="cpu", workers=0, select="oracle-test")
    best = max(kept.history, key=lambda record: record["test_accuracy"])
    assert kept["test_accuracy"] == best["test_accuracy"]


def test_runs_are_compared_and_reported(run: hf.Run, tmp_path: Path) -> None:
    other = hf.fit(make_data(groups=2), epochs=1, batch_size=32, lr=0.01, device="cpu", workers=0, out=tmp_path / "run")
    made = run.compare(other)
    named = {row["name"]: (row["this"], row["other"]) for row in made.rows() if row["kind"] == "setting"}
    assert named["epochs"] == (2, 1)
    assert "batch_size" not in named
    metrics = {row["name"]: row for row in made.rows() if row["kind"] == "metric"}
    expected = run["test_accuracy"] - other["test_accuracy"]
    assert metrics["test_accuracy"]["difference"] == pytest.approx(expected)
    by_folder = {row["name"]: row for row in run.compare(tmp_path / "run").rows() if row["kind"] == "metric"}
    assert by_folder["test_loss"] == pytest.approx(metrics["test_loss"])
    assert f"in {tmp_path / 'run'}" in repr(other)
    for one in (run, other):
        page = one.report(tmp_path / "page.html").read_text(encoding="utf-8")
        assert "<svg" in page


def test_an_audit_of_a_run_goes_by_the_name_of_its_network(run: hf.Run) -> None:
    audit = hf.audit(run, checks=["accuracy"], device="cpu", workers=0)
    assert repr(audit).startswith("<Audit of convnet on bars")
    assert audit["accuracy"].value == pytest.approx(run["test_accuracy"])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a kernel would be asked to display, as if this were one."""
    drawn: list[str] = []
    handle = SimpleNamespace(update=drawn.append)
    display = SimpleNamespace(HTML=str, display=lambda *a, **k: handle)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return drawn


def test_a_notebook_gets_a_bar_that_ends(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_notebook()
    monkeypatch.setattr(NotebookProgress, "PAUSE", 0.0)
    bar = make_progress()
    assert isinstance(bar, NotebookProgress)
    hf.fit(make_data(), epochs=2, batch_size=32, device="cpu", workers=0)
    assert '<progress value="3" max="6"' in "".join(shown)
    assert "<progress" not in shown[-1]
    assert "epoch 2/2" in shown[-1]
    shown.clear()
    torch.manual_seed(1)  # a network in which an audit sees nothing to warn of
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.audits.run_audit.python_warnings.warn", lambda *a, **k: None)
        hf.audit(net, make_data(), checks=["accuracy", "groups"], device="cpu", workers=0)
    assert '<progress value="1" max="2"' in "".join(shown)
    assert "Sequential: groups" in "".join(shown)
    assert shown[-1] == "", "nothing of it stays"
    shown.clear()
    hf.audit(net, make_data(), checks=["accuracy"], device="cpu", workers=0, progress=False)
    assert shown == []


def test_elsewhere_there_is_no_bar() -> None:
    assert type(make_progress()) is Progress
    made = Progress()
    assert make_progress(made) is made
