"""``holdfast repair``: options, and a call of ``holdfast.repair``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli.common import narrate, parse, require_data, say
from holdfast.parts import data_syntax
from holdfast.settings.command_settings import RepairSettings
from holdfast.settings.fields import Quiet, Unset, flatten


@dataclass(frozen=True)
class Repaired:
    """Which run, with which data."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """The run folder of a trained classifier."""


@dataclass(frozen=True)
class RepairOptions(RepairSettings, Repaired):
    """What to repair, and how."""

    data: Unset[str] = None
    """Data with a validation or training split to fit on (default: the run's own)."""
    out: Unset[str] = None
    """The new run folder (default: RUN-dfr, RUN-afr or RUN-calibrated)."""
    quiet: Quiet = False


def repair(words: list[str]) -> int:
    """Repair a trained run in seconds: new last layer (DFR, AFR), calibrated confidence, a threshold to abstain by."""
    options: RepairOptions = parse(
        RepairOptions, words, "repair", f"{repair.__doc__}\n\nDATA is {data_syntax()}.", negatable=True
    )
    if options.data is not None:
        require_data(options.data)
    from holdfast.settings.audit_settings import chosen_checks

    chosen_checks(options.checks)
    from holdfast.repairs import repair as run_repair

    values = flatten(options)
    run, quiet = values.pop("run"), values.pop("quiet")
    for name in ("strengths", "gammas", "pulls"):
        values[name] = tuple(values[name])
    made = run_repair(run, note=(lambda text: None) if quiet else narrate, **values)
    for item in made.notes if quiet else ():
        if item.level == "warning":  # never hidden
            narrate(f"warning: {item}")
    chosen = "".join(f", {name} {value:g}" for name, value in made.chosen.items())
    kind = {"dfr": "DFR", "afr": "AFR", "none": "kept"}[made.by]
    fitted = f"fitted on {made.held_out} images in {made.seconds:.1f} s"
    say(f"last layer: {kind}{chosen}, {fitted}; temperature {made.temperature:.3g}")
    say(f"abstains below a confidence of {made.threshold:.3g}")
    for line in _lines(made.audit):
        say(line)
    say(
        f"{made.out}"
        if made.audit is None
        else f"report: {made.out / 'report.html'}; both models: {made.out / 'audit' / 'report.html'}"
    )
    return 0


def _lines(found: object) -> list[str]:
    """The headline measures before and after, with their intervals."""
    from holdfast.audits.audit_result import Audit
    from holdfast.types import Finding, Unit

    if not isinstance(found, Audit):
        return []
    new, old = ({f.name: f for f in file.findings if not f.where} for file in found.files[:2])

    def shown(f: Finding) -> str:
        return f"{100 * (f.value or 0):.1f} % ({100 * (f.low or 0):.1f} to {100 * (f.high or 0):.1f})"

    titles = {
        m.name: m.title
        for m in found.measures.values()
        if m.unit is Unit.PERCENT and (m.headline or m.name == "accuracy")
    }
    both = [name for name in titles if name in new and name in old and None not in (new[name].value, old[name].value)]
    return [f"{titles[name]}: {shown(old[name])} -> {shown(new[name])}" for name in both]
