"""``holdfast.repair``: a run made better in seconds, on features of held-out images. Open it to see the order.

In order: the data is opened and cut as the run cut it; features of the held-out part are stored; a last layer is fitted
(DFR or AFR); logits are scaled (temperature); the confidence is found below which to abstain; a new run folder is
written; and both models are audited on the test split.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor, nn

from holdfast.audits.audit_result import Audit
from holdfast.audits.run_audit import audit
from holdfast.data import Dataset
from holdfast.devices import resolve_device
from holdfast.errors import require
from holdfast.files import write_atomic
from holdfast.metrics import (
    RiskCoverage,
    fit_temperature,
    proportion,
    risk_coverage,
    threshold_for_coverage,
    threshold_for_risk,
)
from holdfast.models import load_model, save_model
from holdfast.models.heads import find_heads
from holdfast.repairs.choose_layer import (
    StoredFeatures,
    choose_held_out,
    fit_layer,
    group_count,
    known_groups,
    open_data,
    source_name,
    store_features,
)
from holdfast.repairs.last_layer import FEWEST, LinearHead
from holdfast.reports import RunFiles, write_findings, write_report
from holdfast.reports.findings_file import AGAINST, PAIRED
from holdfast.settings import build, read_yaml
from holdfast.settings.audit_settings import chosen_checks
from holdfast.settings.command_settings import RepairSettings
from holdfast.train.folder import REPAIR, claim, environment
from holdfast.types import Finding, Measure, Note, Unit

AUDIT = "audit"
CHECK = "repair"
MEASURES = (
    Measure("selective_error", "error among the images that are answered", better="lower"),
    Measure("answered", "images that are answered", better="neither"),
    Measure("risk_coverage_area", "area under the risk–coverage curve", Unit.NUMBER, "lower", digits=4),
    Measure("temperature", "temperature of the logits", Unit.NUMBER, "neither", digits=3),
)
MOST_POINTS = 200
"""Points of a curve that are stored."""


@dataclass(frozen=True, eq=False)
class Repair:
    """What a repair did. out: the new run folder.

    by: "dfr", "afr" or "none". fitted_on: which images, in words, and held_out how many. chosen: what was chosen among
    the candidates, by name: C of dfr, gamma and pull of afr. temperature: what logits are divided by. threshold: the
    confidence below which to abstain. curve: risk and coverage on the held-out images. audit: of the new model,
    compared with the old one (``audit.files[1]``). seconds: without the audit.
    """

    out: Path
    by: Literal["dfr", "afr", "none"]
    fitted_on: str
    held_out: int
    chosen: Mapping[str, float]
    temperature: float
    threshold: float
    curve: RiskCoverage
    audit: Audit | None = None
    notes: tuple[Note, ...] = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        words = f"{self.by}, temperature {self.temperature:.3g}, abstains below {self.threshold:.3g}"
        return f"<Repair in {self.out}: {words}, fitted on {self.held_out} images>"


def repair(
    run: str | Path | Any,
    *,
    data: str | Path | Dataset | None = None,
    out: str | Path | None = None,
    note: Callable[[str], None] | None = None,
    **settings: Any,
) -> Repair:
    """Give a trained run a better last layer, calibrated confidence and a threshold to abstain by, in a new run folder.

    run: the folder of a finished training, or the result of :func:`holdfast.fit` with one. data: what
    ``holdfast.data.load`` takes, or a loaded set; the run's own by default. Everything is fitted on its validation
    split or, where there is none, on a share of its training split, which is said; never on a test split. out: the new
    folder, RUN-dfr or the like by default; ``predict``, ``audit`` and ``report`` take it as any run. note: called with
    each line of narration. settings: the fields of :class:`RepairSettings`, which are the flags of ``holdfast repair``.

    >>> import tempfile, holdfast
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = holdfast.fit("coloured-digits", val=0.3, epochs=1, out=f"{place}/erm", device="cpu", progress=False)
    ...     made = holdfast.repair(run, audit=False, device="cpu", strengths=(0.1,))
    >>> made.by, made.held_out
    ('dfr', 359)
    """
    own, started, say = build(RepairSettings, settings, where="repair"), time.monotonic(), note or (lambda text: None)
    folder = _folder(run)
    chosen_checks(own.checks)
    model, card = load_model(folder)
    heads = find_heads(model)
    one = f"the logits of {folder} come from {len(heads)} layers; only a network with one last layer can be repaired"
    require(len(heads) == 1, one)
    device = resolve_device(own.device)
    model.to(device)
    opened = open_data(folder, data, card, own)
    held = choose_held_out(folder, opened, data, own)
    first = _head_of(heads[0][1])
    say(f"features of {len(held.images)} images: {held.split}")
    stored = store_features(model, held.images, first, own)
    by = _chosen(own.by, stored, len(held.images))
    place = (
        Path(out)
        if out is not None
        else folder.with_name(f"{folder.resolve().name}-{'calibrated' if by == 'none' else by}")
    )
    require(place.resolve() != folder.resolve(), f"out {place} is the run itself, which is kept; choose another")
    with claim(place, overwrite=own.overwrite, data=source_name(folder, data)) as claimed:
        notes = [*held.notes]
        layer = fit_layer(by, stored, first, own)
        notes += layer.notes
        logits = layer.logits
        temperature = fit_temperature(logits, stored.labels) if own.temperature else 1.0
        scaled = (logits / temperature).softmax(1)
        confidence, answer = scaled.max(1)
        correct = answer == stored.labels
        threshold = (
            threshold_for_coverage(confidence, own.coverage)
            if own.risk is None
            else threshold_for_risk(confidence, correct, own.risk)
        )
        curve = risk_coverage(confidence, correct)
        for item in notes:
            say(f"{'warning: ' if item.level == 'warning' else ''}{item}")
        new = layer.head.divided(temperature)
        _put(heads[0][1], new)
        claimed.clear()
        shutil.rmtree(place / AUDIT, ignore_errors=True)
        made = Repair(
            place, by, held.split, len(held.images), layer.chosen, temperature, threshold, curve, None, tuple(notes)
        )
        _write(made, folder, model, card, own)
        seconds = time.monotonic() - started
        found = None
        if own.audit and opened.test is not None:
            say(f"audit of {folder} and {place} on the test split: {len(opened.test)} images")
            same = {name: getattr(own, name) for name in ("root", "confine", "seed", "device", "batch_size", "workers")}
            checks = (
                own.checks or ("accuracy", "groups")
                if bool((opened.test.groups >= 0).any())
                else own.checks or ("accuracy",)
            )
            found = audit(
                str(place), source_name(folder, data), against=str(folder), checks=checks, out=place / AUDIT,
                tell=lambda text: None, **same,
            )  # fmt: skip
            tested = store_features(model, opened.test, new, own)
            before = _abstention(first(tested.features), tested.labels, threshold, "before")
            after = _abstention(tested.logits, tested.labels, threshold, "after")
            warm = Finding(CHECK, "temperature", temperature, len(held.images), settings={"fitted_on": held.split})
            _report(place, found, [*after, *before, warm], made)
    return Repair(**{**vars(made), "audit": found, "seconds": seconds})


def _folder(run: Any) -> Path:
    found = run if isinstance(run, (str, Path)) else getattr(run, "out", None)
    require(
        found is not None,
        f"a repair reads a run folder, got {type(run).__name__} without one; train with out='runs/mine'",
    )
    folder = Path(str(found))
    require((folder / "run.yaml").is_file(), f"{folder} is not the folder of a training run: it has no run.yaml")
    return folder


def _chosen(by: str, stored: StoredFeatures, count: int) -> Literal["dfr", "afr", "none"]:
    """Which last layer: the one that was asked for, or the one that the groups allow."""
    require(count >= FEWEST, f"{count} held-out images are too few to fit on; give at least {FEWEST}")
    known, groups = len(known_groups(stored)), group_count(stored)
    if by == "auto":
        return "dfr" if groups >= 2 else "afr"
    needs = f"dfr needs held-out images of at least two groups, and there are {groups} ({known} images with a group)"
    require(by != "dfr" or groups >= 2, f"{needs}; give the data a group column, or use --by afr")
    return by  # type: ignore[return-value]


def _head_of(layer: nn.Linear | nn.Conv2d) -> LinearHead:
    weight = layer.weight.detach().flatten(1).double().cpu()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double().cpu()
    return LinearHead(weight, bias)


@torch.no_grad()
def _put(layer: nn.Linear | nn.Conv2d, head: LinearHead) -> None:
    need = "the last layer has no bias, and the new one needs it; use --by none"
    require(layer.bias is not None or not bool(head.bias.any()), need)
    layer.weight.copy_(head.weight.view_as(layer.weight))
    if layer.bias is not None:
        layer.bias.copy_(head.bias)


def _abstention(logits: Tensor, labels: Tensor, threshold: float, which: str) -> list[Finding]:
    """Risk and coverage on the test split, which nothing was chosen by."""
    confidence, answer = logits.softmax(1).max(1)
    correct, answered = answer == labels, confidence >= threshold
    curve, where = risk_coverage(confidence, correct), {"model": which}
    error, share = proportion(~correct[answered]) if bool(answered.any()) else None, proportion(answered)
    settings = {"threshold": threshold}
    return [
        Finding(CHECK, "selective_error", error.value, error.n, error.low, error.high, where, settings)
        if error is not None
        else Finding(CHECK, "selective_error", None, 0, where=where, settings=settings),
        Finding(CHECK, "answered", share.value, share.n, share.low, share.high, where, settings),
        Finding(CHECK, "risk_coverage_area", curve.area, curve.n, where=where, evidence={"curve": thinned(curve)}),
    ]


def thinned(curve: RiskCoverage) -> dict[str, list[float]]:
    """A curve as plain values, with as many points as a chart can show."""
    step = max(1, len(curve.risk) // MOST_POINTS)
    return {
        name: [round(v, 6) for v in (*getattr(curve, name)[:-1:step], getattr(curve, name)[-1])]
        for name in ("threshold", "coverage", "risk")
    }


def _write(made: Repair, run: Path, model: nn.Module, card: Any, own: RepairSettings) -> None:
    """The new run folder: settings of the old run, what was done to it, and the model; the card is written last."""
    content = dict(read_yaml(run / "run.yaml"))
    old = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8")).get("environment") or {}
    kept = {key: old[key] for key in ("data_sha256", "data_path", "own_data") if key in old}
    content["environment"] = {**environment(), **kept, "repaired_from": str(run), "repaired_by": made.by}
    record = {
        "format": 1, "run": str(run), "by": made.by, "fitted_on": made.fitted_on, "held_out": made.held_out,
        "chosen": dict(made.chosen), "temperature": made.temperature, "threshold": made.threshold,
        "curve": thinned(made.curve), "settings": asdict(own), "notes": [asdict(n) for n in made.notes],
    }  # fmt: skip
    write_atomic(made.out / "run.yaml", yaml.safe_dump(content, sort_keys=False).encode())
    write_atomic(made.out / REPAIR, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    save_model(made.out, model, card=card)


def _report(place: Path, found: Audit, more: list[Finding], made: Repair) -> None:
    file = found.files[0]
    model = {"name": place.name, "repaired_by": made.by} | {k: v for k, v in file.model.items() if k != "name"}
    write_findings(
        place / "findings.json", [*file.findings, *more], model=model, data=file.data, run=file.run,
        checks=file.checks, measures={AGAINST: PAIRED, CHECK: MEASURES},
    )  # fmt: skip
    write_report([RunFiles.read(place)], place / "report.html")
