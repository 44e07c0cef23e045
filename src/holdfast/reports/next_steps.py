"""What to do next, with commands that fit the findings. Open it to change when a step is proposed.

Which commands help against a bad number is declared by its measure; here stands when a number is bad, what was done
already, and how a command names this model and this data.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast.reports.arms import AVERAGE, Arm, arms, named
from holdfast.reports.findings_file import measure_of
from holdfast.reports.report_tables import baseline_arm, best_arm
from holdfast.reports.robustness_summary import RobustnessResult, headline_findings, robustness
from holdfast.reports.run_files import RunFiles
from holdfast.reports.text import finite, quantity
from holdfast.types import Finding, Measure, Unit

MOST_STEPS = 5
IN_MEMORY = "module"
"""The source of a model that was handed over in Python: no command can name it."""
LAST_LAYERS = ("dfr", "afr")
TERMS = {
    "train": ("conflict", "data_seed", "names", "label", "group", "columns"),
    "audit": ("data_seed", "names", "label", "group", "columns"),
    "shortcuts": ("conflict", "data_seed", "names", "label", "group"),
}
"""How data was read, which a command must say again, by the commands that take it."""
SAYS_MORE = "weak slices, corruptions, attacks, OOD inputs, curvature and saliency"


@dataclass(frozen=True, slots=True)
class Command:
    """line: to be run as it is, in a shell or in Python. does: what it does, in words."""

    line: str
    does: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """why: what was found. commands: what helps, the first first."""

    why: str
    commands: tuple[Command, ...]


def next_steps(runs: Sequence[RunFiles]) -> list[Step]:
    """Of one audit; of several models, of the one that was audited against the others, or else of the last, by name.

    Of trainings that were not audited: an audit of the best against the baseline.
    """
    audited = [run for run in runs if run.checks]
    if not audited:
        return [*_of_trainings(runs)][:MOST_STEPS]
    run = next((run for run in audited if any(f.check == "against" for f in run.findings)), audited[-1])
    found = robustness(run.findings, run.measures, run.gates)
    # against a model that guesses, nothing helps that is meant for one that fails somewhere
    bad = [*_crashed(run), *([] if (guesses := any(r.guess for r in found)) else _bad_numbers(run, found))]
    steps = _each_once(bad if bad or guesses else [*_keep_it_so(run, found)])
    of = f"{run.name}: " if len(runs) > 1 else ""
    return [Step(of + step.why, step.commands) for step in steps[:MOST_STEPS]]


def _each_once(steps: Sequence[Step]) -> list[Step]:
    """Every command where it is first proposed; a step that adds none is left out."""
    told: set[str] = set()
    kept = []
    for step in steps:
        new = tuple(command for command in step.commands if command.line not in told)
        told |= {command.line for command in new}
        kept += [Step(step.why, new)] if new else []
    return kept


def _crashed(run: RunFiles) -> Iterator[Step]:
    for record in run.checks:
        if record.state == "crashed":
            command = f"holdfast audit MODEL --data DATA --checks {shlex.quote(record.name)}"
            yield Step(f"The check {record.name} crashed. Run it alone:", _filled(run, [command]))


def _bad_numbers(run: RunFiles, found: Sequence[RobustnessResult]) -> Iterator[Step]:
    """Clear drops, the surest first; then other headline numbers that are poor or beyond what chance explains.

    Also those that no command is known against: nobody should read that nothing failed.
    """
    dropping = [r for r in found if r.clear(found[0]) or not r.passed]
    for r in sorted(dropping, key=lambda r: (r.changed_images, -r.sure_drop(found[0]))):
        yield Step(f"{r.share()}.", _filled(run, r.remedies))
    told = {r.name for r in dropping}
    for measure, own in headline_findings(run.findings, run.measures):
        bad = next((f for f in own if _poor(f, measure)), None)
        if bad is not None and measure.name not in told:
            value = quantity(measure, finite(bad.value) or 0.0)
            share = measure.unit is Unit.PERCENT
            why = f"{value} {measure.title}." if share else f"{measure.title.capitalize()}: {value}."
            yield Step(why, _filled(run, measure.remedies))


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
        text = f"holdfast audit MODEL --data DATA {asked} # fails where a later model is worse"
        yield Step("Nothing failed. Gates keep it so:", _filled(run, [text]))


def _of_trainings(runs: Sequence[RunFiles]) -> Iterator[Step]:
    """What fails in a single training; then the audit of it, or of the best of several against the baseline."""
    groups = [arm for arm in arms(runs) if arm.measured(AVERAGE)]
    if not groups or len({arm.data for arm in groups}) > 1:
        return
    where = " In the folder that holds the run:" if Path(runs[0].folder).is_absolute() else ""
    if len(runs) == 1:
        found = robustness(runs[0].findings, runs[0].measures)
        for step in _each_once([*_bad_numbers(runs[0], found)])[: MOST_STEPS - 1]:
            yield Step(step.why + where, step.commands)
    (best, _), baseline = best_arm(groups), baseline_arm(groups)
    run, other = _same_seed(best, None if baseline is best else baseline)
    if not _folder(run) or (other is not None and not _folder(other)):
        return
    grouped = any(f.check == "groups" and finite(f.value) is not None for f in run.findings)
    measured = f"Only clean accuracy {'and groups are' if grouped else 'is'} measured so far."
    words = ["holdfast", "audit", _folder(run), *(["--against", _folder(other)] if other is not None else [])]
    if other is not None:
        why = f"{measured} Audit {best.label}, the best here, against {baseline.label if baseline else ''}."
        does = f"measures {SAYS_MORE}, both models on the same images"
    else:
        why, does = f"{measured} Audit the rest.", f"measures {SAYS_MORE}"
    yield Step(why + where.replace("run", "runs" if len(runs) > 1 else "run"), (Command(shlex.join(words), does),))


def _same_seed(best: Arm, baseline: Arm | None) -> tuple[RunFiles, RunFiles | None]:
    """The first run of an arm, and the baseline's with the same seed where there is one."""
    run = best.runs[0]
    if baseline is None:
        return run, None
    same = (other for other in baseline.runs if other.settings.get("seed") == run.settings.get("seed"))
    return run, next(same, baseline.runs[0])


def _trained(run: RunFiles) -> Mapping[str, Any]:
    """How the model was trained, as its run says, or as an audit noted it; empty where nobody knows."""
    given = run.settings or run.model.get("trained")
    return given if isinstance(given, Mapping) else {}


def _folder(run: RunFiles) -> str:
    """The run folder that commands can name; empty where there is none, or where data or model came from Python.

    Of a training's own by its name alone where that was absolute: a page tells nobody where things lie.
    """
    own = run.environment if run.settings else _trained(run)
    if "own_data" in own or "own_model" in own:
        return ""
    if run.settings:
        return Path(run.folder).name if Path(run.folder).is_absolute() else run.folder
    return str(run.model.get("spec") or "") if run.model.get("source") == "run" else ""


def _done_already(run: RunFiles, words: Sequence[str]) -> bool:
    """Whether a command would do again what was done: train in the same way, repair what is repaired, measure alike."""
    trained = _trained(run)
    flags = dict(pairwise(words))
    for flag, key in (("--method", "method"), ("--ascent", "ascent"), ("--auto-augment", "auto_augment")):
        if flag in flags and flags[flag] == named(trained.get(key)):
            return True
    if "--auto-augment" in flags and named(trained.get("auto_augment")) not in ("", "none"):
        return True
    if words[1:2] == ["repair"]:
        told = (own.get("repaired_by") for own in (run.model, trained, run.environment))
        repaired = next((str(by) for by in told if by), "")
        return bool(repaired) if flags.get("--by") == "none" else repaired in LAST_LAYERS
    check, _, change = flags.get("--set", "").partition(".")
    key, _, value = change.partition("=")
    used = max((f.n for f in run.findings if f.check == check), default=0)
    return key == "images" and used >= min(float(value), finite(run.data.get("n")) or math.inf)


def _filled(run: RunFiles, remedies: Sequence[str]) -> tuple[Command, ...]:
    """Remedies that are not done already, with the names of this audit: as commands, or in Python where nothing else
    can name the model or the data."""
    made = []
    for text in remedies:
        line, _, does = text.partition(" # ")
        words = line.split()
        if words[:1] == ["holdfast"] and not _done_already(run, words):
            made.append((_on_command_line(run, words) or _in_python(run, words), does))
    return tuple(Command(line, does) for line, does in made if line)


def _on_command_line(run: RunFiles, words: Sequence[str]) -> str:
    """A command with its model and data; empty where it cannot name them."""
    folder, data = _folder(run), _data_words(run, words[1])
    model = _model_words(run)
    config = ["--config", f"{folder}/run.yaml"] if folder and words[1] == "train" else None
    if config is not None:  # its network, its length and its data, and not the defaults
        data = config
    if words[1] == "shortcuts" and not folder and data is not None:
        return " ".join(["holdfast", "shortcuts", *map(shlex.quote, data)])
    if ("RUN" in words and not folder) or ("DATA" in words and data is None) or ("MODEL" in words and model is None):
        return ""
    given = {"RUN": [folder], "MODEL": model or [], "--data": [], "DATA": data or []}
    return " ".join(w for word in words for w in (map(shlex.quote, given[word]) if word in given else [word]))


def _model_words(run: RunFiles) -> list[str] | None:
    """What names the audited model on a command line; None where nothing does."""
    spec, source = str(run.model.get("spec") or ""), run.model.get("source")
    if source == "predictions":
        return ["--predictions", spec]
    if source == "weights":
        network = run.model.get("architecture")
        return [spec, "--model", network] if isinstance(network, str) else None
    return [spec] if spec and source != IN_MEMORY else None


def _data_words(run: RunFiles, command: str) -> list[str] | None:
    """What names the data on a command line, and how it was read; None where it came from Python."""
    given = run.data.get("spec", run.data.get("name"))  # files of versions before this one have no spec
    if not given:
        return [] if run.model.get("source") == "predictions" else None
    more = []
    for key in TERMS.get(command, ()):
        if value := run.data.get(key):
            more += [f"--{key.replace('_', '-')}", str(value)]
    return ["--data", str(given), *more]


def _in_python(run: RunFiles, words: Sequence[str]) -> str:
    """The same as a call; empty for what needs a run folder, or takes more than this knows.

    >>> _in_python(RunFiles("net"), "holdfast train --data DATA --method lff".split())
    'holdfast.fit(data, method="lff")'
    """
    data = str(run.data.get("spec") or "")
    model = _model_words(run) or []
    values = {
        "DATA": json.dumps(data) if data else "data",
        "MODEL": json.dumps(model[0]) if len(model) == 1 else "model",
    }
    calls = {
        "train": ("fit", ["DATA"]),
        "audit": ("audit", ["MODEL", "DATA"]),
        "shortcuts": ("find_shortcuts", ["DATA"]),
    }
    if words[1] not in calls:
        return ""
    name, needed = calls[words[1]]
    more: dict[str, Any] = {}
    for flag, value in pairwise(words[2:]):
        if flag == "--checks":
            more["checks"] = [value]
        elif flag == "--fail-under":
            measure, _, least = value.partition("=")
            more.setdefault("fail_under", {})[measure] = float(least)
        elif flag == "--set":
            place, _, number = value.partition("=")
            check, _, key = place.partition(".")
            more["settings"] = {check: {key: json.loads(number)}}
        elif flag.startswith("--") and flag != "--data":
            more[flag[2:].replace("-", "_")] = value
    arguments = [values[word] for word in needed] + [f"{key}={json.dumps(value)}" for key, value in more.items()]
    return f"holdfast.{name}({', '.join(arguments)})"
