"""What to do next, with commands that fit the findings. Open it to change when a step is proposed.

Which commands help against a bad number is declared by its measure; here stands only when a number is bad.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.reports.findings_file import measure_of
from holdfast.reports.robustness_summary import RobustnessResult, headline_findings, robustness
from holdfast.reports.run_files import RunFiles
from holdfast.reports.text import finite, quantity
from holdfast.types import Finding, Measure

MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """why: what was found. commands: what helps, the first first."""

    why: str
    commands: tuple[str, ...]


def next_steps(runs: Sequence[RunFiles]) -> list[Step]:
    """Of one audit; of several models, of the one that was audited against the others, or else of the last, by name."""
    audited = [run for run in runs if run.checks]
    if not audited:
        return []
    run = next((run for run in audited if any(f.check == "against" for f in run.findings)), audited[-1])
    found = robustness(run.findings, run.measures, run.gates)
    steps = _each_once([*_crashed(run), *_bad_numbers(run, found)]) or [*_keep_it_so(run, found)]
    of = f"{run.name}: " if len(runs) > 1 else ""
    return [Step(of + step.why, step.commands) for step in steps[:MOST_STEPS]]


def _each_once(steps: Sequence[Step]) -> list[Step]:
    """Every command where it is first proposed; a step that adds none is left out."""
    told: set[str] = set()
    kept = []
    for step in steps:
        new = tuple(command for command in step.commands if command not in told)
        told |= set(new)
        kept += [Step(step.why, new)] if new else []
    return kept


def _crashed(run: RunFiles) -> Iterator[Step]:
    for record in run.checks:
        if record.state == "crashed":
            command = f"holdfast audit MODEL --data DATA --checks {shlex.quote(record.name)}"
            yield Step(f"The check {record.name} crashed: try it by itself.", _filled(run, [command]))


def _bad_numbers(run: RunFiles, found: Sequence[RobustnessResult]) -> Iterator[Step]:
    """Clear drops, the surest first; then other headline numbers that are poor or beyond what chance explains."""
    dropping = [r for r in found if r.clear(found[0]) or not r.passed]
    for r in sorted(dropping, key=lambda r: (r.changed_images, -r.sure_drop(found[0]))):
        yield Step(f"{r.share()}.", _filled(run, r.remedies))
    told = {r.name for r in dropping}
    for measure, own in headline_findings(run.findings, run.measures):
        bad = next((f for f in own if _poor(f, measure)), None)
        if bad is not None and measure.name not in told:
            value = quantity(measure, finite(bad.value) or 0.0)
            yield Step(f"{measure.title}: {value}.", _filled(run, measure.remedies))


def _poor(finding: Finding, measure: Measure) -> bool:
    value, chance = finite(finding.value), finite(finding.evidence.get("chance_high"))
    limit = measure.poor if measure.poor is not None else chance
    if value is None or limit is None:
        return False
    return value > limit if measure.better == "lower" else value < limit


def _keep_it_so(run: RunFiles, found: Sequence[RobustnessResult]) -> Iterator[Step]:
    """Nothing is bad and nothing is demanded: gates keep it so."""
    if run.gates or not found:
        return
    gates = [r for r in found if r.low is not None and measure_of(r.check, r.name, run.measures).gate]
    asked = " ".join(f"--fail-under {r.name}={math.floor(100 * (r.low or 0.0)) / 100:g}" for r in gates[:2])
    if asked:
        yield Step("Nothing failed. Gates keep it so:", _filled(run, [f"holdfast audit MODEL --data DATA {asked}"]))


def _filled(run: RunFiles, commands: Sequence[str]) -> tuple[str, ...]:
    """Commands with the names of this audit; those that need a run folder only where there is one."""
    model, data = str(run.model.get("spec") or "MODEL"), str(run.data.get("spec") or run.data.get("name") or "DATA")
    folder = model if run.model.get("source") == "run" else ""
    words = {"RUN": folder, "MODEL": model, "DATA": data}
    kept = [c for c in commands if folder or "RUN" not in c.split()]
    return tuple(" ".join(shlex.quote(words[w]) if w in words else w for w in c.split()) for c in kept)
