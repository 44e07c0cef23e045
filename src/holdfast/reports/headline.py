"""What was found, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from holdfast.reports.summary import ALIGNED, AVERAGE, CONFLICTING, Arm, Measure, Spread
from holdfast.reports.tables import share
from holdfast.reports.text import finite, percent

SHORTCUT = "where the shortcut contradicts the class"


def sentence(arm: Arm) -> str:
    """One arm: its numbers, then what drops."""
    average, aligned, conflicting = (_measured(arm, m) for m in (AVERAGE, ALIGNED, CONFLICTING))
    if average is None:
        return f"{arm.label}: {_progress(arm)}"
    numbers = [f"{share(average)} % on average"]
    if aligned is None or conflicting is None:
        weakest = _weakest(arm)
        return f"{arm.label}: " + ", ".join(numbers) + (f"; {weakest}" if weakest else "")
    numbers += [f"{share(aligned)} % aligned", f"{share(conflicting)} % conflicting"]
    return f"{arm.label}: {', '.join(numbers)}: {_drop(aligned, conflicting)}"


def verdict(arms: Sequence[Arm]) -> str:
    """All arms in one sentence: which is ahead on the hardest part, and by how much."""
    if len(arms) == 1:
        return sentence(arms[0])
    if len(sets := {arm.data for arm in arms}) > 1:
        return f"{len(arms)} trainings on {len(sets)} data sets; numbers on different sets are not compared"
    for measure, where in ((CONFLICTING, SHORTCUT), (AVERAGE, "on average")):
        ranked = _ranked(arms, measure)
        if len(ranked) < 2:
            continue
        (first, top), (second, next_) = ranked[:2]
        lead = percent(_mean(top) - _mean(next_))
        if top.overlaps(next_):
            return (
                f"{first.label} and {second.label} are level {where}: "
                f"{share(top)} % and {share(next_)} %, {lead} points apart, intervals overlap"
            )
        return f"{first.label} is ahead {where}: {share(top)} %, {lead} points above {second.label}"
    return "; ".join(sentence(arm) for arm in arms)


def _ranked(arms: Sequence[Arm], measure: Measure) -> list[tuple[Arm, Spread]]:
    measured = [(arm, spread) for arm in arms if (spread := _measured(arm, measure)) is not None]
    return sorted(measured, key=lambda pair: -_mean(pair[1]))


def _measured(arm: Arm, measure: Measure) -> Spread | None:
    spread = arm.spread(measure)
    return spread if spread is not None and spread.values else None


def _mean(spread: Spread) -> float:
    return fmean(spread.values)


def _drop(aligned: Spread, conflicting: Spread) -> str:
    drop = _mean(aligned) - _mean(conflicting)
    if aligned.overlaps(conflicting):
        return f"no clear drop {SHORTCUT}"
    return f"{'drops' if drop > 0 else 'gains'} {percent(abs(drop))} points {SHORTCUT}"


def _weakest(arm: Arm) -> str:
    for key in ("group", "class"):
        parts = {name: s for name, s in arm.parts(key).items() if s.values}
        if len(parts) > 1:
            name, spread = min(parts.items(), key=lambda item: _mean(item[1]))
            return f"weakest {key}: {name}, {share(spread)} %"
    return ""


def _progress(arm: Arm) -> str:
    last = [run.metrics[-1] for run in arm.runs if run.metrics]
    if not last:
        return "nothing measured yet"
    epochs = [str(record.get("epoch", "?")) for record in last]
    text = f"nothing measured yet; trained to epoch {', '.join(epochs)}"
    accuracy = finite(last[0].get("train_accuracy")) if len(last) == 1 else None
    return text if accuracy is None else f"{text}, {percent(accuracy)} % on the training set"
