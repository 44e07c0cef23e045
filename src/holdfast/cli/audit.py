"""``holdfast audit``: arguments to a call of :func:`holdfast.audit`, and what is printed of its result."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli.common import console, narrate, parse, require_data, say
from holdfast.cli.parser_words import swallowed
from holdfast.errors import HoldfastError, require
from holdfast.parts import CHECKS, data_syntax, model_syntax
from holdfast.settings import data_of_run
from holdfast.settings.audit_settings import (
    AuditComputeSettings,
    AuditedDataSettings,
    AuditOutputSettings,
    AuditShardSettings,
    ModelReadingSettings,
    VerdictSettings,
)
from holdfast.settings.fields import Pairs, Several, Unset, default_hint


@dataclass(frozen=True)
class MeasuredOptions:
    """What is measured."""

    checks: Several[str] = ()
    """Checks to measure (default: all)."""
    set: Pairs = ()
    """CHECK.SETTING=VALUE, such as attacks.images=10000 or attacks.radii=0.01,0.02."""
    against: Several[str] = ()
    """Other models, compared on the same samples."""


@dataclass(frozen=True)
class GateOptions(VerdictSettings):
    """What the model must reach; if it does not, the exit code is 1. 'holdfast list measures' shows all names."""

    fail_under: Pairs = ()
    """Fail where a measure is lower: worst_group_accuracy=0.7, class_accuracy:cat=0.6, group_accuracy:night=0.7."""
    fail_over: Pairs = ()
    """Fail where a measure is higher, of those where lower is better: ece=0.05."""
    max_drop: Pairs = ()
    """Fail where a measure is worse than that of --against by more: accuracy=0.01."""


@dataclass(frozen=True)
class WrittenOptions(AuditOutputSettings):
    """What is written and printed."""

    out: Unset[str] = None
    """The folder to write (default: audits/MODEL-DATA). An interrupted audit resumes there."""
    json: bool = False
    """Print the findings as JSON instead of a table."""
    quiet: bool = False
    """No narration."""


@dataclass(frozen=True)
class AuditOptions:
    """The model."""

    spec: Annotated[Positional[str | None], arg(metavar="MODEL", help_behavior_hint=default_hint)] = None
    """What to audit; a weight file needs --model, and python: runs that code."""
    data: OmitArgPrefixes[AuditedDataSettings] = field(default_factory=AuditedDataSettings)
    checks: OmitArgPrefixes[MeasuredOptions] = field(default_factory=MeasuredOptions)
    gates: OmitArgPrefixes[GateOptions] = field(default_factory=GateOptions)
    model: OmitArgPrefixes[ModelReadingSettings] = field(default_factory=ModelReadingSettings)
    output: OmitArgPrefixes[WrittenOptions] = field(default_factory=WrittenOptions)
    compute: OmitArgPrefixes[AuditComputeSettings] = field(default_factory=AuditComputeSettings)
    where: OmitArgPrefixes[AuditShardSettings] = field(default_factory=AuditShardSettings)


LONGEST = 100
"""Letters of a name that the default folder is called by: file systems take about 255."""


def audit(words: list[str]) -> int:
    """Measure how a model holds up: accuracy, worst groups, corruptions, attacks, OOD inputs; with report and gates."""
    options: AuditOptions = parse(AuditOptions, words, "audit", _about())
    groups = [vars(group) for group in vars(options).values() if is_dataclass(group)]
    given = {key: value for group in groups for key, value in group.items()}
    spec, predictions, data = options.spec, options.data.predictions, options.data.data
    if spec is None and predictions is None:
        took = swallowed(AuditOptions, words, "MODEL")
        raise HoldfastError(f"no MODEL was given: {took}" if took else "give either MODEL or --predictions FILE")
    require(spec is None or predictions is None, "give either MODEL or --predictions FILE, not both")
    from holdfast.audits.gates import parse_gates
    from holdfast.settings.audit_settings import chosen_checks, make_checks, parse_settings

    given["checks"] = given["checks"] or None
    chosen_checks(given["checks"])
    given["settings"] = settings = parse_settings(given.pop("set"))
    demands = [given[kind] for kind in ("fail_under", "max_drop", "fail_over")]
    parse_gates(*demands, against=bool(given["against"]), checks=make_checks(settings))
    if data is not None:
        require_data(data)
    elif spec is not None:
        own = data_of_run(spec)
        if own is None:  # a model that does not exist is the first thing to say
            from holdfast.models.resolution import find_source

            find_source(spec)
        require(own is not None, f"no data was given; name it with --data ({spec} is not a run, which knows its own)")
        data = own[0] if own else None
    from holdfast.audits import (
        run_audit,  # everything that is wrong whatever the model was refused before torch comes in
    )

    quiet, as_json = given.pop("quiet"), given.pop("json")
    given["out"] = out = Path(given["out"] or _default_out(spec or predictions, data))
    given["command"] = shlex.join(["holdfast", "audit", *words])
    with redirect_stdout(sys.stderr):  # whatever a model prints is not part of the results, which a pipeline reads
        made = run_audit.audit(spec, tell=(lambda text: None) if quiet else _narrate, **given)
    for note in made.warnings if quiet else ():  # never hidden
        _narrate(f"warning: {note}")
    _summarise(out)
    _print(made.files, out, as_json=as_json)
    return made.exit_code


def _about() -> str:
    """What the command does, and with which parts: read from their declarations, third parties' included."""
    lines = [f"{audit.__doc__}", f"MODEL is {model_syntax()}.", f"DATA is {data_syntax()}."]
    lines.append("Checks and their settings:")
    for part in CHECKS.values():
        own = ", ".join(f.name for f in fields(part.made) if not f.metadata.get("python_only"))
        lines.append(f"  {part.name}: {part.about}" + (f" Settings: {own}." if own else ""))
    return "\n".join(lines)


def _print(files: Any, out: Path, *, as_json: bool) -> None:
    from holdfast.reports.overview import gates, overview, verdict
    from holdfast.reports.renderings import rich_table

    if as_json:
        folders = [out] if len(files) == 1 else [out / str(file.model["name"]) for file in files]
        found = [(folder / "findings.json").read_text(encoding="utf-8") for folder in folders]
        print(found[0] if len(found) == 1 else "[" + ",\n".join(found) + "]", end="")
        return
    terminal = console()
    for file in files:
        for block in (overview(file), gates(file)):
            if block is not None:
                terminal.print(rich_table(block))
        say(verdict(file))
    say(f"report: {out / 'report.html'}")


def _summarise(out: Path) -> None:
    """The summary page of a GitHub workflow, where there is one."""
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if not target:
        return
    try:
        with open(target, "a", encoding="utf-8") as file:
            file.write((out / "summary.md").read_text(encoding="utf-8"))
    except OSError as error:
        raise HoldfastError(f"cannot write the summary to {target}: {error.strerror}") from error


def _default_out(*names: str | None) -> str:
    parts = [Path(name).stem if os.path.exists(name) else name for name in names if name is not None]
    return "audits/" + "-".join(
        "".join(c if c.isalnum() or c in "._-" else "-" for c in part).strip("-.")[:LONGEST] for part in parts
    )


def _narrate(text: str) -> None:
    """With the time where nobody watches a terminal: logs are read later."""
    narrate(("" if sys.stderr.isatty() else time.strftime("%H:%M:%S ")) + text)
