"""Every front of a model in turn, within its time; those measured before are taken as they are."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.experiment.audit.budget import WEIGHTS, Clock
from holdfast.experiment.audit.files import Redaction, key_of, read_front, without_pictures, write_front
from holdfast.experiment.audit.opening import Model
from holdfast.experiment.audit.plan import Note, Plan
from holdfast.fronts import FRONTS, Outcome, Subject, measure
from holdfast.types import Finding


def measure_all(
    model: Model,
    folder: Path,
    fronts: list[str],
    plan: Plan,
    seconds: float | None,
    redaction: Redaction | None,
    note: Note,
) -> list[Outcome]:
    """Each front in turn; what is in the folder already, under the same key, is not measured again."""
    clock = None if seconds is None else Clock(seconds, model.subject.device.type)
    if clock is not None:
        clock.forward = _forward_seconds(model.subject)
    outcomes = []
    for name in FRONTS:
        if name not in fronts:
            outcomes.append(Outcome(name, "skipped", reason="it was not asked for"))
            continue
        key = key_of(_key(model, name, plan))
        before = read_front(folder / "fronts", name, key)
        if before is not None:
            note(f"{model.name}: {name}: {before.state} before, taken from {folder / 'fronts' / name}.json")
            outcomes.append(before)
            continue
        outcome = _one(model, name, fronts[fronts.index(name) :], clock, note)
        outcome = replace(outcome, findings=tuple(_told(f, model, plan, redaction) for f in outcome.findings))
        if outcome.state != "skipped":
            write_front(folder / "fronts", outcome, key)
        why = f" ({outcome.reason})" if outcome.reason else ""
        note(f"{model.name}: {name}: {outcome.state}{why}, {outcome.seconds:.1f} s")
        outcomes.append(outcome)
    return outcomes


def _one(model: Model, name: str, still: list[str], clock: Clock | None, note: Note) -> Outcome:
    if name in model.not_applicable:
        return Outcome(name, "not applicable", reason=model.not_applicable[name])
    settings = dict(model.columns.settings().get(name, {}))
    notes: tuple[str, ...] = ()
    if clock is not None:
        if clock.left <= 0 and name in WEIGHTS:
            return Outcome(name, "skipped", reason=f"the budget of {clock.seconds:g} s is spent")
        chosen, text = clock.settings(name, still, len(model.subject.split))
        settings |= chosen
        if text:
            note(f"{model.name}: {text}")
            notes = (text,)
    outcome = measure(name, model.subject, settings)
    for text in outcome.notes:
        note(f"{model.name}: {name}: {text}")
    shown = {key: value for key, value in settings.items() if isinstance(value, (int, float, str, bool))}
    return replace(outcome, notes=(*notes, *outcome.notes), settings=shown)


def _told(found: Finding, model: Model, plan: Plan, redaction: Redaction | None) -> Finding:
    found = model.fix(found) if model.fix else found
    if plan.no_images:
        found = without_pictures(found)
    return redaction.finding(found) if redaction else found


def _key(model: Model, front: str, plan: Plan) -> dict[str, Any]:
    """All that a front's numbers depend on. With a budget they depend on time too: what was measured stays."""
    aligned = {k: model.model.get(k) for k in ("source", "hash", "answers_hash", "classes", "output", "preprocessing")}
    asked = {k: getattr(plan, k) for k in ("seed", "precision", "batch_size", "budget", "no_images", "redact_paths")}
    return {
        "holdfast": holdfast.__version__,
        "front": front,
        "model": aligned,
        "data": {k: model.data[k] for k in ("hash", "n", "classes", "shape")},
        "device": model.subject.device.type,
        "group": list(plan.group),
        "columns": model.columns.hash(),
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
