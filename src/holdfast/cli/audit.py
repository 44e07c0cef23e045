"""``holdfast audit``: arguments to a call of :func:`holdfast.audit`, and what is printed of its result."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from holdfast.cli.common import console, narrate, parse, require_data, say
from holdfast.errors import HoldfastError, require
from holdfast.parts import CHECKS, data_syntax, model_syntax
from holdfast.settings.audit_settings import AuditSettings
from holdfast.settings.fields import Several, Unset, default_hint


@dataclass(frozen=True)
class AuditOptions(AuditSettings):
    """What to audit, on what, and what it must reach."""

    spec: Annotated[Positional[str | None], arg(metavar="MODEL", help_behavior_hint=default_hint)] = None
    """What to audit; a weight file needs --model, and python: runs that code."""
    checks: Several[str] = ()
    """Checks to measure (default: all)."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """CHECK.SETTING=VALUE, such as attacks.images=10000 or attacks.radii=0.01,0.02."""
    against: Several[str] = ()
    """Other models, compared on the same samples."""
    fail_under: UseAppendAction[tuple[str, ...]] = ()
    """Exit with 1 where a number is lower, such as worst_group_accuracy=0.7."""
    max_drop: UseAppendAction[tuple[str, ...]] = ()
    """Exit with 1 where a number is lower than --against's by more, such as accuracy=0.01."""
    out: Unset[str] = None
    """The folder to write (default: audits/MODEL-DATA). An interrupted audit resumes there."""
    json: bool = False
    """Print the findings as JSON instead of a table."""
    quiet: bool = False
    """No narration."""


LONGEST = 100
"""Letters of a name that the default folder is called by: file systems take about 255."""


def audit(words: list[str]) -> int:
    """Measure how a model holds up: accuracy, worst groups, corruptions, attacks, OOD inputs; with report and gates."""
    options: AuditOptions = parse(AuditOptions, words, "audit", _about())
    from holdfast.audits.check_settings import chosen_checks, make_checks, parse_settings
    from holdfast.audits.gates import parse_gates

    chosen_checks(options.checks)
    settings = parse_settings(options.set)
    parse_gates(options.fail_under, options.max_drop, against=bool(options.against), checks=make_checks(settings))
    if isinstance(options.data, str):
        require_data(options.data)
    require(
        bool(options.spec) != bool(options.predictions),
        "give either MODEL or --predictions FILE" + (", not both" if options.spec else "; 'holdfast audit --help'"),
    )
    require(options.data is not None or options.predictions is not None, "no data was given; name it with --data")
    from holdfast.audits import (
        run_audit,  # everything that is wrong whatever the model was refused before torch comes in
    )

    names = [f.name for f in fields(AuditSettings)] + ["against", "fail_under", "max_drop"]
    given = {name: getattr(options, name) for name in names}
    out = Path(options.out or _default_out(options))
    given |= {"checks": options.checks or None, "settings": settings, "out": out}
    given["command"] = shlex.join(["holdfast", "audit", *words])
    with redirect_stdout(sys.stderr):  # whatever a model prints is not part of the results, which a pipeline reads
        made = run_audit.audit(options.spec, tell=(lambda text: None) if options.quiet else _narrate, **given)
    for note in made.warnings if options.quiet else ():  # never hidden
        _narrate(f"warning: {note}")
    _summarise(out)
    _print(made.files, out, as_json=options.json)
    return made.exit_code


def _about() -> str:
    """What the command does, and with which parts: read from their declarations, third parties' included."""
    lines = [f"{audit.__doc__}\n", f"MODEL is {model_syntax()}.", f"DATA is {data_syntax()}."]
    lines.append("Checks and their settings:")
    for part in CHECKS.values():
        own = ", ".join(f.name for f in fields(part.made) if not f.metadata.get("python_only"))
        lines.append(f"  {part.name}: {part.about}" + (f" Settings: {own}." if own else ""))
    return "\n".join(lines)


def _print(files: Any, out: Path, *, as_json: bool) -> None:
    from holdfast.reports.console import rich_table
    from holdfast.reports.overview import gates, overview, verdict

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


def _default_out(options: AuditOptions) -> str:
    parts = [
        Path(name).stem if os.path.exists(name) else name
        for name in (options.spec or options.predictions, options.data)
        if isinstance(name, str)
    ]
    return "audits/" + "-".join(
        "".join(c if c.isalnum() or c in "._-" else "-" for c in part).strip("-.")[:LONGEST] for part in parts
    )


def _narrate(text: str) -> None:
    """With the time where nobody watches a terminal: logs are read later."""
    narrate(("" if sys.stderr.isatty() else time.strftime("%H:%M:%S ")) + text)
