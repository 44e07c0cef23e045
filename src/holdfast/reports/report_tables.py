"""Tables that several renderings share: findings, methods over seeds, a baseline, model against model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from holdfast.reports.arms import (
    ALIGNED,
    AVERAGE,
    CONFLICTING,
    HARMONIC,
    MEASURES,
    Arm,
    FindingKey,
    Spread,
    figure_cell,
    named,
    share,
    spread_cell,
)
from holdfast.reports.blocks import Cell, Column, Details, Table
from holdfast.reports.findings_file import AGAINST, Measures, all_measures, is_known, measure_of
from holdfast.reports.robustness_summary import headline_parts, without_column
from holdfast.reports.run_files import RunFiles
from holdfast.reports.text import DIFFERENCE, P_VALUE, bounds, finite, interval, missing, part, percent, quantity
from holdfast.types import Finding, Note, Unit

ALPHA = 0.05
"""A model is said to be ahead of another where p is below this."""
MOST_NUMBERS = 5000


def method_table(arms: Sequence[Arm]) -> Table:
    """One row per arm, one column per measure that some arm has; in percent."""
    measures = [m for m in MEASURES if any(arm.spread(m) for arm in arms)]
    comparable = len(arms) > 1 and len({arm.data for arm in arms}) == 1
    means = {m: [s.mean for arm in arms if (s := arm.spread(m)) and s.mean is not None] for m in measures}
    best = {m: max(own) for m, own in means.items() if own and comparable}
    budget = budget_columns(arms)
    rows = []
    for i, arm in enumerate(arms):
        cells = [spread_cell(arm.spread(m), best.get(m)) for m in measures]
        rows.append((Cell(arm.label), *cells, *(own[i] for own in budget.values()), seeds_cell(arm)))
    columns = Column.texts("method") + Column.numbers(*(f"{m.title}, %" for m in measures), *budget, "seeds")
    bold = "Bold: the highest of its column." if comparable and measures else ""
    notes = [over_seeds(arms), bold, PASSES if budget else ""]
    return Table("Accuracy by method", columns, tuple(rows), " ".join(filter(None, notes)))


PASSES = (
    "Epochs: of each stage. Passes: forward and backward passes over the training set, those of attacks and auxiliary "
    "models included, where plain training takes one per epoch; pretraining is not in it."
)


def budget_columns(arms: Sequence[Arm]) -> dict[str, list[Cell]]:
    """What each arm was trained for, a cell per arm; nothing where no run has counted it."""
    budgets = [[budget(run) for run in arm.runs] for arm in arms]
    if not any(passes for own in budgets for _, passes in own):
        return {}
    epochs = [Cell(", ".join(dict.fromkeys(text for text, _ in own))) for own in budgets]
    counted = ([passes for _, passes in own if passes is not None] for own in budgets)
    means = [fmean(own) if own else None for own in counted]
    shown = [Cell("" if mean is None else f"{mean:,.1f}".removesuffix(".0"), mean) for mean in means]
    return {"epochs": epochs, "passes": shown}


def budget(run: RunFiles) -> tuple[str, float | None]:
    """(epochs of each stage, as "20 + 3", pretraining first; passes over the training set, None if not counted)."""
    stages = Counter(str(record.get("stage")) for record in run.metrics)
    pretrained = run.settings.get("pretrain", "none") != "none"
    epochs = [run.settings.get("pretrain_for")] * pretrained + list(stages.values())
    counted = [finite(record.get("passes")) for record in run.metrics]
    return " + ".join(map(str, epochs)), None if None in counted or not counted else sum(filter(None, counted))


def over_seeds(arms: Sequence[Arm]) -> str:
    """How to read numbers with a ±; empty where no arm has several seeds."""
    return "Mean ± sample standard deviation over seeds." if any(len(arm.runs) > 1 for arm in arms) else ""


def run_table(arms: Sequence[Arm]) -> Table:
    """One row per run, with the numbers of :func:`method_table` before they are averaged."""
    measures = [m for m in MEASURES if any(arm.spread(m) for arm in arms)]
    alone = [(run.name, Arm.of(arm.label, [run])) for arm in arms for run in arm.runs]
    rows = ((Cell(name), Cell(one.label), *(spread_cell(one.spread(m)) for m in measures)) for name, one in alone)
    columns = Column.texts("run", "method") + Column.numbers(*(f"{m.title}, %" for m in measures))
    return Table("Accuracy of each run", columns, tuple(rows))


def findings_list(items: Iterable[Finding], measures: Measures, *, caption: str = "Findings") -> Table:
    kept = (f for f in items if f.value is not None or is_known(f.check, f.name, measures))  # others are evidence alone
    rows = tuple((Cell(f.name), Cell(part(f.where)), *finding_cells(f, measures)) for f in kept)
    return Table(caption, Column.texts("measure", "part") + Column.numbers("value", "95 % interval", "n"), rows)


def all_numbers(arms: Sequence[Arm], check: str, also: Sequence[FindingKey] = ()) -> Details:
    """What a section of a check ends with: all findings of each run, while the page stays short. also: others'."""
    tables, left, most = [], [], MOST_NUMBERS
    shown_too = {(key.check, key.name) for key in also}
    runs = [(arm, run) for arm in arms for run in arm.runs]
    for arm, run in runs:
        name = f"{run.name} ({arm.label})" if len(runs) > 1 and run.name != arm.label else run.name
        own = [f for f in run.findings if f.check == check or (f.check, f.name) in shown_too]
        most -= len(own)
        if own and most >= 0:
            tables.append(findings_list(own, run.measures, caption=f"Findings of {name}"))
        elif own:
            left.append((Cell(name), Cell(f"{len(own):,}", len(own))))
    if left:
        columns = Column.texts("run") + Column.numbers("findings")
        tables.append(Table("Runs whose numbers are in their findings.json only", columns, tuple(left)))
    return Details("All numbers", tuple(tables))


def measure_table(arms: Sequence[Arm], check: str, caption: str) -> Table | None:
    """One row per measure of a check and part of the data, one column per arm; None where there is no number."""
    keys = list(dict.fromkeys(key for arm in arms for key in arm.found if key.check == check))
    known = {k for k in keys if any(is_known(check, k.name, run.measures) for arm in arms for run in arm.runs)}
    keys = [k for k in keys if k in known or any(s.values for arm in arms if (s := arm.spread(k)))]
    cells = ([spread_cell(arm.spread(key), measure=arm.measure(key)) for arm in arms] for key in keys)
    names = ((Cell(arms[0].measure(key).title), Cell(part(dict(key.where)))) for key in keys)
    rows = tuple((*name, *own) for name, own in zip(names, cells, strict=True))
    columns = Column.texts("measure", "part") + Column.numbers(*(arm.label for arm in arms))
    notes = [over_seeds(arms), *(f"{arm.label}: {reason}." for arm in arms for reason in reasons(arm, check))]
    return Table(caption, columns, rows, " ".join(filter(None, notes))) if rows else None


def reasons(arm: Arm, check: str) -> list[str]:
    """Why findings of a check have no number, each reason once."""
    found = [f for key, own in arm.found.items() if key.check == check for f in own]
    return list(dict.fromkeys(str(f.evidence["reason"]) for f in found if "reason" in f.evidence))


def why_empty(arms: Sequence[Arm], check: str) -> str:
    return next((reason for arm in arms for reason in reasons(arm, check)), "nothing was found")


def finding_cells(finding: Finding, measures: Measures) -> tuple[Cell, Cell, Cell]:
    value, span = shown(finding, measures)
    return Cell(value, finite(finding.value)), Cell(span, finite(finding.low)), _count(finding.n)


def shown(finding: Finding, measures: Measures) -> tuple[str, str]:
    value, measure = finite(finding.value), measure_of(finding.check, finding.name, measures)
    text = quantity(measure, value) if finding.n and value is not None else missing(finding.n)
    return text, interval(measure, finding.low, finding.high)


def seeds_cell(arm: Arm, key: FindingKey = AVERAGE) -> Cell:
    """How many runs of an arm have a number, and of how many."""
    spread = arm.spread(key)
    measured, total = len(spread.values) if spread else 0, len(arm.runs)
    return Cell(f"{total}" if measured == total else f"{measured} of {total}", measured)


ROLE, BASELINE = "role", "baseline"
"""How findings.json marks the runs that others are compared with, under ``model``."""
PLAIN_TRAINING = "erm"
"""The method that others are compared with, where nothing else was named as the baseline."""
COMPARED = (AVERAGE, ALIGNED, CONFLICTING)
RANKED_BY = (HARMONIC, CONFLICTING, AVERAGE)
"""What the best arm is best by: the first that was measured. The harmonic mean is high only where both sides are."""
ROUNDING = 1e-9
"""Differences closer than this are the same: far below what one image of a test set changes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of two shares over the seeds that both have.

    low, high: the 95 % interval of Student's t over these seeds, as far as two shares can be apart; None for a single
    one, or where all differ alike.
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
        given = [v for v in (self.value, self.low, self.high) if v is not None]
        value, *ends = [f"{'-' if v < 0 else '+'}{percent(abs(v))}" for v in given]
        return f"{value} ({' to '.join(ends)})" if ends else value


def difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Paired shares, one pair per seed.

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
    # no true difference lies beyond: what is cut off makes the interval cover no less
    return Difference(mean, max(-1.0, mean - half), min(1.0, mean + half), len(gaps))


def against(arm: Arm, baseline: Arm, measure: FindingKey) -> Difference | None:
    """A measure of one arm minus the baseline's, over the seeds of both; None where seeds or data are not shared."""
    if arm.data != baseline.data:
        return None
    own, other = by_seed(arm, measure), by_seed(baseline, measure)
    shared = [seed for seed in own if seed in other]
    return difference([own[s] for s in shared], [other[s] for s in shared]) if shared else None


def by_seed(arm: Arm, measure: FindingKey) -> dict[str, float]:
    found = ((run, Arm.of(arm.label, [run]).spread(measure)) for run in arm.runs)
    return {str(run.settings.get("seed")): s.mean for run, s in found if s is not None and s.mean is not None}


def baseline_of(arms: Sequence[Arm]) -> Arm | None:
    return next((arm for arm in arms if arm.runs[0].model.get(ROLE) == BASELINE), None)


def baseline_arm(arms: Sequence[Arm]) -> Arm | None:
    """What others are compared with: as the files mark it, or plain training."""
    return baseline_of(arms) or next((arm for arm in arms if method_of(arm) == PLAIN_TRAINING), None)


def best_arm(arms: Sequence[Arm]) -> tuple[Arm, FindingKey]:
    """The best of several arms, and what it is best by. One that turned the shortcut upside down only if all did."""
    key = next((key for key in RANKED_BY if any(arm.measured(key) for arm in arms)), AVERAGE)
    kept = [arm for arm in arms if turned_upside_down(arm) is None] or arms
    return max(kept, key=lambda arm: spread.mean or 0.0 if (spread := arm.measured(key)) else -1.0), key


def turned_upside_down(arm: Arm) -> Note | None:
    """A warning where a method follows the shortcut against its meaning: clearly worse than chance on bias-aligned
    samples, and better on bias-conflicting ones."""
    aligned, conflicting, chance = arm.measured(ALIGNED), arm.measured(CONFLICTING), chance_of(arm)
    if aligned is None or conflicting is None or chance is None or not aligned.differs(conflicting):
        return None
    if fmean(aligned.values) >= fmean(conflicting.values) or fmean(aligned.values) >= chance:
        return None
    if aligned.high is not None and aligned.high >= chance:
        return None
    text = (
        f"{arm.label} turned the shortcut upside down: {share(aligned)} % on bias-aligned samples, where guessing has "
        f"{percent(chance)} %, and {share(conflicting)} % on bias-conflicting ones"
    )
    remedy = "change its settings or take another method, and judge it on bias-aligned samples too"
    return Note("shortcut-upside-down", text, remedy, "warning")


def chance_of(arm: Arm) -> float | None:
    """What guessing gets right of as many classes as the data names; None where it names none."""
    classes = arm.runs[0].data.get("classes")
    return 1 / len(classes) if isinstance(classes, (list, tuple)) and classes else None


def method_of(arm: Arm) -> str:
    return named(arm.runs[0].settings.get("method"))


def paired_table(arms: Sequence[Arm], baseline: Arm, *, extra: Mapping[str, Sequence[Cell]] | None = None) -> Table:
    """One row per arm: mean ± standard deviation, difference to the baseline. extra: more columns, a cell per arm."""
    measures = [m for m in COMPARED if any(arm.spread(m) for arm in arms)]
    differing = [m for m in measures if m != ALIGNED]  # a terminal has no room for more; its losses show in its column
    rows = []
    extra = {**budget_columns(arms), **(extra or {})}
    for i, arm in enumerate(arms):
        same = arm is baseline
        gaps = [None if same else against(arm, baseline, m) for m in differing]
        rows.append((
            Cell(f"{arm.label} (baseline)" if same else arm.label),
            *(spread_cell(arm.spread(m)) for m in measures),
            *(Cell("" if gap is None else str(gap), None if gap is None else gap.value) for gap in gaps),
            *(cells[i] for cells in extra.values()),
            Cell(str(len(arm.runs)), len(arm.runs)),
        ))  # fmt: skip
    titles = [f"{m.title}, %" for m in measures] + [f"Δ {m.title}, points" for m in differing]
    columns = Column.texts("settings") + Column.numbers(*titles, *extra, "seeds")
    note = (
        f"Mean ± sample standard deviation over seeds. Δ: mean difference to {baseline.label} over the seeds of both, "
        "with its 95 % interval (Student's t on the paired differences, not corrected for the number of rows). A "
        "single seed has no interval, nor have seeds that all differ by the same."
    ) + (f" {PASSES}" if "passes" in extra else "")
    return Table("Difference to the baseline", columns, tuple(rows), note)


def leads(findings: Sequence[Finding], measures: Measures, name: str, *, parts: bool = False) -> list[tuple[Cell, ...]]:
    """Rows of :func:`paired`: leads in the parts that stand for a check, as in the table of drops; parts: in others."""
    own = (f for f in findings if f.check == AGAINST)
    p = {tuple(f.where.items()): f for f in own if measure_of(f.check, f.name, measures).unit is Unit.P_VALUE}
    rows = []
    for f, place in ((f, place) for f, place, stands in all_leads(findings, measures) if stands != parts):
        only = [_count(f.evidence.get(key)) for key in ("only_this", "only_other")]
        models, chance = Cell(f"{name} − {f.where.get('against', '?')}"), Cell(*_chance(p.get(tuple(f.where.items()))))
        rows.append((models, Cell(place), figure_cell(DIFFERENCE, Spread.of([f])), *only, chance, _count(f.n)))
    return rows


def _chance(found: Finding | None) -> tuple[str, float | None]:
    """A p-value as it is shown and as a number: the corrected one, or that it is not (files of older versions)."""
    value = None if found is None else finite(found.value)
    if found is None or value is None:
        return "", None
    adjusted = finite(found.evidence.get("adjusted_p"))
    if adjusted is None:
        return f"{quantity(P_VALUE, value)} (not corrected)", value
    return quantity(P_VALUE, adjusted), adjusted


def significance(findings: Iterable[Finding], lead: Finding) -> float | None:
    """The p-value that stands beside a lead, corrected where the findings have it so; None where there is none."""
    same = (f for f in findings if f.check == AGAINST and f.name != "lead" and f.where == lead.where)
    return next((p for f in same if (p := _chance(f)[1]) is not None), None)


def all_leads(findings: Sequence[Finding], measures: Measures) -> Iterator[tuple[Finding, str, bool]]:
    """Every lead with its words, the measure it is in and the part of the data, and whether it stands for a check."""
    known = {name: m for (_, name), m in all_measures(measures).items()}
    found: list[tuple[Finding, tuple[str, str], dict[str, str]]] = []
    parts: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for f in findings:
        if f.check == AGAINST and f.name == "lead" and finite(f.value) is not None:
            pair = f.where.get("against", ""), f.where.get("measure", "")
            rest = {key: value for key, value in f.where.items() if key not in ("against", "measure")}
            found.append((f, pair, rest))
            parts[pair].append(rest)
    standing = {pair: headline_parts(m, own) for pair, own in parts.items() if (m := known.get(pair[1])) and m.headline}
    for f, pair, rest in found:
        words = [known[pair[1]].title if pair[1] in known else pair[1], part(rest) if rest else ""]
        stands = rest in standing.get(pair, ()) or not without_column(rest) or "worst cell of" in f.where
        yield f, ", ".join(filter(None, words)), stands


def _count(value: object) -> Cell:
    return Cell(f"{value:,}", value) if isinstance(value, int) else Cell("")


def paired(rows: Sequence[tuple[Cell, ...]], caption: str = "Paired differences") -> Table | None:
    """Models against each other on the same samples; a single pair is named in the caption."""
    titles = ("lead, points (95 %)", "only the first right", "only the second right", "p", "n")
    columns = Column.texts("models", "measure") + Column.numbers(*titles)
    note = (
        "Both models on the same images. Accuracy: Bonett and Price's interval and McNemar's exact test; AUROC: "
        "DeLong's. p is corrected for all comparisons of the audit (Holm). The intervals are not: of twenty, "
        "expect one to miss. A cell that was picked because one model is worst there makes that model look worse than "
        "it is."
    )
    if len({row[0].text for row in rows}) == 1:  # said once, names leave room for numbers
        columns, caption = columns[1:], f"{caption}: {rows[0][0].text}"
        rows = [row[1:] for row in rows]
    return Table(caption, columns, tuple(rows), note) if rows else None


def lead_sentence(findings: Iterable[Finding], name: str, *, brief: bool = False) -> str:
    """The first comparison on the whole test set in words; empty where there is none. brief: without p."""
    found = [f for f in findings if f.check == AGAINST and set(f.where) == {"against", "measure"}]
    found = [f for f in found if f.where["measure"] == AVERAGE.name]
    lead = next((f for f in found if f.name == "lead" and finite(f.value) is not None), None)
    if lead is None or lead.value is None:
        return ""
    other, ahead = lead.where["against"], lead.value >= 0
    p = next((f for f in found if f.name == "mcnemar_p" and f.where == lead.where), None)
    tail = f" on the same {lead.n:,} images" + (
        f", McNemar's p = {_chance(p)[0]}" if p is not None and not brief else ""
    )
    if p is not None and not brief and (many := p.evidence.get("comparisons", 1)) > 1:
        tail += f" ({p.evidence['correction']}'s correction for {many} comparisons)"
    low, high = finite(lead.low), finite(lead.high)
    if not ahead:  # the interval of what is said: how far behind
        low, high = (None if end is None else -end for end in (high, low))
    gap, between = f"{percent(abs(lead.value))} points", bounds(low, high)
    by_chance = (_chance(p)[1] or 0.0) >= ALPHA  # a lead and a p that speaks against it do not stand together
    covers_zero = low is None or high is None or low <= 0 <= high
    span = f" (95 % interval {between}{', not corrected' * (by_chance and not covers_zero)})" if between else ""
    if by_chance or (between and covers_zero):
        both = f"{name} and {other}" if ahead else f"{other} and {name}"
        return f"{both} do not clearly differ in clean accuracy: {gap} apart{span}{tail}"
    return f"{name} is {gap} {'ahead of' if ahead else 'behind'} {other} in clean accuracy{span}{tail}"
