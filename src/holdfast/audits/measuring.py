"""Every check of a model in turn, each ending in a state of its own: one that fails does not take the others along.

Open this file to change how checks run: memory, time budgets, and results that an interrupted audit left behind.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import torch

import holdfast
from holdfast.audits.audit_data import Tell
from holdfast.audits.open_models import AuditedModel
from holdfast.audits.shard_rows import hash_of
from holdfast.audits.subject import Subject
from holdfast.errors import HoldfastError, first_line, raise_interruption, require
from holdfast.parts import CHECKS
from holdfast.reports.findings_file import CheckRecord, finding, write_json
from holdfast.train.progress import Progress
from holdfast.types import Finding, Note

FORMAT: Final = "holdfast-check"


@dataclass(frozen=True, slots=True)
class CheckOutcome(CheckRecord):
    """What became of one check, with its findings: none where it crashed or was skipped."""

    findings: tuple[Finding, ...] = ()

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What was noted of the check, or stands beside its findings, that changes how to read them; each once."""
        beside = (text for f in self.findings if isinstance(text := f.evidence.get("warning"), str))
        return (
            *(note for note in self.notes if note.level == "warning"),
            *(Note(self.name, text, level="warning") for text in dict.fromkeys(beside)),
        )


def measure(name: str, subject: Subject, made: Any = None) -> CheckOutcome:
    """One check on a subject, in whatever state it ends; only an interrupt comes through.

    made: the check with its settings; by default, with its defaults. Where memory runs out the batch is halved until it
    is 1; what was computed before is kept.
    """
    check = CHECKS[name].made() if made is None else made
    started = time.perf_counter()
    notes: list[Note] = []

    def ended(state: str, reason: str = "", found: tuple[Finding, ...] = ()) -> CheckOutcome:
        settings, seconds = given_settings(check), time.perf_counter() - started
        return CheckOutcome(name, state, reason, "", "", settings, seconds, tuple(notes), findings=found)

    while True:
        try:
            found = tuple(finite(f) for f in check.run(subject))
        except torch.OutOfMemoryError as error:
            if subject.batch_size == 1:
                return ended("crashed", f"out of memory with a single image per batch: {first_line(error)}")
            subject, note = subject.with_half_the_batch()
            notes.append(note)
        except Exception as error:  # a check must not take the others along, whatever the model's code raises
            raise_interruption(error)
            own = isinstance(error, HoldfastError)
            return ended("crashed", str(error) if own else f"{type(error).__name__}: {first_line(error)}")
        else:
            reason = why_empty(found)
            return ended("measured" if reason is None else "not applicable", reason or "", found)


def given_settings(check: Any) -> dict[str, Any]:
    """The settings of a check that are not its defaults, as plain values."""
    own = {f.name: getattr(check, f.name) for f in fields(check) if getattr(check, f.name) != f.default}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}
    return {k: v for k, v in plain.items() if isinstance(v, int | float | str | bool | list | dict)}


def finite(found: Finding) -> Finding:
    """A finding whose numbers are numbers, with the reason where one was not.

    >>> finite(Finding("accuracy", "nll", 0.3, 1, float("-inf"), float("inf"))).evidence
    {'reason': 'no interval from 1 samples'}
    """
    if found.value is not None and not math.isfinite(found.value):
        evidence = {**found.evidence, "reason": f"the value is {found.value}, not a finite number"}
        return replace(found, value=None, n=0, low=None, high=None, evidence=evidence)
    if all(end is None or math.isfinite(end) for end in (found.low, found.high)):
        return found
    evidence = {**found.evidence, "reason": f"no interval from {found.n} samples"}
    return replace(found, low=None, high=None, evidence=evidence)


def why_empty(findings: Sequence[Finding]) -> str | None:
    """Why nothing at all was measured; None where something was.

    >>> why_empty([Finding("groups", "worst_group_accuracy", None, 0, evidence={"reason": "no groups"})])
    'no groups'
    """
    if any(f.value is not None for f in findings):
        return None
    reasons = [str(f.evidence["reason"]) for f in findings if f.evidence.get("reason")]
    return reasons[0] if reasons else "there was nothing to measure"


def measure_all(
    model: AuditedModel,
    checks: Sequence[str],
    made: Mapping[str, Any],
    *,
    seconds: float | None,
    kept: Path | None,
    key: Mapping[str, Any],
    change: Callable[[Finding], Finding],
    tell: Tell,
    progress: Progress | None = None,
) -> list[CheckOutcome]:
    """Each check in turn, within its time.

    kept: the folder where each result is kept, and taken from where all that it depends on (``key``) is the same.
    change: what is done to findings before they are kept. seconds: the time budget of this model.
    """
    clock = None if seconds is None else Clock(seconds, model.subject.device.type)
    if clock is not None:
        clock.forward = _forward_seconds(model.subject)
    outcomes: list[CheckOutcome] = []
    shown = progress or Progress()
    for name in CHECKS:
        if name not in checks:
            outcomes.append(CheckOutcome(name, "skipped", reason="it was not asked for", asked=False))
            continue
        shown.doing(f"{model.name}: {name}")
        own_key = check_key(name, made[name], key)
        before = None if kept is None else read_check(kept, name, own_key)
        if before is not None:
            tell(f"{model.name}: {name}: {before.state} before, taken from {kept}/{name}.json")
            outcomes.append(before)
            shown.step()
            continue
        outcome = _one(model, name, made[name], checks[checks.index(name) :], clock)
        outcome = replace(outcome, findings=tuple(change(f) for f in outcome.findings))
        if kept is not None and outcome.state != "skipped":
            write_check(kept, outcome, own_key)
        for note in outcome.notes:
            if note.level != "warning":  # those are said for results of before too
                tell(f"{model.name}: {name}: {note}")
        why = f" ({outcome.reason})" if outcome.reason else ""
        tell(f"{model.name}: {name}: {outcome.state}{why}, {outcome.seconds:.1f} s")
        outcomes.append(outcome)
        shown.step()
    return outcomes


def _one(model: AuditedModel, name: str, made: Any, still: Sequence[str], clock: Clock | None) -> CheckOutcome:
    if name in model.not_applicable:
        return CheckOutcome(name, "not applicable", reason=model.not_applicable[name])
    if clock is None or not CHECKS[name].share:
        return measure(name, model.subject, made)
    if clock.left <= 0:
        return CheckOutcome(name, "skipped", reason="the time of --budget is spent")
    return _within(model.subject, name, made, still, clock)


def _within(subject: Subject, name: str, made: Any, still: Sequence[str], clock: Clock) -> CheckOutcome:
    """A costly check in its share of the time, with as many images as a trial says it has time for."""
    started = time.perf_counter()
    share = clock.share(name, still)
    if why := clock.hopeless(made.passes(clock.device), share):
        return CheckOutcome(name, "skipped", reason=why)
    train = subject.data.train
    of = train if CHECKS[name].images_of == "train" and len(train) else subject.split
    wanted = min(made.images or made.usual_images(clock.device) or len(of), len(of))
    fixed = made.fixed_seconds(subject, share) if hasattr(made, "fixed_seconds") else 0.0
    short, left_out = (made, None) if fixed == 0 else made.without_fixed()

    def run(images: int) -> tuple[CheckOutcome, float]:
        trial = images <= MORE * LEAST < wanted  # a trial does without what takes long whatever the images
        used = short if fixed is None or trial else made
        outcome = measure(name, subject, used if images == wanted else replace(used, images=images))
        if left_out is not None and used is short:
            outcome = replace(outcome, notes=(left_out, *outcome.notes))
        return outcome, outcome.seconds

    left = share - (time.perf_counter() - started)
    useful: Callable[[CheckOutcome], bool] = lambda outcome: outcome.state == "measured"  # noqa: E731
    fitted = fit_images(run, share=left, wanted=wanted, reserved=fixed or 0.0, useful=useful)
    notes = (*([fitted.note(wanted)] if fitted.images < wanted else []), *fitted.outcome.notes)
    return replace(fitted.outcome, notes=notes, seconds=time.perf_counter() - started)


def _forward_seconds(subject: Subject) -> float:
    """Seconds a forward pass of one image takes, from one batch after a first one to warm up."""
    few = torch.arange(min(len(subject.split), subject.batch_size))
    data = replace(subject.data, test=subject.split.subset(few))
    part = replace(subject, data=data, workers=0, given=None, kept_rows=None)
    took = []
    for _ in range(2):
        fresh = replace(part)
        started = time.perf_counter()
        _ = fresh.predictions
        took.append(time.perf_counter() - started)
    return took[-1] / max(1, len(few))


def check_key(name: str, made: Any, key: Mapping[str, Any]) -> str:
    """What a kept result of a check must have been measured under. key: all else that its numbers depend on."""
    return hash_of({"holdfast": holdfast.__version__, "check": name, "settings": str(made), **key})


def write_check(folder: Path, outcome: CheckOutcome, key: str) -> None:
    """One result of an audit under way, which an audit with the same key takes instead of measuring again."""
    write_json(folder / f"{outcome.name}.json", {"format": FORMAT, "key": key, **asdict(outcome)})


def read_check(folder: Path, check: str, key: str) -> CheckOutcome | None:
    """A check that was measured before under the same key; None where it was not, or crashed, or cannot be read."""
    try:
        content = json.loads((folder / f"{check}.json").read_bytes())
        if (content.pop("format"), content.pop("key")) != (FORMAT, key) or content["state"] == "crashed":
            return None
        content["notes"] = tuple(Note(**values) for values in content["notes"])
        content["findings"] = tuple(finding(values) for values in content["findings"])
        return CheckOutcome(**content)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # half-written or of another version
        return None


UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
LEAST: Final = 16
"""Images under which a check's intervals would say nothing."""
HOPELESS: Final = 2
"""Attacks let go of images that fell; the passes below count them to the end."""
MORE: Final = 4
"""How much larger a second trial is."""
STEEP: Final = 0.25
CAREFUL: Final = 0.8
"""Part of the time that is planned with: a first trial may be slow and hide how steep the rest is."""
WORTH: Final = 1.25
"""A trial is not repeated for fewer additional images than this."""

T = TypeVar("T")


def parse_budget(text: str) -> float:
    """Seconds of a duration.

    >>> parse_budget("5m"), parse_budget("90"), parse_budget("1.5h")
    (300.0, 90.0, 5400.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    require(match is not None, f"budget must be a duration such as 90s, 5m or 1h, got {text!r}")
    assert match is not None
    seconds = float(match[1]) * UNITS[match[2]]
    require(seconds > 0, f"budget must be more than nothing, got {text!r}")
    return seconds


class Clock:
    """The budget of one audit. forward: seconds a forward pass of one image takes, set once it was measured."""

    def __init__(self, seconds: float, device: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.device, self.now = seconds, device, now
        self.started = now()
        self.forward = 0.0

    @property
    def left(self) -> float:
        return self.seconds - (self.now() - self.started)

    def share(self, check: str, still: Sequence[str]) -> float:
        """Seconds a costly check may take. still: checks to come, this one among them."""
        return max(0.0, self.left) * CHECKS[check].share / sum(CHECKS[name].share for name in still)

    def hopeless(self, passes: float, share: float) -> str:
        """Why not even the least number of images can be measured; empty where they can, or where it is near.

        passes: forward passes per image.
        """
        least = LEAST * self.forward * passes
        if least <= HOPELESS * share:
            return ""
        return f"{LEAST} images would take about {least:.0f} s, and its share of the budget is {share:.0f} s"


@dataclass(frozen=True)
class Fitted(Generic[T]):
    """What a check came to in its share of the time. trials: (images, seconds) of those that chose the number."""

    outcome: T
    images: int
    trials: tuple[tuple[int, float], ...]

    def note(self, wanted: int) -> Note:
        trial = " and ".join(f"{images} took {seconds:.1f} s" for images, seconds in self.trials)
        return Note("budget", f"{self.images} images instead of {wanted}, to stay within the budget ({trial})")


def fit_images(
    run: Callable[[int], tuple[T, float]],
    *,
    share: float,
    wanted: int,
    reserved: float = 0.0,
    useful: Callable[[T], bool] = lambda outcome: True,
) -> Fitted[T]:
    """As many images as a share of the time allows, found by trying few first.

    run: measures a number of images; what came of it and the seconds it took. reserved: seconds that the last run takes
    on top, whatever the number. Time is taken for a fixed part and one that grows with the images: a first trial bounds
    the second part from above, a second one tells the two apart. Where no larger number fits, the trial is the result.
    useful: whether more images would add to an outcome; not to one that does not apply.
    """
    if wanted <= LEAST:
        return Fitted(run(wanted)[0], wanted, ())
    made, first = run(LEAST)
    if not useful(made):
        return Fitted(made, wanted, ())
    trials = [(LEAST, first)]
    left, slope, fixed = share - first - reserved, first / LEAST, 0.0
    if wanted * slope > left and wanted > MORE * LEAST and MORE * first <= left / 2:
        made, second = run(MORE * LEAST)
        trials.append((MORE * LEAST, second))
        left -= second
        # a first run is slow for reasons of its own, which must not make the rest look free
        slope = max((second - first) / (LEAST * (MORE - 1)), STEEP * second / (MORE * LEAST))
        fixed = max(0.0, second - slope * MORE * LEAST)
    tried = trials[-1][0]
    images = min(wanted, int((CAREFUL * left - fixed) / slope) if slope > 0 else wanted)
    if images < WORTH * tried and images < wanted:
        return Fitted(made, tried, tuple(trials))
    return Fitted(run(images)[0], images, tuple(trials))
