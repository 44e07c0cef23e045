"""findings.json with values missing, doubled and replaced: read, and shown in every rendering."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from holdfast.reports.findings_file import FindingsFile, read_findings
from holdfast.reports.html import report_folders
from holdfast.reports.overview import gates, overview, side_by_side, verdict
from holdfast.reports.renderings import findings_table, junit, markdown, rich_table
from tests.fuzz.mutations import damaged, disturb

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "audit"
MOST = 3
"""Findings of one measure that a case has."""


def fuzz(random: Random, folder: Path) -> None:
    path = folder / "findings.json"
    content = _content(random)
    text = json.dumps(content, ensure_ascii=random.random() < 0.5, allow_nan=True).encode("utf-8", "surrogatepass")
    path.write_bytes(damaged(random, text) if random.random() < 0.15 else text)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    if random.random() < 0.2:
        lines = _lines()
        metrics.write_bytes(damaged(random, lines) if random.random() < 0.5 else lines)
    report_folders([folder], folder / "report.html", images=random.random() < 0.5, redact=random.random() < 0.2)
    show(read_findings(path), random)


def show(file: FindingsFile, random: Random) -> None:
    """Every other rendering."""
    other = file if random.random() < 0.8 else _other()
    markdown([file] if random.random() < 0.5 else [file, other])
    junit([file])
    tables = [overview(file), gates(file), side_by_side([file, other], ["a", "b"])]
    shown = [rich_table(table) for table in tables if table is not None]
    shown.append(findings_table(file.findings, file.measures))
    if random.random() < 0.05:  # rich takes longer than all the rest
        Console(file=io.StringIO(), width=100).print(*shown)
    verdict(file)


@cache
def _other() -> FindingsFile:
    return read_findings(SAMPLE / "erm" / "findings.json")


@cache
def _sample(name: str) -> str:
    """A small file with a few of every finding, without pictures."""
    content = json.loads((SAMPLE / name / "findings.json").read_bytes())
    kept: dict[tuple[str, str], list[Any]] = {}
    for found in content["findings"]:
        kept.setdefault((found["check"], found["name"]), []).append(_small(found))
    content["findings"] = [found for own in kept.values() for found in own[:MOST]]
    return json.dumps(content)


@cache
def _lines() -> bytes:
    return b"\n".join((SAMPLE / "erm" / "metrics.jsonl").read_bytes().splitlines()[:3])


def _small(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _small(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_small(v) for v in value[:12]]
    return value[:40] if isinstance(value, str) and key in ("png", "overlay", "seen", "right") else value


def _content(random: Random) -> Any:
    """Some checks of a sample, a few places of it disturbed."""
    content = json.loads(_sample(random.choice(("erm", "lff"))))
    names = sorted({found["check"] for found in content["findings"]})
    chosen = random.sample(names, random.choice((1, 1, 2)))
    content["findings"] = [found for found in content["findings"] if found["check"] in chosen]
    content["checks"] = [record for record in content["checks"] if record["name"] in chosen]
    content["measures"] = [measure for measure in content["measures"] if measure["check"] in chosen]
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        if isinstance(content, dict) and content:
            home = random.choice([content, content, *([content["findings"]] * 4 if content.get("findings") else [])])
            if isinstance(home, (dict, list)) and home:
                disturb(random, home)
    return content
