"""The papers' tables in READMEs and docs, made of recorded results between markers. Open it to change their looks.

    python papers/readme_tables.py            # writes them
    python papers/readme_tables.py --check    # says which differ from the results, and exits with 1

papers/PAPER/tables.yaml says what each table shows. In the paper's README it stands between `<!-- table: NAME -->` and
`<!-- end of table -->`, on a page of the documentation between `<!-- table: PAPER/NAME -->` and the same.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from evidence import PAPERS, Row, Unit, is_recorded, read_queue, read_rows
from scipy.stats import t as student

MARKED = re.compile(r"(<!-- table: ([\w./-]+) -->\n).*?(<!-- end of table -->)", re.S)
CURVE = re.compile(r"(\w+), epochs? (\d+)(?: to (\d+))?")
"""A measure that is read from a curve: its value at an epoch, or its mean over epochs."""
MISSING = "–"

Values = dict[int, list[Any]]
"""[value, low, high, n] by seed."""


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(Mean, ends of Student's 95 % interval) of at least two numbers.

    >>> [round(v, 2) for v in mean_interval([0.34, 0.46])]
    [0.4, -0.36, 1.16]
    """
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return fmean(values), fmean(values) - half, fmean(values) + half


def shown(value: float, digits: int) -> str:
    """
    >>> shown(-1.26, 1), shown(-0.04, 1)
    ('−1.3', '0.0')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0: no sign before a zero


class Table:
    """One table as tables.yaml describes it."""

    def __init__(self, paper: str, spec: Mapping[str, Any]) -> None:
        self.paper, self.spec, self.digits, self.scale = paper, spec, spec.get("digits", 1), spec.get("scale", 100)
        flags = {key: str(value) for key, value in spec.get("flags", {}).items()}
        self.folder = PAPERS / paper / "results"
        own = spec.get("study", ())
        studies = [own] if isinstance(own, str) else own
        rows = [row for study in studies for row in read_rows(f"{paper}/{study}")]
        seeds = spec.get("only_seeds")
        self.rows: list[Row] = [
            row for row in rows if row.get("flags", {}) == flags and (seeds is None or row["seed"] in seeds)
        ]

    def values(self, cell: str, measure: str) -> Values:
        """Of a measure by name, the last accuracy on held-out data, the best epoch on the test set, a curve's
        "CURVE, epochs 10 to 50", or an audit's "AUDIT: NAME, WHERE"."""
        found: Values = {}
        for row in (row for row in self.rows if row["cell"] == cell):
            numbers = _numbers(row, measure)
            if numbers is not None:
                error, scale = self.spec.get("error", False), self.scale
                own = [None if v is None else scale * (1 - v if error else v) for v in numbers[:3]]
                found[row["seed"]] = [*(own if not error else [own[0], own[2], own[1]]), numbers[3]]
        return found

    def lines(self) -> list[str]:
        made = {"seeds": self.by_seed, "measures": self.by_measure, "differences": self.differences, "grid": self.grid,
                "overview": self.overview, "recorded": self.recorded}  # fmt: skip
        head, body = made[self.spec.get("kind", "measures")]()
        measured = [row for row in body if row]
        lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *measured]] if measured else []
        if len(measured) == len(body):
            return lines
        if not measured:
            return [f"Not run yet: {len(body)} row{'s' * (len(body) != 1)} of `{self.spec['study']}.yaml`."]
        named = [title for (_, title, _), row in zip(self.titled(), body, strict=True) if not row]
        return [*lines, "", f"Not run yet: {'; '.join(named)}."]

    def titled(self) -> list[tuple[Any, str, Mapping[str, Any]]]:
        """(Cell or pair of cells, what it is called, what else is said of it.)"""
        if "pairs" in self.spec:
            measures = self.spec.get("measures") or {"": ""}
            pairs = [(pair, title) for title in measures for pair in self.spec["pairs"]]
            return [(p, ", ".join(filter(None, (f"`{p[0]}` − `{p[1]}`", title))), {}) for p, title in pairs]
        rows = self.spec["rows"]
        return [(cell, (own or {}).get("title", f"`{cell}`"), own or {}) for cell, own in rows.items()]

    def by_seed(self) -> tuple[list[str], list[list[str]]]:
        """A column per seed, with the interval of its test images, then mean ± sd over seeds. No cells: not run yet."""
        seeds = self.spec["seeds"]
        head = [self.spec["head"], *(f"seed {s}" for s in seeds), "mean ± sd", "n", self.spec.get("paper", "paper")]
        body = []
        for cell, title, own in self.titled():
            found = self.values(cell, self.spec["measure"])
            cells = [self.one(found[s]) if s in found else "" for s in seeds]
            paper = str(own.get("paper", MISSING))
            body.append([title, *cells, self.spread(found), str(len(found)), paper] if found else [])
        return head, body

    def by_measure(self) -> tuple[list[str], list[list[str]]]:
        """A column per measure, mean ± sd over seeds, and the paired difference to a baseline."""
        columns: Mapping[str, str] = self.spec["columns"]
        baseline, papers = self.spec.get("baseline"), self.spec.get("papers", {})
        head = [self.spec["head"], *papers.values(), *columns, "n"]
        head += [f"{self.spec.get('difference', 'difference')} to {baseline} (95 % interval)"] if baseline else []
        body = []
        for cell, title, own in self.titled():
            each = [self.values(cell, measure) for measure in columns.values()]
            counts = sorted({len(found) for found in each} - {0})
            line = [title, *(str(own.get(key, MISSING)) for key in papers)]
            line += [*map(self.spread, each), " to ".join(map(str, dict.fromkeys((*counts[:1], *counts[-1:]))))]
            if baseline:
                line += [self.against(cell, baseline, next(iter(columns.values()))) if cell != baseline else ""]
            body.append(line if counts else [])
        return head, body

    def differences(self) -> tuple[list[str], list[list[str]]]:
        """Pairs of cells: their difference on each seed, the mean and its interval, in one measure or in several."""
        measures = self.spec.get("measures") or {"": self.spec["measure"]}
        wanted = [(first, second, measure) for measure in measures.values() for first, second in self.spec["pairs"]]
        body = []
        for (_, name, _), (first, second, measure) in zip(self.titled(), wanted, strict=True):
            gaps = self.gaps(first, second, measure)
            each = ", ".join(shown(gap, self.digits) for gap in gaps)
            body.append([name, each, self.gap_text(gaps), str(len(gaps))] if gaps else [])
        unit = ", points" if self.scale == 100 else ""
        return [f"difference{unit}", "on each seed", "mean (95 % interval)", "n"], body

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """One measure of cells that differ in two things: a row for each value of one, put into the cell that a column
        names ("lff, {}"). A column of two cells is their difference on the same seeds."""
        columns: Mapping[str, str | Sequence[str]] = self.spec["columns"]
        body = []
        for row in self.spec["rows"]:
            line, counts = [row], []
            for own in columns.values():
                cells = [cell.format(row) for cell in ([own] if isinstance(own, str) else own)]
                found = [self.values(cell, self.spec["measure"]) for cell in cells]
                counts.append(len(set.intersection(*map(set, found))))
                line.append(self.spread(found[0]) if len(cells) == 1 else self.against(*cells, self.spec["measure"]))
            body.append([*line, str(min(counts))])
        return [self.spec["head"], *columns, "n"], body

    def overview(self) -> tuple[list[str], list[list[str]]]:
        """Differences on the same seeds from several studies. columns: what each is called, and its study, or
        {study, flags}; a row has a pair of cells for each column, or a text."""
        columns: Mapping[str, str | Mapping[str, Any]] = self.spec["columns"]
        given = {column: {"study": own} if isinstance(own, str) else own for column, own in columns.items()}
        tables = {column: Table(self.paper, {**self.spec, **own}) for column, own in given.items()}
        body = []
        for row, own in self.spec["rows"].items():
            line = [row]
            for column, table in tables.items():
                pair = own.get(column, MISSING)
                gaps = [] if isinstance(pair, str) else table.gaps(*pair, self.spec["measure"])
                many = f", {len(gaps)} seeds" if len(gaps) > 1 else ""
                line.append(table.gap_text(gaps) + many if not isinstance(pair, str) else pair)
            body.append(line)
        return [self.spec["head"], *columns], body

    def recorded(self) -> tuple[list[str], list[list[str]]]:
        """Numbers of one result file, or lists of one per seed. A column is a place in it, and what is measured."""
        figures = json.loads((self.folder / self.spec["file"]).read_bytes())["figures"]
        columns: Mapping[str, tuple[str, str]] = self.spec["columns"]
        body = [
            [title, *(self.listed(figures[kind][row][what]) for kind, what in columns.values())]
            for row, title, _ in self.titled()
        ]
        return [self.spec["head"], *columns], body

    def listed(self, values: float | Sequence[float]) -> str:
        own = values if isinstance(values, Sequence) else [values]
        return self.spread({seed: [self.scale * value] for seed, value in enumerate(own)})

    def gaps(self, first: str, second: str, measure: str) -> list[float]:
        a, b = self.values(first, measure), self.values(second, measure)
        return [a[seed][0] - b[seed][0] for seed in sorted(a.keys() & b.keys())]

    def gap_text(self, gaps: Sequence[float]) -> str:
        if not gaps:
            return MISSING
        if len(gaps) == 1:
            return f"{shown(gaps[0], self.digits)}, one seed"
        return "{} ({} to {})".format(*(shown(v, self.digits) for v in mean_interval(gaps)))

    def against(self, cell: str, baseline: str, measure: str) -> str:
        return self.gap_text(self.gaps(cell, baseline, measure))

    def one(self, numbers: Sequence[Any]) -> str:
        value, low, high, _ = numbers
        ends = "" if low is None else f" ({shown(low, self.digits)} to {shown(high, self.digits)})"
        return shown(value, self.digits) + ends

    def spread(self, found: Values) -> str:
        values = [numbers[0] for numbers in found.values()]
        if not values:
            return MISSING
        if len(values) == 1:
            return shown(values[0], self.digits)
        return f"{shown(fmean(values), self.digits)} ± {shown(stdev(values), self.digits)}"


def _numbers(row: Row, measure: str) -> list[Any] | None:
    if measure == "held-out accuracy":
        curve = row.get("curves", {}).get("val_accuracy", {})
        return [list(curve.values())[-1], None, None, None] if curve else None
    if measure == "best epoch on the test set":
        best = row.get("best_epoch_on_test")
        return [best["accuracy"], None, None, None] if best else None
    if measure == "seconds":
        return [row["seconds"], None, None, None]
    if read := CURVE.fullmatch(measure):
        first, last = int(read[2]), int(read[3] or read[2])
        curve = row.get("curves", {}).get(read[1], {})
        values = [value for epoch, value in curve.items() if first <= int(epoch) <= last]
        return [fmean(values), None, None, None] if values else None
    audits, colon, what = measure.partition(": ")
    if not colon:
        numbers: list[Any] | None = row["measures"].get(measure)
        return numbers
    name, _, where = what.partition(", ")
    for audit in audits.split(" or "):
        for found, place, *own in row.get("audits", {}).get(audit, {}).get("findings", ()):
            if (found, place) == (name, where):
                return list(own)
    return None


def pages() -> list[Path]:
    """Every page with tables of ours."""
    places = [*PAPERS.glob("*.md"), *PAPERS.glob("*/*.md"), *(PAPERS.parent / "docs").rglob("*.md")]
    return sorted(page for page in places if MARKED.search(page.read_text(encoding="utf-8")))


def described(paper: str) -> dict[str, Any]:
    """The tables of a paper by name."""
    file = PAPERS / paper / "tables.yaml"
    return dict(yaml.safe_load(file.read_text(encoding="utf-8"))) if file.exists() else {}


def queue_lines() -> list[str]:
    """What the queue asks, in its order: the trainings that each question takes, those recorded, and minutes left."""
    units, _ = read_queue()
    asked: dict[str, list[Unit]] = {}
    for unit in units:
        asked.setdefault(unit.why, []).append(unit)
    lines = ["| question | studies | trainings | recorded | minutes left |", "| --- | --- | --- | --- | --- |"]
    for why, own in asked.items():
        left = [unit for unit in own if not is_recorded(unit, read_rows(unit.study))]
        studies = ", ".join(f"`{study}`" for study in dict.fromkeys(unit.study for unit in own))
        minutes = sum(unit.minutes for unit in left)
        lines.append(f"| {why} | {studies} | {len(own)} | {len(own) - len(left)} | {minutes:.0f} |")
    return lines


def trained_lines(paper: str) -> list[str]:
    """What the recorded rows of a paper's studies took: trainings, hardware, and minutes of it. Of trainings beside
    others each has its share; where nobody counted the others, what is left is a bound."""
    lines = ["| study | trainings | on | minutes of training | of audits |", "| --- | --- | --- | --- | --- |"]
    for path in sorted((PAPERS / paper / "results").glob("*.json")):
        by_machine: dict[str, list[Row]] = {}
        for row in json.loads(path.read_bytes()).get("rows", ()):
            by_machine.setdefault("NVIDIA H200" if "H200" in row["hardware"] else "CPU", []).append(row)
        for machine, own in by_machine.items():
            trained = [(row["seconds"], row.get("trainings_at_once")) for row in own]
            audited = [
                (audit["seconds"], None if "of_another_training" in audit else row.get("trainings_at_once"))
                for row in own
                for audit in row.get("audits", {}).values()
            ]
            lines.append(f"| `{path.stem}` | {len(own)} | {machine} | {_minutes(trained)} | {_minutes(audited)} |")
    return lines


def _minutes(times: Sequence[tuple[float, int | None]]) -> str:
    """Of (seconds, how many ran at once)."""
    bound = "at most " if any(at_once is None for _, at_once in times) else ""
    return f"{bound}{sum(seconds / (at_once or 1) for seconds, at_once in times) / 60:.0f}"


def filled(page: Path) -> str:
    """The page with its tables as the results have them; a paper's README must have all of them."""
    text = page.read_text(encoding="utf-8")
    there = {name for _, name, _ in MARKED.findall(text)}
    own = page.parent.name if page.parent.parent == PAPERS else ""
    missing = described(own).keys() - there if own else set()
    if missing:
        raise SystemExit(f"{page} has no place for the tables {sorted(missing)} of tables.yaml")

    def fill(found: re.Match[str]) -> str:
        if found[2] == "queue":
            lines = queue_lines()
        elif found[2].rpartition("/")[2] == "trained":
            lines = trained_lines(found[2].rpartition("/")[0] or own)
        else:
            paper, _, name = found[2].rpartition("/")
            lines = Table(paper or own, described(paper or own)[name]).lines()
        return "\n".join([found[1].rstrip("\n"), *lines, found[3]])

    return MARKED.sub(fill, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = []
    for page in pages():
        text = filled(page)
        if text != page.read_text(encoding="utf-8"):
            stale.append(page)
            if not args.check:
                page.write_text(text, encoding="utf-8")
    print(f"{'out of date' if args.check else 'written'}: {', '.join(map(str, stale)) or 'none'}")
    sys.exit(bool(args.check and stale))


if __name__ == "__main__":
    main()
