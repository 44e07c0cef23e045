"""Runs that differ only in their seed become one arm; its findings become a mean and a spread."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from holdfast.reports.blocks import Cell, Chart
from holdfast.reports.findings_file import measure_of
from holdfast.reports.run_files import RunFiles
from holdfast.reports.svg.bars import Bar, BarRow, bar_chart
from holdfast.reports.text import SHARE, bounds, finite, missing, number, percent, setting, unit
from holdfast.settings import SAME_NUMBERS
from holdfast.types import Finding, Measure

ALWAYS_NAMED = ("data", "model", "ascent")
"""Settings that a label names whenever they vary; others only where labels would be the same."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over the seeds of an arm.

    values: one number per seed, as far as there was something to measure. n: the most samples that one rests on.
    low, high: the finding's own interval for one seed, mean ± sample standard deviation for several.
    """

    values: tuple[float, ...]
    n: int
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Spread:
        measured = [(value, f) for f in findings if (value := finite(f.value)) is not None]
        made = cls(tuple(value for value, _ in measured), max((f.n for f in findings), default=0))
        if made.mean is not None and made.sd is not None:
            return replace(made, low=made.mean - made.sd, high=made.mean + made.sd)
        return replace(made, low=finite(measured[0][1].low), high=finite(measured[0][1].high)) if measured else made

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    def differs(self, other: Spread) -> bool:
        """Whether chance hardly explains the difference of two measured spreads.

        Over several seeds by Welch's t-test at 5 %: of two or three, a gap between the standard deviations says little.
        For a single seed where the intervals share no point; without bounds, the numbers.
        """
        if self.sd is not None and other.sd is not None:
            from scipy.special import stdtrit  # type: ignore[import-untyped]

            own, their = (s.sd**2 / len(s.values) for s in (self, other) if s.sd is not None)
            parts = own**2 / (len(self.values) - 1) + their**2 / (len(other.values) - 1)
            limit = float(stdtrit((own + their) ** 2 / parts, 0.975)) * math.sqrt(own + their) if parts else 0.0
            return abs(fmean(self.values) - fmean(other.values)) > limit
        (low, high), (other_low, other_high) = (
            [fmean(s.values) if bound is None else bound for bound in (s.low, s.high)] for s in (self, other)
        )
        return low > other_high or other_low > high


def share(spread: Spread, measure: Measure = SHARE) -> str:
    """Mean and, over several seeds, sample standard deviation, without the unit; empty where there is no number.

    >>> share(Spread((0.5, 0.7), n=100)), share(Spread((0.5,), n=100))
    ('60.0 ± 14.1', '50.0')
    """
    return " ± ".join(number(measure, value) for value in (spread.mean, spread.sd) if value is not None)


def spread_cell(spread: Spread | None, best: float | None = None, *, measure: Measure | None = None) -> Cell:
    """Mean ± sample standard deviation over seeds: a share in percent, or a measure with its unit."""
    if spread is None or spread.mean is None:
        return Cell("" if spread is None else missing(spread.n))
    tail = unit(measure) if measure else ""
    return Cell(f"{share(spread, measure or SHARE)} {tail}".rstrip(), spread.mean, strong=spread.mean == best)


def figure_cell(measure: Measure, spread: Spread | None) -> Cell:
    """A number without its unit, with its standard deviation over seeds or its interval."""
    if spread is None or spread.mean is None:
        return Cell("")
    span = bounds(spread.low, spread.high, measure) if spread.sd is None else ""
    return Cell(share(spread, measure) + (f" ({span})" if span else ""), spread.mean)


@dataclass(frozen=True, slots=True)
class FindingKey:
    """Which finding: its name, its part of the data, its check. The title is a short one for tables of methods."""

    name: str
    where: tuple[tuple[str, str], ...] = ()
    check: str = "accuracy"
    title: str = field(default="", compare=False)


SEEN = "epoch chosen on the test set"
"""What is said of runs with --select oracle-test: their numbers are not results."""
AVERAGE = FindingKey("accuracy", title="clean accuracy")
ALIGNED = FindingKey("bias_aligned_accuracy", check="groups", title="bias-aligned")
CONFLICTING = FindingKey("bias_conflicting_accuracy", check="groups", title="bias-conflicting")
HARMONIC = FindingKey("harmonic_mean", check="groups", title="harmonic mean")
MEASURES = (AVERAGE, ALIGNED, CONFLICTING, HARMONIC)


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs with the same settings but for the seed, in the order they were given.

    label: as given, and marked wherever it is shown if the test set had a say in its numbers.
    number: its place among the arms of a report; one colour everywhere.
    """

    label: str
    runs: tuple[RunFiles, ...]
    found: Mapping[FindingKey, tuple[Finding, ...]]
    number: int = 0

    @classmethod
    def of(cls, label: str, runs: Sequence[RunFiles], number: int = 0) -> Arm:
        seen = any(run.settings.get("select") == "oracle-test" for run in runs)
        marked = f"{label} ({SEEN})" if seen and SEEN not in label else label
        found: dict[FindingKey, dict[int, Finding]] = defaultdict(dict)
        for i, run in enumerate(runs):
            for f in run.findings:  # the first of each run, so that one run never counts twice
                found[FindingKey(f.name, tuple(sorted(f.where.items())), f.check)].setdefault(i, f)
        return cls(marked, tuple(runs), {key: tuple(own.values()) for key, own in found.items()}, number)

    @property
    def data(self) -> str:
        run = self.runs[0]
        return named(run.settings.get("data", run.data.get("name")))

    def spread(self, key: FindingKey) -> Spread | None:
        """The finding over the seeds; None where no run has it."""
        return Spread.of(self.found[key]) if key in self.found else None

    def measured(self, key: FindingKey) -> Spread | None:
        """The same; None too where no run has a number."""
        spread = self.spread(key)
        return spread if spread is not None and spread.values else None

    def measure(self, key: FindingKey) -> Measure:
        """What the numbers of a finding are, as the first run that says so says."""
        known = next((run.measures for run in self.runs if (key.check, key.name) in run.measures), {})
        return measure_of(key.check, key.name, known)

    def parts(self, key: str) -> dict[str, Spread]:
        """Accuracy by the values of one key, such as each class, in the order of the findings."""
        return {
            measure.where[0][1]: Spread.of(findings)
            for measure, findings in self.found.items()
            if measure == FindingKey("accuracy", measure.where) and [k for k, _ in measure.where] == [key]
        }


def share_bar(name: str, arm: Arm, spread: Spread | None, *, brief: bool = False) -> Bar:
    """A share of one arm, with what a tooltip says of it. brief: without the number of samples and the interval."""
    who = f"{name}, {arm.label}"
    if spread is None or spread.mean is None:
        text = "not measured" if spread is None else spread_cell(spread).text
        return Bar(None, None, None, text, f"{who}: {text}", arm.number)
    note = f"{who}: {share(spread)} %" + ("" if brief else f", n = {spread.n:,}")
    if not brief and spread.sd is None and (span := bounds(spread.low, spread.high)):
        note += f", 95 % interval {span}"
    return Bar(spread.mean, spread.low, spread.high, percent(spread.mean), note, arm.number)


def legend(arms: Sequence[Arm]) -> tuple[tuple[int, str], ...]:
    """The colours of a chart's arms; a single one needs no name."""
    return tuple((arm.number, arm.label) for arm in arms) if len(arms) > 1 else ()


def share_chart(
    title: str,
    arms: Sequence[Arm],
    rows: Mapping[str, Sequence[Spread | None]],
    *,
    id: str,
    drawn: str = "",
    longest: int = 18,
    note: str = "",
    brief: bool = False,
) -> Chart:
    """Shares as bars with their intervals: one row per name, one bar per arm. drawn: the picture's own title."""
    bars = [
        BarRow(name, tuple(share_bar(name, *own, brief=brief) for own in zip(arms, spreads, strict=True)))
        for name, spreads in rows.items()
    ]
    return Chart(title, bar_chart(bars, id=id, title=drawn or title, longest=longest), legend(arms), note)


def arms(runs: Sequence[RunFiles], check: str = "") -> tuple[Arm, ...]:
    """Runs grouped by the settings that change a number, without the seed; a repeated seed starts a new arm. check: one
    that they have."""
    groups: dict[tuple[str, int], list[RunFiles]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for position, run in enumerate(runs):
        settings = {key: value for key, value in flat(run.settings).items() if key not in SAME_NUMBERS}
        seed = setting(settings.pop("seed", None))
        key = json.dumps(settings, sort_keys=True, default=str) if settings else f"bare {position}"
        groups[key, seen[key, seed]].append(run)
        seen[key, seed] += 1
    labels = _labels([group[0] for group in groups.values()])
    made = (Arm.of(labels[i], group, i) for i, group in enumerate(groups.values()))
    return tuple(arm for arm in made if not check or any(key.check == check for key in arm.found))


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with one level: a choice becomes its name, its own settings get a dotted key.

    >>> flat({"method": {"name": "alps", "epsilon": 0.1}, "lr": 0.05})
    {'method': 'alps', 'method.epsilon': 0.1, 'lr': 0.05}
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        own = value if isinstance(value, Mapping) and "name" in value else {"name": value}
        result |= {key: own["name"], **{f"{key}.{k}": v for k, v in own.items() if k != "name"}}
    return result


def named(value: Any) -> str:
    """The name of a choice that is a name or a mapping with one; empty for none."""
    name = value.get("name") if isinstance(value, Mapping) else value
    return "" if name is None else str(name)


def varying(mappings: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """What all mappings share, and the keys in which they differ.

    >>> varying([{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}])
    ({'lr': 0.1}, ['seed'])
    """
    given = list(mappings)
    keys = list(dict.fromkeys(key for mapping in given for key in mapping))
    differing = [k for k in keys if len({(k in m, setting(m.get(k))) for m in given}) > 1]
    return {k: given[0][k] for k in keys if k not in differing}, differing


def _labels(runs: Sequence[RunFiles]) -> list[str]:
    """A short name for each arm, such that no two are the same."""
    settings = [{k: v for k, v in flat(run.settings).items() if k != "seed"} for run in runs]
    differing = varying(settings)[1]
    labels = []
    for run, own in zip(runs, settings, strict=True):
        shown = [setting(own.get(k)) for k in ALWAYS_NAMED if k in differing and own.get(k) not in (None, "none")]
        labels.append(" · ".join([named(own.get("method")) or run.name, *shown]))
    for label in [label for label, count in Counter(labels).items() if count > 1]:
        same = [i for i, other in enumerate(labels) if other == label]
        keys = [k for k in varying(settings[i] for i in same)[1] if k not in ALWAYS_NAMED]
        for i in same:
            labels[i] = " · ".join([label, *(f"{k} {setting(settings[i].get(k))}" for k in keys)])
    counts = Counter(labels)
    labels = [f"{label} · {run.name}" if counts[label] > 1 else label for label, run in zip(labels, runs, strict=True)]
    return [f"{label} ({labels[:i].count(label) + 1})" if labels.count(label) > 1 else label
            for i, label in enumerate(labels)]  # fmt: skip
