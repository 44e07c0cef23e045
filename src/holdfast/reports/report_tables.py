"""Tables that several renderings share: findings, methods over seeds, a baseline, model against model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from holdfast.reports.arms import AVERAGE, CONFLICTING, MEASURES, Arm, Measure, Spread
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.robustness_summary import with_interval
from holdfast.reports.text import CHANCES, finite, interval, number, part, percent, quantity, setting
from holdfast.types import Finding

EMPTY = "empty"
NOT_FINITE = "not finite"


def method_table(arms: Sequence[Arm]) -> Table:
    """One row an arm, one column a measure that some arm has; in percent."""
    measures = [m for m in MEASURES if any(arm.spread(m) for arm in arms)]
    comparable = len(arms) > 1 and len({arm.data for arm in arms}) == 1
    best = {m: max((s.mean for a in arms if (s := a.spread(m)) and s.mean is not None), default=None) for m in measures}
    rows = []
    for arm in arms:
        cells = [spread_cell(arm.spread(m), best[m] if comparable else None) for m in measures]
        rows.append((Cell(arm.label), *cells, _seeds(arm)))
    columns = [
        Column("method"),
        *(Column(f"{m.title}, %", numeric=True) for m in measures),
        Column("seeds", numeric=True),
    ]
    several = any(len(arm.runs) > 1 for arm in arms)
    note = "Mean ± sample standard deviation over seeds." if several else ""
    if comparable and measures:
        note = f"{note} Bold: the highest of its column.".strip()
    return Table("Accuracy by method", tuple(columns), tuple(rows), note)


def run_table(arms: Sequence[Arm]) -> Table:
    """One row a run, with the numbers of :func:`method_table` before they are averaged."""
    measures = [m for m in MEASURES if any(arm.spread(m) for arm in arms)]
    rows = []
    for arm in arms:
        for run in arm.runs:
            alone = Arm.of(arm.label, [run])
            rows.append((Cell(run.name), Cell(arm.label), *(spread_cell(alone.spread(m)) for m in measures)))
    columns = [Column("run"), Column("method"), *(Column(f"{m.title}, %", numeric=True) for m in measures)]
    return Table("Accuracy of each run", tuple(columns), tuple(rows))


def findings_list(items: Iterable[Finding], *, caption: str = "Findings") -> Table:
    """One row a finding: what, where, how much, how sure."""
    rows = []
    for f in items:
        if f.evidence.get("pictures") is not None:
            continue
        text, span = shown(f)
        value, low = finite(f.value), finite(f.low)
        rows.append((Cell(f.name), Cell(part(f.where)), Cell(text, value), Cell(span, low), Cell(f"{f.n:,}", f.n)))
    columns = (
        Column("measure"), Column("part"), Column("value", numeric=True),
        Column("95 % interval", numeric=True), Column("n", numeric=True),
    )  # fmt: skip
    return Table(caption, columns, tuple(rows))


def shown(finding: Finding) -> tuple[str, str]:
    """(value, interval) of a finding as every rendering writes them."""
    value = finite(finding.value)
    text = EMPTY if not finding.n else NOT_FINITE if value is None else quantity(finding.name, value)
    return text, interval(finding.name, finding.low, finding.high)


def spread_cell(spread: Spread | None, best: float | None = None) -> Cell:
    """A share over seeds in percent: mean ± sample standard deviation."""
    if spread is None:
        return Cell("")
    if spread.mean is None:
        return Cell(EMPTY if not spread.n else NOT_FINITE)
    return Cell(share(spread), spread.mean, strong=spread.mean == best)


def share(spread: Spread) -> str:
    """Mean and, over several seeds, sample standard deviation, in percent without the sign.

    >>> share(Spread((0.5, 0.7), n=100)), share(Spread((0.5,), n=100))
    ('60.0 ± 14.1', '50.0')
    """
    mean = "" if spread.mean is None else percent(spread.mean)
    return mean if spread.sd is None else f"{mean} ± {percent(spread.sd)}"


def _seeds(arm: Arm) -> Cell:
    spread = arm.spread(AVERAGE)
    measured, total = len(spread.values) if spread else 0, len(arm.runs)
    return Cell(f"{total}" if measured == total else f"{measured} of {total}", measured)


ROLE, BASELINE = "role", "baseline"
"""How findings.json marks the runs that others are compared with, under ``model``."""
COMPARED = (AVERAGE, CONFLICTING)
ROUNDING = 1e-9
"""Differences closer than this are the same: far below what one image of a test set changes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference over the seeds that both have.

    low, high: the 95 % interval of Student's t over these seeds; None for a single one, or where all differ alike.
    n: the number of seeds.
    """

    value: float
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        """In percentage points.

        >>> str(Difference(0.05, 0.01, 0.09, 3)), str(Difference(-0.02, None, None, 1))
        ('+5.0 (+1.0 to +9.0)', '-2.0')
        """
        text = _signed(self.value)
        return (
            text if self.low is None or self.high is None else f"{text} ({_signed(self.low)} to {_signed(self.high)})"
        )


def difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Paired numbers, one pair a seed.

    >>> found = difference([0.6, 0.7, 0.8], [0.5, 0.5, 0.5])
    >>> round(found.value, 3), round(found.low, 4), round(found.high, 4)
    (0.2, -0.0484, 0.4484)
    """
    gaps = [a - b for a, b in zip(values, baseline, strict=True)]
    mean = fmean(gaps)
    if max(gaps) - min(gaps) < ROUNDING:  # no spread was seen, and none at all is not what that means
        return Difference(mean, None, None, len(gaps))
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    half = float(stdtrit(len(gaps) - 1, 0.975)) * stdev(gaps) / math.sqrt(len(gaps))
    return Difference(mean, mean - half, mean + half, len(gaps))


def against(arm: Arm, baseline: Arm, measure: Measure) -> Difference | None:
    """A measure of one arm minus the baseline's, over the seeds of both; None where seeds or data are not shared."""
    if arm.data != baseline.data:
        return None
    own, other = by_seed(arm, measure), by_seed(baseline, measure)
    shared = [seed for seed in own if seed in other]
    return difference([own[s] for s in shared], [other[s] for s in shared]) if shared else None


def by_seed(arm: Arm, measure: Measure) -> dict[str, float]:
    """The measure of each run, by its seed."""
    found: dict[str, float] = {}
    for run in arm.runs:
        spread = Arm.of(arm.label, [run]).spread(measure)
        value = finite(spread.mean) if spread is not None else None
        if value is not None:
            found[setting(run.settings.get("seed"))] = value
    return found


def baseline_of(arms: Sequence[Arm]) -> Arm | None:
    """The arm that is marked as what the others are compared with."""
    return next((arm for arm in arms if arm.runs[0].model.get(ROLE) == BASELINE), None)


def paired_table(arms: Sequence[Arm], baseline: Arm, *, extra: Mapping[str, Sequence[Cell]] | None = None) -> Table:
    """One row an arm: mean ± sample standard deviation, and the difference to the baseline with its interval.

    extra: more columns by title, a cell for each arm.
    """
    measures = [m for m in COMPARED if any(arm.spread(m) for arm in arms)]
    rows = []
    for i, arm in enumerate(arms):
        same = arm is baseline
        gaps = [None if same else against(arm, baseline, m) for m in measures]
        rows.append((
            Cell(f"{arm.label} (baseline)" if same else arm.label),
            *(spread_cell(arm.spread(m)) for m in measures),
            *(Cell("" if gap is None else str(gap), None if gap is None else gap.value) for gap in gaps),
            *(cells[i] for cells in (extra or {}).values()),
            Cell(str(len(arm.runs)), len(arm.runs)),
        ))  # fmt: skip
    columns = [
        Column("settings"),
        *(Column(f"{m.title}, %", numeric=True) for m in measures),
        *(Column(f"Δ {m.title}, points", numeric=True) for m in measures),
        *(Column(title, numeric=True) for title in extra or {}),
        Column("seeds", numeric=True),
    ]
    note = (
        f"Mean ± sample standard deviation over seeds. Δ: mean difference to {baseline.label} over the seeds of both, "
        "with its 95 % interval (Student's t on the paired differences; each row for itself, not corrected for their "
        "number); none for a single seed, or where all differ alike."
    )
    return Table("Difference to the baseline", tuple(columns), tuple(rows), note)


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{percent(abs(value))}"


CONFIDENCE = {"score": "msp"}
PLACES = {
    "bias_aligned_accuracy": "aligned",
    "bias_conflicting_accuracy": "conflicting",
    "mean_corruption_accuracy": "mean over corruptions",
}


def leads(findings: Iterable[Finding], name: str, *, parts: bool = False) -> list[tuple[Cell, ...]]:
    """Rows of :func:`paired`: how far a model leads each other one on the same samples.

    By default where checks stand in one number, as in the table of what drops; ``parts``: in all others, such as every
    group and every corruption.
    """
    found = [f for f in findings if f.check == "against" and _stands(f.where) != parts]
    p = {tuple(f.where.items()): f for f in found if f.name in CHANCES}
    rows = []
    for f in found:
        value = finite(f.value)
        if f.name != "lead" or value is None:
            continue
        chance = p.get(tuple(f.where.items()))
        rest = {k: v for k, v in f.where.items() if k != "against"}
        shown = None if chance is None else finite(chance.value)
        rows.append((
            Cell(f"{name} − {f.where.get('against', '?')}"),
            Cell(_place(rest)),
            with_interval("lead", value, f.low, f.high),
            *(_count(f.evidence.get(key)) for key in ("only_this", "only_other")),
            Cell("" if chance is None or shown is None else number(chance.name, shown), shown),
            Cell(f"{f.n:,}", f.n),
        ))  # fmt: skip
    return rows


def _place(where: Mapping[str, str]) -> str:
    """The part in the words of the table of what drops; a lead in AUROC says so, since all others are in accuracy."""
    measure = where.get("measure")
    if measure == "mean_corruption_accuracy" and where.get("strength") == "1":
        return "under corruptions"
    if measure == "robust_accuracy":
        return f"under attack, {where.get('radius')}"
    if "score" in where:
        return f"OOD images, AUROC of {where['score']}" + (f", {where['ood']}" if "ood" in where else "")
    rest = {k: v for k, v in where.items() if k != "measure"}
    return ", ".join(filter(None, (PLACES.get(str(measure)), part(rest) if rest else ""))) or "clean accuracy"


def _stands(where: Mapping[str, str]) -> bool:
    """Whether a part stands for a check: the whole test set, both sides of a shortcut, worst groups, means, radii."""
    keys = set(where) - {"against", "column", "measure"}
    alone = {k: where[k] for k in keys} in ({"strength": "1"}, CONFIDENCE)
    return alone or not keys or bool(keys & {"worst group of", "radius"})


def paired(rows: Sequence[tuple[Cell, ...]], caption: str = "Paired differences") -> Table | None:
    """Models against each other on the same samples; a single pair is named in the caption."""
    columns: tuple[Column, ...] = (
        Column("models"), Column("where"), Column("lead, points (95 %)", numeric=True),
        Column("only the first right", numeric=True), Column("only the second", numeric=True),
        Column("p", numeric=True), Column("n", numeric=True),
    )  # fmt: skip
    note = (
        "Both models on the same samples. In accuracy the interval is Bonett and Price's and the test McNemar's exact "
        "one; in AUROC both are DeLong's. Each row speaks for itself: of many, one in twenty is beyond its interval by "
        "chance, and a group that was picked as a model's worst shows that model at its worst."
    )
    if len({row[0].text for row in rows}) == 1:  # said once, names leave room for numbers
        columns, caption = columns[1:], f"{caption}: {rows[0][0].text}"
        rows = [row[1:] for row in rows]
    return Table(caption, columns, tuple(rows), note) if rows else None


def lead_sentence(findings: Iterable[Finding], name: str) -> str:
    """The first comparison on the whole test set in words; empty where there is none."""
    found = [f for f in findings if f.check == "against" and f.where.get("measure") == "accuracy"]
    lead = next((f for f in found if f.name == "lead" and finite(f.value) is not None), None)
    if lead is None or lead.value is None:
        return ""
    other = lead.where["against"]
    p = next((f.value for f in found if f.name == "mcnemar_p" and f.where == lead.where), None)
    tail = f" on the same {lead.n:,} images" + ("" if p is None else f", McNemar's p {number('mcnemar_p', p)}")
    low, high = finite(lead.low), finite(lead.high)
    span = "" if low is None or high is None else f" ({percent(low)} to {percent(high)})"
    if low is not None and high is not None and low <= 0 <= high:
        return f"{name} and {other} are level: {percent(lead.value)} points apart{span}{tail}"
    ahead = "ahead of" if lead.value > 0 else "behind"
    return f"{name} is {percent(abs(lead.value))} points {ahead} {other}{span}{tail}"


def _count(value: object) -> Cell:
    return Cell(f"{value:,}", value) if isinstance(value, int) else Cell("")
