"""Every check of a model in turn, within its time; those measured before are taken as they are."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

import holdfast
from holdfast.audits.budget import LEAST, MORE, WEIGHTS, Clock, fit_images, usual
from holdfast.audits.checking import CHECKS, Outcome, measure
from holdfast.audits.checks.attacks import BUDGETS, train_surrogate
from holdfast.audits.opening import Model
from holdfast.audits.partial_results import Redaction, key_of, read_check, without_pictures, write_check
from holdfast.audits.request import Note, Plan
from holdfast.audits.subject import Subject
from holdfast.types import Finding

SURROGATE_LEAST: Final = 10.0
"""Seconds under which a check does not even try how long another model would train."""
SURROGATE_SHARE: Final = 1 / 3


def measure_all(
    model: Model,
    folder: Path,
    checks: list[str],
    plan: Plan,
    seconds: float | None,
    redaction: Redaction | None,
    note: Note,
) -> list[Outcome]:
    """Each check in turn; what is in the folder already, under the same key, is not measured again."""
    clock = None if seconds is None else Clock(seconds, model.subject.device.type)
    if clock is not None:
        clock.forward = _forward_seconds(model.subject)
    outcomes = []
    for name in CHECKS:
        if name not in checks:
            outcomes.append(Outcome(name, "skipped", reason="it was not asked for"))
            continue
        key = key_of(_key(model, name, plan))
        before = read_check(folder / "checks", name, key)
        if before is not None:
            note(f"{model.name}: {name}: {before.state} before, taken from {folder / 'checks' / name}.json")
            outcomes.append(before)
            continue
        outcome = _one(model, name, checks[checks.index(name) :], clock, note)
        outcome = replace(outcome, findings=tuple(_told(f, model, plan, redaction) for f in outcome.findings))
        if outcome.state != "skipped":
            write_check(folder / "checks", outcome, key)
        why = f" ({outcome.reason})" if outcome.reason else ""
        note(f"{model.name}: {name}: {outcome.state}{why}, {outcome.seconds:.1f} s")
        outcomes.append(outcome)
    return outcomes


def _one(model: Model, name: str, still: list[str], clock: Clock | None, note: Note) -> Outcome:
    told = model.settings.get(name, {})
    if name in model.not_applicable:
        return Outcome(name, "not applicable", reason=model.not_applicable[name])
    if clock is not None and clock.left <= 0 and name in WEIGHTS:
        return Outcome(name, "skipped", reason="the time of --budget is spent")
    if clock is not None and name in WEIGHTS:
        outcome = _within(model, name, still, clock)
    else:
        outcome = measure(name, model.subject, {**model.columns.settings().get(name, {}), **told})
    for text in outcome.notes:
        note(f"{model.name}: {name}: {text}")
    plain = (int, float, str, bool)
    shown: dict[str, Any] = {key: value for key, value in outcome.settings.items() if isinstance(value, plain)}
    shown |= {key: list(value) for key, value in told.items() if isinstance(value, tuple)}
    return replace(outcome, settings=shown)


def _within(model: Model, name: str, still: list[str], clock: Clock) -> Outcome:
    """A costly check in its share of the time, with as many images as a trial says it has time for."""
    subject, started = model.subject, time.perf_counter()
    share = clock.share(name, still)
    why = clock.hopeless(name, share)
    if why:
        return Outcome(name, "skipped", reason=why)
    of = subject.data.train if name == "curvature" and len(subject.data.train) else subject.split
    told = model.settings.get(name, {})
    wanted = min(told.get("images") or usual(name, clock.device) or len(of), len(of))
    trains = name == "attacks" and told.get("surrogate") is None and told.get("black_box", True)
    transfer = _surrogate_seconds(subject, share) if trains else None

    def run(images: int) -> tuple[Outcome, float]:
        settings: dict[str, Any] = {**told} if images == wanted else {**told, "images": images}
        if trains and (transfer is None or images <= MORE * LEAST < wanted):
            settings["black_box"] = False  # a trial trains no other model
        outcome = measure(name, subject, settings)
        return outcome, outcome.seconds

    left = share - (time.perf_counter() - started)
    fitted = fit_images(
        run, share=left, wanted=wanted, reserved=transfer or 0.0, useful=lambda made: made.state == "measured"
    )
    notes = [*fitted.outcome.notes]
    if trains and fitted.outcome.settings.get("black_box") is False:
        notes.insert(0, "no image is made against another model, which there is no time to train")
    if fitted.images < wanted:
        notes.insert(0, fitted.words(wanted))
    return replace(fitted.outcome, notes=tuple(notes), seconds=time.perf_counter() - started)


def _surrogate_seconds(subject: Subject, share: float) -> float | None:
    """How long the other model of black-box attacks would train, from one of its epochs; None where it is too long."""
    if share < SURROGATE_LEAST or len(subject.data.train) == 0:
        return None
    plan = BUDGETS[subject.device.type]
    started = time.perf_counter()
    train_surrogate(subject, replace(plan, surrogate_epochs=1))
    seconds = plan.surrogate_epochs * (time.perf_counter() - started)
    return seconds if seconds <= SURROGATE_SHARE * share else None


def _told(found: Finding, model: Model, plan: Plan, redaction: Redaction | None) -> Finding:
    found = model.fix(found) if model.fix else found
    if plan.no_images:
        found = without_pictures(found)
    return redaction.finding(found) if redaction else found


def _key(model: Model, check: str, plan: Plan) -> dict[str, Any]:
    """All that a check's numbers depend on. With a budget they depend on time too: what was measured stays."""
    aligned = {k: model.model.get(k) for k in ("source", "hash", "answers_hash", "classes", "output", "preprocessing")}
    asked = {k: getattr(plan, k) for k in ("seed", "precision", "batch_size", "budget", "no_images", "redact_paths")}
    return {
        "holdfast": holdfast.__version__,
        "check": check,
        "model": aligned,
        "data": {k: model.data[k] for k in ("hash", "n", "classes", "shape")},
        "device": model.subject.device.type,
        "group": list(plan.group),
        "columns": model.columns.hash(),
        "settings": {**plan.settings.get(check, {})},
        "surrogate": model.model.get("surrogate") if check == "attacks" else None,
        **asked,
    }


def _forward_seconds(subject: Subject) -> float:
    """Seconds a forward pass of one image takes, from one batch after a first one to warm up."""
    few = torch.arange(min(len(subject.split), subject.batch_size))
    part = replace(subject, data=replace(subject.data, test=subject.split.subset(few)), workers=0)
    took = []
    for _ in range(2):
        fresh = replace(part)
        started = time.perf_counter()
        _ = fresh.predictions
        took.append(time.perf_counter() - started)
    return took[-1] / max(1, len(few))
