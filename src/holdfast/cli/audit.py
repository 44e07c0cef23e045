"""``holdfast audit``: arguments to a call of :func:`holdfast.audit`, and what is printed of its result."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from holdfast.cli.common import console, narrate, parse, require_data, say
from holdfast.errors import HoldfastError, require
from holdfast.parts import CHECKS, data_syntax, model_syntax
from holdfast.settings.fields import Several, Unset, default_hint


@dataclass(frozen=True)
class AuditOptions:
    """What to audit, on what, and what it must reach."""

    spec: Annotated[Positional[str | None], arg(metavar="MODEL", help_behavior_hint=default_hint)] = None
    """What to audit; a weight file needs --model, and python: runs that code."""
    data: Unset[str] = None
    """What to measure it on: the test split of DATA."""
    checks: Several[str] = ()
    """Checks to measure (default: all)."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """CHECK.SETTING=VALUE, such as attacks.images=10000 or attacks.radii=0.01,0.02."""
    against: Several[str] = ()
    """Other models, compared on the same samples."""
    model: Unset[str] = None
    """Architecture of a weight file."""
    class_map: Unset[str] = None
    """JSON file that says which model class is which, or 'order' (default: by their names)."""
    preprocessing: str = "stated"
    """Done to images first: stated, none, imagenet, half, data, bgr, bytes, undo-imagenet, undo-half or undo-data."""
    output: Unset[Literal["logits", "probabilities", "log-probabilities", "sigmoid"]] = None
    """What the model's numbers are (default: decided on a sample)."""
    allow_random: bool = False
    """Audit a model whose answers change from call to call."""
    predictions: Unset[str] = None
    """CSV or Parquet file of predictions to audit instead of a model; --data is optional then."""
    group: UseAppendAction[tuple[str, ...]] = ()
    """Column of groups, each alone and crossed with the label."""
    root: Unset[str] = None
    """Where built-in sets lie (default: $HOLDFAST_ROOT, or ./data)."""
    data_seed: Unset[int] = None
    """Seed of the held-out split and of generated sets (default: the run's own, or 0)."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_" (default: the run's)."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA (default: the run's)."""
    image_size: Unset[int] = None
    """Side in pixels that images are read at (default: what the model was evaluated at, or their own)."""
    out: Unset[str] = None
    """The folder to write (default: audits/MODEL-DATA). An interrupted audit resumes there."""
    json: bool = False
    """Print the findings as JSON instead of a table."""
    quiet: bool = False
    """No narration."""
    budget: Unset[str] = None
    """About how long it may take, such as 5m; costly checks then take fewer images."""
    fail_under: UseAppendAction[tuple[str, ...]] = ()
    """Exit with 1 where a number is lower, such as worst_group_accuracy=0.7."""
    fail_on: Literal["value", "low"] = "value"
    """What gates judge: the value, or the end of its interval that speaks against the model."""
    max_drop: UseAppendAction[tuple[str, ...]] = ()
    """Exit with 1 where a number is lower than --against's by more, such as accuracy=0.01."""
    samples: Literal["csv", "parquet"] = "csv"
    """What the table of samples is written as; Parquet needs pyarrow."""
    no_images: bool = False
    """No pictures in what is written."""
    redact_paths: bool = False
    """No folders in what is written."""
    seed: int = 0
    """Seed of attacks, of samples that checks draw, and of intervals."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of the model's arithmetic."""
    batch_size: int = 256
    """Batch size; halved where memory runs out."""
    workers: int = 4
    """Processes that decode image files; 0 decodes in this process."""


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
    _check(options)
    from holdfast.audits import run_audit

    own = ("spec", "checks", "set", "model", "json", "quiet", "out")
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in own}
    out = Path(options.out or _default_out(options))
    with redirect_stdout(sys.stderr):  # whatever a model prints is not part of the results, which a pipeline reads
        made = run_audit.audit(
            options.spec,
            checks=options.checks or None,
            settings=settings,
            architecture=options.model,
            out=out,
            command=shlex.join(["holdfast", "audit", *words]),
            tell=_silent if options.quiet else _narrate,
            **given,
        )
    for note in made.warnings if options.quiet else ():  # never hidden
        _narrate(f"warning: {note}")
    _summarise(out)
    _print(made.files, out, as_json=options.json)
    return made.exit_code


def _about() -> str:
    """What the command does, and with which parts: read from their declarations, third parties' included."""
    lines = [
        f"{audit.__doc__}\n",
        f"MODEL is {model_syntax()}.",
        f"DATA is {data_syntax()}.",
        "Checks and their settings:",
    ]
    for part in CHECKS.values():
        own = ", ".join(f.name for f in fields(part.made) if not f.metadata.get("python_only"))
        lines.append(f"  {part.name}: {part.about}" + (f" Settings: {own}." if own else ""))
    return "\n".join(lines)


def _check(options: AuditOptions) -> None:
    """Refuse what is wrong whatever the model, before torch is imported."""
    if options.data is not None:
        require_data(options.data)
    require(
        bool(options.spec) != bool(options.predictions),
        "give either MODEL or --predictions FILE" + (", not both" if options.spec else "; 'holdfast audit --help'"),
    )
    require(options.data is not None or options.predictions is not None, "no data was given; name it with --data")


def _print(files: Any, out: Path, *, as_json: bool) -> None:
    from holdfast.reports.console import rich_table
    from holdfast.reports.overview import gates, overview, verdict

    if as_json:
        found = [(folder / "findings.json").read_text(encoding="utf-8") for folder in _folders(files, out)]
        print(found[0] if len(found) == 1 else "[" + ",\n".join(found) + "]", end="")
        return
    terminal = console()
    for file in files:
        for block in (overview(file), gates(file)):
            if block is not None:
                terminal.print(rich_table(block))
        say(verdict(file))
    say(f"report: {out / 'report.html'}")


def _folders(files: Any, out: Path) -> list[Path]:
    return [out] if len(files) == 1 else [out / str(file.model["name"]) for file in files]


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
        if name
    ]
    return "audits/" + "-".join(
        "".join(c if c.isalnum() or c in "._-" else "-" for c in part).strip("-.")[:LONGEST] for part in parts
    )


def _narrate(text: str) -> None:
    """With the time where nobody watches a terminal: logs are read later."""
    stamp = "" if sys.stderr.isatty() else time.strftime("%H:%M:%S ")
    narrate(stamp + text)


def _silent(text: str) -> None:
    """Nothing is said."""
