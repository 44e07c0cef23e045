"""What an audit found, in a sentence and a table: the headline numbers, their drop from clean accuracy, and the gates.

Open it to change which numbers stand for a check, or the first sentence of a report. Which measures are headlines, and
what they are called, comes from the findings file; every number is a finding's own, or the plain difference of two that
stand beside it. Intervals are never made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from holdfast.reports.arms import (
    ALIGNED,
    AVERAGE,
    CONFLICTING,
    HARMONIC,
    Arm,
    FindingKey,
    Spread,
    figure_cell,
    share,
)
from holdfast.reports.blocks import Cell, Column, Table
from holdfast.reports.findings_file import Measures, all_measures
from holdfast.reports.text import DIFFERENCE, bounds, finite, measure_id, part, percent
from holdfast.types import Finding, Measure, Unit

CLEAN = ("accuracy", "accuracy")
"""Check and name of the measure that drops are counted from."""


def without_column(where: Mapping[str, str]) -> dict[str, str]:
    """A part without the column of groups it was taken from: gates and headlines are of every column."""
    return {key: value for key, value in where.items() if key != "column"}


def headline_parts(measure: Measure, parts: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The parts of the data that stand for a measure: what it declares, else those that say the least.

    >>> auroc = Measure("ood_auroc", "AUROC", headline_where={"score": "msp"})
    >>> headline_parts(auroc, [{"score": "msp"}, {"score": "knn"}, {"score": "msp", "ood": "noise"}])
    [{'score': 'msp'}]
    """
    given = list(parts)
    least = min((len(without_column(where)) for where in given), default=0)
    short = [where for where in given if len(without_column(where)) == least]
    return [where for where in short if where.items() >= measure.headline_where.items()] or short


def headline_findings(findings: Sequence[Finding], measures: Measures) -> Iterator[tuple[Measure, list[Finding]]]:
    """Each headline measure that was found, with the findings that stand for it; what is not confirmed does not."""
    for (check, name), measure in all_measures(measures).items():
        own = [f for f in findings if (f.check, f.name) == (check, name) and finite(f.value) is not None]
        own = [f for f in own if f.evidence.get("confirmed") is not False]
        if measure.headline and own:
            chosen = headline_parts(measure, [f.where for f in own])
            yield measure, [f for f in own if f.where in chosen]


def worst_cell(found: Finding) -> str:
    """The cell of class and group that a finding was picked for; empty where it is of none."""
    cell = found.evidence.get("cell")
    return ", ".join(f"{key} {value}" for key, value in cell.items()) if isinstance(cell, Mapping) else ""


@dataclass(frozen=True, slots=True)
class RobustnessResult:
    """One share, the higher the better, with its interval.

    name: of its measure; of a gate on another part, as the gate calls it. title, detail: what it is, and of which part.
    gate_names: how gates may call it.
    drop: how far it is below the clean accuracy of the same images, or below what the measure is compared with, with an
    interval where the findings have one; None for other shares. compared: in words, where it dropped from something
    else than the clean accuracy of the whole test set. doubt: why it is not to be trusted. changed_images: it is not of
    unmodified test images. remedies: commands that help, as its measure declares them. link: where it is explained.
    threshold, passed: the highest share that a gate asks for, and whether all gates on it passed. bounded: whether they
    judge the lower bound. guess: of clean accuracy, why it shows less than it seems: one answer for all images would be
    right as often. found_in: the part of the data as its finding has it.
    """

    name: str
    check: str
    title: str
    value: float
    low: float | None
    high: float | None
    n: int
    drop: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    threshold: float | None = None
    passed: bool = True
    bounded: bool = False
    detail: str = ""
    gate_names: tuple[str, ...] = ()
    compared: str = ""
    doubt: str = ""
    changed_images: bool = False
    remedies: tuple[str, ...] = ()
    link: str = ""
    guess: str = ""
    found_in: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_images(self) -> str:
        """A share of the whole test set in words, such as "93.1 % clean accuracy on 5,794 images"."""
        images = "1 image" if self.n == 1 else f"{self.n:,} images"
        return f"{percent(self.value)} % {self.title} on {images}{_in_brackets(self.detail, self.guess, self.doubt)}"

    @property
    def where(self) -> str:
        return self.title + _in_brackets(self.detail, self.doubt)

    def share(self, *, span: bool = False) -> str:
        """The share in words, with all that is needed to read it: what it dropped from, and on demand its interval."""
        bound = f"95 % interval {bounds(self.low, self.high)}, n = {self.n:,}" if bounds(self.low, self.high) else ""
        bound = bound if span else ""
        from_what = f"from {self.base} % {self.compared}" if self.compared else ""
        return f"{percent(self.value)} % {self.title}{_in_brackets(self.detail, from_what, bound, self.doubt)}"

    @property
    def base(self) -> str:
        """What it dropped from, in percent."""
        return percent(self.value + (self.drop or 0.0))

    def sure_drop(self, clean: RobustnessResult) -> float:
        """How far it is below at the least: the lower bound of the drop, or the gap between the two intervals."""
        if self.drop_low is not None:
            return self.drop_low
        return (self.drop or 0.0) if self.high is None or clean.low is None else clean.low - self.high

    def clear(self, clean: RobustnessResult) -> bool:
        """Whether the drop is more than chance: its interval excludes zero, or the two intervals have a gap."""
        apart = self.high is None or clean.low is None or self.high < clean.low
        return (self.drop or 0.0) > 0 and (apart if self.drop_low is None else self.drop_low > 0)


def robustness(
    findings: Sequence[Finding], measures: Measures, gates: Sequence[Mapping[str, Any]] = ()
) -> tuple[RobustnessResult, ...]:
    """The clean accuracy first, then the headline shares in the order of the checks, then what else has a gate."""
    required = [g for g in gates if g.get("kind") == "fail-under" and finite(g.get("threshold")) is not None]
    failed = {str(g.get("measure")): g.get("column") for g in required if not g["passed"]}
    found: list[RobustnessResult] = []
    clean: RobustnessResult | None = None
    for measure, own in headline_findings(findings, measures):
        if measure.unit is not Unit.PERCENT or measure.better != "higher":
            continue
        columns = [failed[name] for name in _gate_names(measure, own[0]) if failed.get(name) is not None]
        own = [f for f in own if f.where.get("column") in columns] or own
        result = _worst(measure, own, findings, clean)
        if (own[0].check, measure.name) == CLEAN:
            clean = result = _beside_one_answer(result, findings)
        found.append(result)
    judged = [_judged(r, [g for g in required if g.get("measure") in r.gate_names]) for r in found]
    known = {name for r in found for name in r.gate_names}
    others = {str(g.get("measure")): g for g in required if str(g.get("measure")) not in known}
    judged += [_judged(r, [g]) for g in others.values() if (r := _of_gate(g, measures)) is not None]
    return tuple(sorted(judged, key=lambda r: (r.check, r.name) != CLEAN))


def _beside_one_answer(clean: RobustnessResult, findings: Sequence[Finding]) -> RobustnessResult:
    """Clean accuracy with what one answer for all images would get right, where it is not clearly above that."""
    by_class = [(f.n, f.where["class"]) for f in findings if (f.check, f.name) == CLEAN and set(f.where) == {"class"}]
    total = sum(n for n, _ in by_class)
    if not total or total != clean.n:
        return clean
    most, name = max(by_class, key=lambda pair: pair[0])
    if most == total:
        return replace(clean, detail=f"all of class {name}")
    if clean.low is None or clean.low > most / total:
        return clean
    than = "worse than" if clean.high is not None and clean.high < most / total else "not clearly better than"
    return replace(clean, guess=f"{than} always answering {name}, which is right on {percent(most / total)} %")


def _gate_names(measure: Measure, finding: Finding) -> tuple[str, ...]:
    """How a gate may call a finding: by its measure where that part is its headline, and with the part behind an @."""
    where = without_column(finding.where)
    bare = (measure.name,) if where.items() >= measure.headline_where.items() else ()
    return *bare, *(f"{measure.name}@{value}" for value in where.values())


def _worst(
    measure: Measure, own: Sequence[Finding], findings: Sequence[Finding], clean: RobustnessResult | None
) -> RobustnessResult:
    """Of several parts that stand for a measure, the one that drops the most, or else the lowest."""
    made = []
    for f in own:
        drops = Spread.of([d for d in findings if (d.check, d.name, d.where) == (f.check, measure.drop, f.where)][-1:])
        value, drop, compared = f.value or 0.0, drops.mean, ""
        if drop is not None:
            named = str(f.evidence.get("compared_with") or measure.drop_from)
            compared = named or _other_base(value + drop, drops.n, clean)
        elif measure.drop and not measure.drop_from and clean is not None:
            drop = clean.value - value
        made.append(RobustnessResult(
            measure.name, f.check, measure.title, value, finite(f.low), finite(f.high), f.n,
            drop, drops.low, drops.high,
            detail=worst_cell(f) or (part(f.where) if f.where else ""), gate_names=_gate_names(measure, f),
            compared=compared, doubt=str(f.evidence.get("warning") or ""),
            changed_images=measure.changed_images, remedies=measure.remedies,
            link=measure_id(f.check, measure.name) if measure.about else "", found_in=f.where,
        ))  # fmt: skip
    every = all(r.drop is not None for r in made)
    return max(made, key=lambda r: r.drop or 0.0) if every else min(made, key=lambda r: r.value)


def _other_base(base: float, n: int, clean: RobustnessResult | None) -> str:
    """What a share dropped from, in words; empty where that is the clean accuracy of the whole test set."""
    if clean is not None and n == clean.n:
        return "" if percent(base) == percent(clean.value) else "of what it is compared with"
    return f"clean accuracy on the same {n:,} images"


def _of_gate(gate: Mapping[str, Any], measures: Measures) -> RobustnessResult | None:
    """What a gate judged that is not a headline."""
    value, (name, *parts) = finite(gate.get("value")), re.split("[@:]", str(gate.get("measure")), maxsplit=1)
    detail = "".join(parts)
    if value is None:
        return None
    title = {known: m.title for (_, known), m in all_measures(measures).items()}.get(name, name)
    low, high = finite(gate.get("low")), finite(gate.get("high"))
    check, n = str(gate.get("check") or ""), int(gate.get("n") or 0)
    return RobustnessResult(str(gate.get("measure")), check, title, value, low, high, n, detail=detail)


def _judged(result: RobustnessResult, gates: Sequence[Mapping[str, Any]]) -> RobustnessResult:
    threshold = max((float(g["threshold"]) for g in gates), default=None)
    bounded = any(g.get("fail_on") == "low" for g in gates)
    return replace(result, threshold=threshold, passed=all(g["passed"] for g in gates), bounded=bounded)


def summary_sentence(found: Sequence[RobustnessResult]) -> str:
    """In words: the clean accuracy, what drops from it and by how much, what does not, and which gates failed."""
    rest = [f"{word} {text}" for word, text in drop_clauses(found)]
    return "; ".join([found[0].on_images, *rest]) if rest else ""


def drop_clauses(found: Sequence[RobustnessResult]) -> list[tuple[str, str]]:
    """The sentence in parts: what it is about, and what it says; none where clean accuracy is all there is."""
    if not found or (found[0].check, found[0].name) != CLEAN:
        return []
    dropping = sorted((r for r in found if r.clear(found[0])), key=lambda r: -(r.drop or 0.0))
    # What is lower by chance perhaps stands with its interval; of what failed its gate, that clause says it.
    others = [r for r in found if r.drop is not None and r not in dropping and r.passed]
    unsure, level = ([r for r in others if ((r.drop or 0.0) > 0) == lower] for lower in (True, False))
    said = []
    if dropping:
        said.append(("drops to", ", ".join(r.share() for r in dropping)))
    if unsure:
        said.append(("not clearly lower:", ", ".join(r.share(span=True) for r in unsure)))
    if level:
        said.append(("no drop:", ", ".join(r.share() for r in level)))
    failed = [_failed(r) for r in found if not r.passed and r.threshold is not None]
    if failed:
        said.append(("gate failed:" if len(failed) == 1 else "gates failed:", "; ".join(failed)))
    return said


def _failed(result: RobustnessResult) -> str:
    """What a failed gate says, such as "clean accuracy 47.2 %, 95 % interval 42.9 to 51.5, must be at least 60.0"."""
    low, high, asked = finite(result.low), finite(result.high), result.threshold or 0.0
    judged = low if result.bounded and low is not None else result.value
    # With as many digits as tell the two apart: 69.96 is not 70.0.
    digits = next((d for d in (1, 2, 3) if round(100 * judged, d) < round(100 * asked, d)), 4)
    value, least = (f"{100 * share:.{digits}f}" for share in (result.value, asked))
    span = "" if low is None or high is None else f", 95 % interval {100 * low:.{digits}f} to {100 * high:.{digits}f}"
    return f"{result.where} {value} %{span}, {'lower bound ' * result.bounded}must be at least {least}"


def _in_brackets(*words: str) -> str:
    given = "; ".join(filter(None, words))
    return f" ({given})" if given else ""


def drop_table(found: Sequence[RobustnessResult], caption: str) -> Table:
    """One row per share: how much, how far below the clean accuracy, and what its gate asks for."""
    gated = any(r.threshold is not None for r in found)
    rows = []
    for r in found:
        drop = None if r.drop is None else Spread((r.drop,), r.n, r.drop_low, r.drop_high)
        judged = " at the lower bound" * r.bounded + " FAILED" * (not r.passed)
        text = "" if r.threshold is None else percent(r.threshold) + judged
        asked = [Cell(text, r.threshold, strong=not r.passed)] if gated else []
        base = Cell("" if drop is None else f"{r.base} {r.compared or 'clean accuracy'}")
        cells = (Cell(r.title, link=r.link), Cell(percent(r.value), r.value), figure_cell(DIFFERENCE, drop), base)
        rows.append((*cells, *asked))
    columns = Column.texts("measure") + Column.numbers("value, %", "drop, points (95 %)") + Column.texts("from, %")
    return Table(caption, columns + (Column.numbers("at least, %") if gated else ()), tuple(rows))


CONFLICTING_SAMPLES = "on bias-conflicting samples"
MOST_ARMS = 3
"""Of more models than that, the first sentence does not say one by one how far they are."""


def arm_sentence(arm: Arm) -> str:
    average, aligned, conflicting = (arm.measured(m) for m in (AVERAGE, ALIGNED, CONFLICTING))
    if average is None:
        return f"{arm.label}: {_detection(arm) or _map(arm) or _progress(arm)}"
    first = f"{arm.label}: {share(average)} % clean accuracy"
    if aligned is None or conflicting is None:
        return first + weakest_part(arm)
    drop = fmean(aligned.values) - fmean(conflicting.values)
    change = f"{'drops' if drop > 0 else 'gains'} {percent(abs(drop))} points"
    change = change if aligned.differs(conflicting) else "no clear drop"
    numbers = f"{share(aligned)} % bias-aligned, {share(conflicting)} % bias-conflicting"
    return f"{first}, {numbers}: {change} {CONFLICTING_SAMPLES}"


def arms_verdict(arms: Sequence[Arm]) -> str:
    """All arms in one sentence: which is ahead on both sides of a shortcut, or else on all samples, and by how much."""
    if len(arms) == 1:
        return arm_sentence(arms[0])
    if len(sets := {arm.data for arm in arms}) > 1:
        return f"{len(arms)} models on {len(sets)} data sets; numbers on different sets are not compared"
    on_both = (HARMONIC, "in the harmonic mean of bias-aligned and bias-conflicting accuracy")
    for measure, where in (on_both, (CONFLICTING, CONFLICTING_SAMPLES), (AVERAGE, "in clean accuracy")):
        found = [(arm, spread) for arm in arms if (spread := arm.measured(measure)) is not None]
        ranked = sorted(found, key=lambda pair: -fmean(pair[1].values))
        if len(ranked) < 2:
            continue
        (first, top), (second, next_) = ranked[:2]
        lead = percent(fmean(top.values) - fmean(next_.values))
        if not top.differs(next_):
            both = f"{first.label} and {second.label} do not clearly differ {where}: "
            if share(top) == share(next_):
                return f"{both}both have {share(top)} %"
            return f"{both}{share(top)} % and {share(next_)} %, {lead} points apart, which chance may explain"
        return f"{first.label} is ahead {where}: {share(top)} %, {lead} points above {second.label}"
    if len(arms) > MOST_ARMS:
        return f"{len(arms)} models; no accuracy was measured"
    return "; ".join(arm_sentence(arm) for arm in arms)


def weakest_part(arm: Arm) -> str:
    """The lowest group or class in words, a semicolon before it; empty where there are no parts, or all are alike."""
    for key in ("group", "class"):
        parts = {name: s for name, s in arm.parts(key).items() if s.values}
        if len({share(spread) for spread in parts.values()}) > 1:  # of equal ones none is the weakest
            name, spread = min(parts.items(), key=lambda item: fmean(item[1].values))
            # the lowest of many small parts is low by chance: so many, and of so many images
            kinds = {"group": "groups", "class": "classes"}[key]
            return f"; lowest of {len(parts):,} {kinds}: {name}, {share(spread)} % of {spread.n:,} images"
    return ""


def fitted_on(arm: Arm) -> str:
    """Which of the images that a detector is evaluated on it was fitted on; "" where none."""
    counts: Any = next((f.settings.get("fitted_on") for f in arm.found.get(_fused("auroc"), ())), None)
    words = [f"{n:,} {kind}" for kind, n in counts.items() if n] if isinstance(counts, Mapping) else []
    return f"{' and '.join(words)} images" if words else ""


def _fused(name: str) -> FindingKey:
    return FindingKey(name, (("score", "fused"),), "detect")


def _detection(arm: Arm) -> str:
    """What a detector finds and how many false alarms it gives."""
    auroc, recall, alarms = (arm.measured(_fused(name)) for name in ("auroc", "recall", "false_alarm_rate"))
    if auroc is None:
        return ""
    seen = fitted_on(arm)
    words = f"evaluated on {seen} that it was fitted on: " if seen else ""
    words += f"tells anomalies from normal images with an AUROC of {share(auroc)} %"
    if recall is None or alarms is None:
        return words
    return f"{words}; at its threshold it flags {share(recall)} % of them and {share(alarms)} % of the normal ones"


def _map(arm: Arm) -> str:
    """How far the classes of a described set lie apart."""
    linear, near = (arm.measured(FindingKey(name, (), "describe")) for name in ("linear", "knn"))
    if linear is not None and near is not None:
        probe = f"from its code a linear probe tells the class of {share(linear)} % of images"
        return f"{probe}, neighbours of {share(near)} %"
    drawn = [f.n for m, found in arm.found.items() if (m.check, m.name) == ("describe", "map") for f in found]
    return f"a map of {drawn[0]:,} images without labels" if drawn else ""


def _progress(arm: Arm) -> str:
    last = [run.metrics[-1] for run in arm.runs if run.metrics]
    epochs = ", ".join(str(record.get("epoch", "?")) for record in last)
    checks = dict.fromkeys(f.check for run in arm.runs for f in run.findings if finite(f.value) is not None)
    text = f"no clean accuracy; measured: {', '.join(checks)}" if checks else "nothing measured yet"
    text += f"; trained to epoch {epochs}" if last else ""
    accuracy = finite(last[0].get("train_accuracy")) if len(last) == 1 else None
    return text if accuracy is None else f"{text}, {percent(accuracy)} % on the training set"
