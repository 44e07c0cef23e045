"""What was found, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from holdfast.reports.arms import ALIGNED, AVERAGE, CONFLICTING, Arm, Measure, Spread
from holdfast.reports.report_tables import share
from holdfast.reports.text import finite, percent

SHORTCUT = "where the shortcut contradicts the class"


def sentence(arm: Arm) -> str:
    """One arm: its numbers, then what drops."""
    average, aligned, conflicting = (_measured(arm, m) for m in (AVERAGE, ALIGNED, CONFLICTING))
    if average is None:
        return f"{arm.label}: {_detection(arm) or _map(arm) or _progress(arm)}"
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
        return f"{len(arms)} models on {len(sets)} data sets; numbers on different sets are not compared"
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


def _detection(arm: Arm) -> str:
    """What a detector finds and what it alarms for nothing."""
    names = ("auroc", "recall", "false_alarm_rate")
    auroc, recall, alarms = (_measured(arm, Measure(name, (("score", "fused"),), "detect")) for name in names)
    if auroc is None:
        return ""
    told = f"tells anomalies from normal images with an AUROC of {share(auroc)} %"
    if recall is None or alarms is None:
        return told
    return f"{told}; at its threshold it flags {share(recall)} % of them and {share(alarms)} % of the normal ones"


def _map(arm: Arm) -> str:
    """How far the classes of a described set lie apart."""
    linear, near = (_measured(arm, Measure(name, (), "describe")) for name in ("linear", "knn"))
    if linear is not None and near is not None:
        return f"its code gives away the class of {share(linear)} % to a linear probe, of {share(near)} % to neighbours"
    drawn = [f.n for m, found in arm.found.items() if (m.check, m.name) == ("describe", "map") for f in found]
    return f"a map of {drawn[0]:,} images without labels" if drawn else ""


def _progress(arm: Arm) -> str:
    last = [run.metrics[-1] for run in arm.runs if run.metrics]
    if not last:
        return "nothing measured yet"
    epochs = [str(record.get("epoch", "?")) for record in last]
    text = f"nothing measured yet; trained to epoch {', '.join(epochs)}"
    accuracy = finite(last[0].get("train_accuracy")) if len(last) == 1 else None
    return text if accuracy is None else f"{text}, {percent(accuracy)} % on the training set"
