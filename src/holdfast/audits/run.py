"""``holdfast audit``: open models, align them with data, measure every check, judge gates, write the folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.audits.audit_folder import claim, keep_curves, render, run_record
from holdfast.audits.budget import parse_budget
from holdfast.audits.checking import CHECKS, check_names
from holdfast.audits.comparing import against, judge_all
from holdfast.audits.gates import FailOn, Gate
from holdfast.audits.measuring import measure_all
from holdfast.audits.opening import open_all
from holdfast.audits.partial_results import Redaction
from holdfast.audits.request import Note, Plan
from holdfast.audits.sample_table import check_kind, sample_columns, write_samples
from holdfast.devices import resolve_device
from holdfast.reports.findings_file import FindingsFile, write_findings


def audit(
    spec: str | None,
    out: Path,
    plan: Plan,
    *,
    gates: Sequence[Gate] = (),
    fail_on: FailOn = "value",
    command: str = "",
    note: Note = lambda text: None,
) -> tuple[FindingsFile, ...]:
    """Audit a model, and those it is set against, and write the folder; returns the findings of each, MODEL's first.

    Every model is opened and aligned before the first check runs, so that bad input costs no time.
    """
    check_kind(plan.samples)
    checks = check_names(plan.only or list(CHECKS))
    seconds = None if plan.budget is None else parse_budget(plan.budget)
    device, started = resolve_device(plan.device), time.monotonic()
    specs = [*([spec] if spec else []), *plan.against]
    claim(out, several=len(specs) > 1)
    models = open_all(specs, plan, device, note)
    redaction = Redaction([plan.data, plan.predictions, plan.class_map, out, *specs]) if plan.redact_paths else None
    folders = [out / model.name if len(models) > 1 else out for model in models]
    results = []
    for i, (model, folder) in enumerate(zip(models, folders, strict=True)):
        left = None if seconds is None else seconds - (time.monotonic() - started)
        own = None if left is None else left / (len(models) - i)
        results.append(measure_all(model, folder, checks, plan, own, redaction, note))
    found = [
        [f for o in outcomes for f in o.findings] + list(m.extra) for m, outcomes in zip(models, results, strict=True)
    ]
    others = zip(models[1:], found[1:], strict=True)
    found[0] += [f for other, theirs in others for f in against(models[0], other, found[0], theirs)]
    judged = judge_all(gates, fail_on, models, found, results[0])
    run = run_record(plan, device, command)
    for i, (model, folder, outcomes) in enumerate(zip(models, folders, results, strict=True)):
        hide = redaction.value if redaction else _as_it_is
        write_findings(
            folder / "findings.json",
            found[i],
            model=hide(model.model),
            data=hide(model.data),
            run=hide(run),
            checks=[hide(outcome.record()) for outcome in outcomes],
            gates=judged if i == 0 else [],
        )
        keep_curves(model, folder, note)
        write_samples(folder, sample_columns(model, found[i], redacted=plan.redact_paths), plan.samples)
    return render(out, folders)


def exit_code(files: Sequence[FindingsFile]) -> int:
    """0 holds, 1 a gate failed, 3 a check crashed: an audit that is not whole is no verdict, so that comes first."""
    if any(record.state == "crashed" for file in files for record in file.checks):
        return 3
    return 1 if any(not gate["passed"] for file in files for gate in file.gates) else 0


def _as_it_is(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return value
