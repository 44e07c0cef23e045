"""findings.json: whole or not at all, valid JSON, and clear about what it cannot read."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.reports import read_findings, write_findings
from holdfast.reports.findings_file import is_as_written
from holdfast.reports.html import report_folders
from holdfast.types import Finding
from tests.reports.fake_runs import fake_findings


def write(path: Path, *findings: Finding, **rest: Any) -> Path:
    write_findings(path, findings, model=rest.get("model", {}), data=rest.get("data", {}))
    return path


def strict(path: Path) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(path.read_bytes(), parse_constant=refuse)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    findings = fake_findings("erm", 0)
    path = tmp_path / "new" / "findings.json"
    write_findings(path, findings, model={"name": "convnet"}, data={"name": "digits", "test": 600})
    read = read_findings(path)
    assert read.findings == tuple(findings)
    assert (read.model, read.data) == ({"name": "convnet"}, {"name": "digits", "test": 600})


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    bad = Finding("accuracy", "nll", math.inf, 5, math.nan, -math.inf, evidence={"curve": [1.0, math.nan]})
    path = write(tmp_path / "findings.json", bad, model={"scale": math.nan})
    strict(path)
    (read,) = read_findings(path).findings
    assert (read.value, read.low, read.high, read.n) == (None, None, None, 5)
    assert read.evidence == {"curve": [1.0, None]}


def test_names_that_are_not_unicode_survive(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    path = write(tmp_path / "findings.json", Finding("accuracy", "accuracy", 0.5, 2, where={"class": odd}))
    assert read_findings(path).findings[0].where == {"class": odd}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = write(tmp_path / "findings.json", Finding("accuracy", "accuracy", 0.5, 2))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(HoldfastError, match=r"cannot write .*findings\.json: No space left on device"):
        write(path, Finding("accuracy", "accuracy", 0.9, 2))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HoldfastError, match="cannot write"):
        write(tmp_path / "file" / "findings.json")


GOOD = Finding("accuracy", "accuracy", 0.5, 2).to_json()
CHECK = {"name": "accuracy", "state": "measured"}
MEASURE = {"check": "accuracy", "name": "accuracy", "title": "accuracy", "unit": "percent"}
HEAD = {"format": "holdfast-findings", "version": 2, "model": {}, "data": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {**HEAD, "version": 1, "findings": []},
            "has findings version 1, this holdfast reads version 2; measure",
        ),
        ({**HEAD, "version": 3, "findings": []}, "has findings version 3, .* use the holdfast that wrote it"),
        ({**HEAD, "version": None, "findings": []}, "has findings version None"),
        ({"format": "other", "version": 1}, "is not a findings file"),
        ([], "is not a findings file"),
        (HEAD, "is damaged .*'findings'"),
        ({**HEAD, "findings": [{**GOOD, "value": "high"}]}, "is damaged .*value is 'high'"),
        ({**HEAD, "findings": [{**GOOD, "n": 2.5}]}, "is damaged .*n is 2.5"),
        ({**HEAD, "findings": [{**GOOD, "where": None}]}, "is damaged .*where is None"),
        ({**HEAD, "findings": [{**GOOD, "surprise": 1}]}, "is damaged .*surprise"),
        ({**HEAD, "findings": [7]}, "is damaged"),
        ({**HEAD, "model": 3, "findings": []}, "is damaged .*model is 3"),
        ({**HEAD, "model": "1" * 5000, "findings": []}, r"is damaged \(model is '1{199}\.\.\.\)"),
        ({**HEAD, "findings": [], "checks": [{**CHECK, "seconds": "long"}]}, "is damaged .*seconds is 'long'"),
        ({**HEAD, "findings": [], "checks": [{**CHECK, "reason": ["x"]}]}, r"is damaged .*reason is \['x'\]"),
        ({**HEAD, "findings": [], "checks": [{**CHECK, "notes": [{"text": 3}]}]}, "is damaged .*text is 3"),
        ({**HEAD, "findings": [], "measures": [{**MEASURE, "title": {}}]}, "is damaged .*title is {}"),
        ({**HEAD, "findings": [], "measures": [{**MEASURE, "digits": "0.2"}]}, "is damaged .*digits is '0.2'"),
        ({**HEAD, "findings": [], "measures": [{**MEASURE, "digits": 2**40}]}, "is damaged .*digits is 1099511627776"),
        ({**HEAD, "findings": [], "measures": [{**MEASURE, "headline_where": []}]}, r"is damaged .*where is \[\]"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "findings.json"
    path.write_text(json.dumps(content))
    with pytest.raises(HoldfastError, match=message):
        read_findings(path)


@pytest.mark.parametrize("keep", [0, 1, 40, -3])
def test_a_truncated_file_is_refused_with_the_remedy(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "findings.json", Finding("accuracy", "accuracy", 0.5, 2))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(HoldfastError, match=r"truncated or not JSON .*; measure again"):
        read_findings(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no findings file at .*nowhere\.json"):
        read_findings(tmp_path / "nowhere.json")


def test_a_file_knows_whether_it_was_changed(tmp_path: Path) -> None:
    odd = Finding("accuracy", "accuracy", math.nan, 4, evidence={"b": [1.5, math.inf], "a": "ä \udcff"})
    path = write(tmp_path / "findings.json", *fake_findings("erm", 0), odd, data={"classes": ("cat", "dog")})
    assert is_as_written(path)
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(dict(reversed(content.items()))), encoding="utf-8")
    assert is_as_written(path), "the order of keys and the spaces say nothing"
    content["findings"][0]["n"] += 1
    path.write_text(json.dumps(content), encoding="utf-8")
    assert not is_as_written(path)
    for text in ("", "[]", "{", '{"digest": 1}', json.dumps({k: v for k, v in content.items() if k != "digest"})):
        path.write_text(text, encoding="utf-8")
        assert not is_as_written(path)


def test_a_mistake_of_ours_is_not_called_a_damaged_file(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering fails on files that are as they were written: the error is shown as it is, not explained away."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr("holdfast.reports.html.render", broken)
    out = run_folder / "report.html"
    with pytest.raises(KeyError, match="a mistake of ours"):
        report_folders([run_folder], out)
    path = run_folder / "findings.json"
    content = json.loads(path.read_bytes())
    content["findings"][0]["evidence"] = {"table": 1}
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(HoldfastError, match=r"cannot show .*findings.json \(KeyError.* measure again"):
        report_folders([run_folder], out)
