"""The audit: any model on any data, measured by every check, compared, held to gates, and reported.

``holdfast.audit`` is the function below, and ``holdfast audit`` parses arguments and calls it. In order: settings and
gates are checked, models are opened and aligned with the data, every check is measured, models are compared, gates are
judged, and the folder is written. In shards (sharded_audit.py), what checks compute of single samples is there before
they run.
"""

from __future__ import annotations

import re
import time
import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from holdfast.audits.audit_data import check_request
from holdfast.audits.audit_folder import check_kind, claim, redaction, run_record, without_pictures, write_audit
from holdfast.audits.audit_result import Audit
from holdfast.audits.comparing import against as lead_over
from holdfast.audits.comparing import corrected
from holdfast.audits.gates import Gate, Gates, judge_all, no_warnings, parse_gates, require_parts
from holdfast.audits.measuring import CheckOutcome, check_key, measure_all, parse_budget, read_check
from holdfast.audits.open_models import AuditedModel, open_all
from holdfast.audits.sharded_audit import ShardedAudit
from holdfast.data.given_data import KINDS
from holdfast.data.tables import require_writable
from holdfast.devices import resolve_device, tf32_as_asked
from holdfast.errors import require
from holdfast.executors import require_engine
from holdfast.models.sources.module import made_by
from holdfast.module_state import evaluating
from holdfast.parts import CHECKS
from holdfast.reports.findings_file import AGAINST, PAIRED, CheckRecord, FindingsFile, read_findings
from holdfast.reports.robustness_summary import headline_findings
from holdfast.reports.text import part
from holdfast.settings import data_of_run
from holdfast.settings.audit_settings import (
    AuditSettings,
    MeasuringPrecision,
    chosen_checks,
    make_checks,
    make_settings,
)
from holdfast.trackers import AUDIT_ARTIFACTS, Tracking
from holdfast.train.distributed import Ranks, joined
from holdfast.train.progress import Progress, make_progress
from holdfast.train.run_result import Run
from holdfast.types import Finding, Note

if TYPE_CHECKING:
    Audited = str | Path | Run | nn.Module | Callable[..., Any]
    """A run folder or any specification of a model, the result of a training, a module, or a callable."""


def audit(
    model: Audited | None = None,
    data: Any = None,
    *,
    checks: Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, Any] | Any] | None = None,
    against: Audited | Sequence[Audited] = (),
    fail_under: Gates = (),
    max_drop: Gates = (),
    fail_over: Gates = (),
    out: str | Path | None = None,
    command: str = "",
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
    shards: int | None = None,
    **more: Any,
) -> Audit:
    """Measure a model by every check, or by those named in ``checks``.

    model: a run folder or any specification that ``holdfast audit`` takes; the result of :func:`holdfast.fit`; or a
    module or callable from images in [0, 1] to one row per image (a tensor, something with ``.logits``, or holding a
    single tensor), in the order of the data's classes unless it names them. A module is returned to its state, on the
    audit's device. A class, or a function without arguments, is called to make one. data: what
    :func:`holdfast.data.load` takes, or what it returned; the test split is measured (for a loader with test data
    only, give {"test": loader}). A run knows its own. settings: of checks, by name. against: other models, compared on
    the same samples. fail_under, fail_over, max_drop: gates, such as {"worst_group_accuracy": 0.7,
    "class_accuracy:cat": 0.6}, {"ece": 0.05}, {"accuracy": 0.01}. out: the folder to write, where an interrupted audit
    resumes; without one nothing is written. tell: called with each line of narration; without one, warnings are raised
    as Python warnings. progress: a bar while it measures; by default on a terminal and in a notebook, if ``tell`` is
    not given. shards: compute predictions and checks in this many shards of the test set, in parallel processes; needs
    ``out``. more: further settings, with the names and defaults of :class:`AuditSettings`, which are the flags of
    ``holdfast audit``, such as the next two. architecture: for a weight file, a name, "python:package.module:function",
    or a class or function that makes it. class_map: which output is which class: a mapping, a JSON file or "order".

    A check that crashes leaves its state and a warning; the others continue.

    >>> import torch
    >>> dark = lambda x: x.mean((1, 2, 3))[:, None] * -torch.arange(10)
    >>> made = audit(dark, "digits", checks=["accuracy"], device="cpu", fail_under={"accuracy": 0.5})
    >>> made.passed, made["accuracy"].n
    (False, 599)
    """
    # A run folder and a file of predictions may go without data; a module cannot.
    require(data is not None or not isinstance(model, nn.Module), f"data must be {KINDS}, got None")
    chosen = chosen_checks(checks)
    made = make_checks(settings or {})
    others = [against] if isinstance(against, str | Path) or not isinstance(against, Sequence) else list(against)
    gates = parse_gates(fail_under, max_drop, fail_over, against=bool(others), checks=made)
    said: list[Note] = []
    if data is None and isinstance(model, Run):
        data = model.data
    elif data is None and isinstance(model, str | Path) and (own := data_of_run(model)) is not None:
        data, root = own
        more["root"] = more.get("root") or root
        said.append(Note("data-of-run", f"{data}, which {model} was trained on", "--data names another"))
    request = make_settings(data=data, shards=shards, **more)
    check_request(request)
    if shards is not None:
        require(out is not None, "shards need a folder to keep what they compute; name one with out")
        require(request.predictions is None, "predictions were made, and shards would compute them; leave --shards out")
        require_writable(".parquet")
        require_engine(request.engine)
    check_kind(request.samples)
    given = [str(one) if isinstance(one, Path) else made_by(one) for one in ([] if model is None else [model]) + others]
    with ExitStack() as borrowed:  # a module is given back in the mode it came in
        for one in given:
            if isinstance(module := one.model if isinstance(one, Run) else one, nn.Module):
                borrowed.enter_context(evaluating(module))
        ranks = borrowed.enter_context(joined(request.device)) if shards is not None else None
        first = ranks is None or ranks.first  # of several ranks one speaks and writes
        how: dict[str, Any] = {"note": tell or python_warnings.warn, "artifacts": AUDIT_ARTIFACTS, "what": "audit"}
        tracking = borrowed.enter_context(
            Tracking(request.track if first else (), project=request.track_project, **how)
        )
        silent = not first or (tell is not None and progress is None)
        shown = borrowed.enter_context(make_progress(False if silent else progress))
        heard = tell if first else (lambda text: None)
        where = resolve_device(request.device) if ranks is None else ranks.device
        request = replace(request, precision=measuring_precision(request.precision, where))
        borrowed.enter_context(tf32_as_asked(request.precision))
        return _audit(given, request, where, chosen, made, gates, out, command, heard, said, shown, tracking, ranks)


def _audit(
    given: Sequence[Any],
    request: AuditSettings,
    where: torch.device,
    chosen: Sequence[str],
    made: Mapping[str, Any],
    gates: Sequence[Gate],
    out: str | Path | None,
    command: str,
    tell: Callable[[str], None] | None,
    first: Sequence[Note],
    progress: Progress,
    tracking: Tracking,
    ranks: Ranks | None,
) -> Audit:
    seconds = None if request.budget is None else parse_budget(request.budget)
    place, started = None if out is None else Path(out), time.monotonic()
    if place is not None:
        claim(place, several=len(given) > 1, data=request.data)
    said: list[Note] = []
    line = tell or (lambda text: None)

    def say(about: str, *notes: Note) -> None:  # line by line, or as Python warnings
        for note in notes:
            said.append(note)
            warning = note.level == "warning"
            line(": ".join(filter(None, (about, "warning" if warning else "", str(note)))))
            if tell is None and warning:
                python_warnings.warn(str(note), RuntimeWarning, stacklevel=4)

    say("data", *first)
    checks, key = {name: made[name] for name in chosen}, partial(_key, request=request)
    first_gates = partial(_require_parts, gates, made)
    if request.shards is None or place is None:
        models = open_all(given, request, checks, where, say, progress, [first_gates])
    else:  # a budget is of one process's time, and so are the checks that it cuts
        shared = {name: own for name, own in checks.items() if seconds is None or not CHECKS[name].share}
        with ShardedAudit(place, request, shared, key, ranks=ranks, progress=progress, tell=line) as shards:
            models = open_all(given, request, checks, where, say, progress, [first_gates, shards.predict])
            shards.compute(models, lambda m, name: _kept(_folder(place, m, models), name, made[name], key(m)) is None)
        if ranks is not None and not after_first(ranks):
            files = tuple(read_findings(_folder(place, m, models) / "findings.json") for m in models)
            return Audit(files, tuple(said), place)
    texts = [one for one in (request.data, request.predictions, request.class_map, *given) if isinstance(one, str)]
    hide = redaction([*texts, place]) if request.redact_paths else lambda value: value

    def change(found: Finding) -> Finding:
        found = without_pictures(found) if request.no_images else found
        return replace(found, evidence=hide(found.evidence), settings=hide(found.settings))

    tracking.begin(hide(_tracked(models, request, chosen)), folder=place)
    folders = [None if place is None else _folder(place, m, models) for m in models]
    results = []
    progress.begin("audit", len(models), len(chosen), 0)
    for i, (one, folder) in enumerate(zip(models, folders, strict=True)):
        share = None if seconds is None else (seconds - (time.monotonic() - started)) / (len(models) - i)
        kept: dict[str, Any] = {"kept": None if folder is None else folder / KEPT, "key": key(one), "change": change}
        own = measure_all(one, chosen, made, seconds=share, **kept, tell=line, progress=progress)
        results.append(own)
        for outcome in own:
            say(f"{one.name}: {outcome.name}", *outcome.warnings)
            if outcome.state == "crashed" and tell is None:
                python_warnings.warn(f"check {outcome.name} crashed: {outcome.reason}", RuntimeWarning, stacklevel=3)
    paired = zip(models, results, strict=True)
    found = [[*(f for outcome in outcomes for f in outcome.findings), *one.extra] for one, outcomes in paired]
    rivals = zip(models[1:], found[1:], strict=True)
    found[0] += corrected([f for other, theirs in rivals for f in lead_over(models[0], other, found[0], theirs)])
    states = {o.name: (o.state, o.reason) for o in results[0]}
    judged = judge_all(gates, request.fail_on, [m.name for m in models], found, states)
    judged += [no_warnings([note for note in said if note.level == "warning"])] if request.fail_on_warning else []
    run = hide(run_record(request, where, command) | {"batch_size": models[0].subject.batch_size})
    measures = {(AGAINST, m.name): m for m in PAIRED}
    measures |= {(check, m.name): m for check in chosen for m in CHECKS[check].measures}
    made_files = []
    for i, (one, of_one, outcomes) in enumerate(zip(models, found, results, strict=True)):
        plain = (hide(asdict(replace(o, findings=(), seconds=round(o.seconds, 3)))) for o in outcomes)
        records, gated = tuple(CheckRecord.of(values).declared() for values in plain), tuple(judged) if i == 0 else ()
        made_files.append(FindingsFile(tuple(of_one), hide(one.model), hide(one.data), run, records, measures, gated))
    files = tuple(made_files)
    if place is not None:
        files = write_audit(place, files, models, [f for f in folders if f is not None], request, line)
    made_audit = Audit(files, tuple(said), place)
    if len(models) > 1:  # the findings of each model are in a folder of its own
        tracking.artifacts += (f"{models[0].name}/findings.json",)
    tracking.results({**headline_values(files[0]), "passed": float(made_audit.passed)})
    if ranks is not None:
        ranks.store.add(WRITTEN, 1)
    return made_audit


WRITTEN: Final = "audit/written"
KEPT: Final = "checks"
"""Where the folder of a model keeps the results of checks that are done."""


def after_first(ranks: Ranks) -> bool:
    """Whether this rank is the one that measures, once all shards are there; the others wait until it has."""
    ranks.wait_for_all()
    while not ranks.first and not ranks.store.add(WRITTEN, 0):
        time.sleep(0.1)
    return ranks.first


def _folder(place: Path, model: AuditedModel, models: Sequence[AuditedModel]) -> Path:
    """Where the findings of a model go: into a folder of its own where there are several."""
    return place / model.name if len(models) > 1 else place


def _require_parts(gates: Sequence[Gate], made: Mapping[str, Any], models: Sequence[AuditedModel]) -> None:
    require_parts(gates, made, models[0].subject)


def _kept(folder: Path, name: str, made: Any, key: Mapping[str, Any]) -> CheckOutcome | None:
    return read_check(folder / KEPT, name, check_key(name, made, key))


def measuring_precision(asked: MeasuringPrecision, device: torch.device) -> MeasuringPrecision:
    """The precision that ``auto`` is: tf32 on a GPU that has it, which torch itself takes for convolutions.

    It keeps the range of fp32 and ten bits of each number, so that measurements on different devices stay comparable.
    """
    if asked != "auto":
        return asked
    return "tf32" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def _tracked(models: Sequence[AuditedModel], request: AuditSettings, chosen: Sequence[str]) -> dict[str, Any]:
    """What a tracker is told of the settings of an audit."""
    names = [one.name for one in models]
    plain: dict[str, Any] = {k: str(v) for k, v in vars(request).items() if v is not None and v != ()}
    plain |= {"data": models[0].data["name"], "model": names[0], "checks": " ".join(chosen)}
    return plain | ({"against": " ".join(names[1:])} if names[1:] else {})


def headline_values(file: FindingsFile) -> dict[str, float]:
    """The headline measures of a model as plain numbers; one of several parts has its part in its name.

    >>> from holdfast.types import Measure
    >>> found = Finding("attacks", "robust", 0.4, 10, where={"radius": "8/255", "norm": "L∞ (all)"})
    >>> measures = {("attacks", "robust"): Measure("robust", "accuracy under attack", headline=True)}
    >>> headline_values(FindingsFile((found,), {}, {}, measures=measures))
    {'robust/radius 8 255 norm L all': 0.4}
    """
    found = {}
    for measure, own in headline_findings(file.findings, file.measures):
        for f in own:
            # trackers take letters, digits and a few signs
            where = "/" + " ".join(re.findall(r"[\w.-]+", part(f.where))) if f.where else ""
            if f.value is not None:
                found[f"{measure.name}{where}"] = f.value
    return found


def _key(model: AuditedModel, request: AuditSettings) -> dict[str, Any]:
    """All that the numbers of a check depend on. With a budget they depend on time too: what was measured stays."""
    aligned = ("source", "hash", "answers_hash", "classes", "output", "preprocessing", "surrogate")
    asked = ("seed", "precision", "batch_size", "budget", "no_images", "redact_paths")
    return {
        "model": {k: model.model.get(k) for k in aligned},
        "data": {k: model.data[k] for k in ("hash", "n", "classes", "shape")},
        "device": model.subject.device.type,
        "group": list(request.group),
        "columns": [model.words.test, model.words.train],
        **{k: getattr(request, k) for k in asked},
    }
