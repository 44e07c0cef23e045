"""Every check in turn, each in a state of its own: one that fails does not take the others along."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import nn

from holdfast.audits.alignment.aligned_model import AlignedModel
from holdfast.audits.alignment.outputs import KINDS, check_finite, decide_kind, kind_warning, to_logits
from holdfast.audits.checks.accuracy import accuracy_check
from holdfast.audits.checks.attacks import attacks
from holdfast.audits.checks.corruptions import corruptions
from holdfast.audits.checks.curvature import curvature
from holdfast.audits.checks.groups import groups
from holdfast.audits.checks.ood import ood
from holdfast.audits.checks.saliency import saliency
from holdfast.audits.checks.slices import slices
from holdfast.audits.subject import Subject, check_measuring
from holdfast.data import Dataset, load
from holdfast.data.splits import admitted
from holdfast.devices import resolve_device
from holdfast.errors import HoldfastError, require, unknown
from holdfast.models.loaded_model import prepared_module
from holdfast.models.preprocessing import PreprocessedModel
from holdfast.types import Finding

State = Literal["measured", "not applicable", "crashed", "skipped"]

CHECKS: Final[Mapping[str, Callable[..., tuple[Finding, ...]]]] = {
    "accuracy": accuracy_check,
    "groups": groups,
    "slices": slices,
    "corruptions": corruptions,
    "attacks": attacks,
    "ood": ood,
    "curvature": curvature,
    "saliency": saliency,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    reason: why it was not measured; empty where it was. settings: what it was told beyond its defaults. seconds: how
    long it took. notes: what happened on the way. findings: empty where it crashed or was skipped.
    """

    check: str
    state: State
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Plain values for findings.json, which holds the findings themselves elsewhere."""
        return {
            "name": self.check,
            "state": self.state,
            "reason": self.reason,
            "settings": dict(self.settings),
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
        }


def check_names(names: Sequence[str]) -> list[str]:
    """The names of checks in the order they are measured, each once; an unknown one is refused."""
    for name in names:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    return [name for name in CHECKS if name in names]


def measure(name: str, subject: Subject, settings: Mapping[str, Any] | None = None) -> Outcome:
    """One check on a subject, in whatever state it ends; only an interrupt comes through.

    Where memory runs out the batch is halved until it is 1; what was computed before is kept.
    """
    told = dict(settings or {})
    started = time.perf_counter()
    notes: list[str] = []

    def ended(state: State, reason: str = "", found: tuple[Finding, ...] = ()) -> Outcome:
        return Outcome(name, state, found, reason, told, time.perf_counter() - started, tuple(notes))

    while True:
        try:
            found = tuple(finite(f) for f in CHECKS[name](subject, **told))
        except torch.OutOfMemoryError as error:
            if subject.batch_size == 1:
                return ended("crashed", f"out of memory with a single image a batch: {_first_line(error)}")
            subject = smaller(subject)
            notes.append(f"out of memory: batches of {subject.batch_size} instead of {2 * subject.batch_size}")
        except HoldfastError as error:
            return ended("crashed", str(error))
        except Exception as error:  # a check must not take the others along, whatever the model's code raises
            return ended("crashed", f"{type(error).__name__}: {_first_line(error)}")
        else:
            reason = why_empty(found)
            return ended("measured" if reason is None else "not applicable", reason or "", found)


def ready(subject: Subject) -> tuple[Subject, tuple[str, ...]]:
    """The subject with its logits computed, in batches that memory holds, and what to say of it.

    A model that does not fit the data, or answers with NaN, is bad input, found here once, and not a crash of every
    check.
    """
    notes: list[str] = []
    while True:
        try:
            _ = subject.predictions
        except torch.OutOfMemoryError:
            if subject.batch_size == 1:
                raise HoldfastError(
                    "out of memory with a single image a batch; use --device cpu or smaller images"
                ) from None
            subject = smaller(subject)
            notes.append(f"out of memory: batches of {subject.batch_size} instead of {2 * subject.batch_size}")
        else:
            check_finite(subject.predictions.logits, "the test set")
            return subject, tuple(notes)


def smaller(subject: Subject) -> Subject:
    """The same subject with half the batch; logits that are there already stay."""
    if subject.device.type == "cuda":
        torch.cuda.empty_cache()
    half = replace(subject, batch_size=max(1, subject.batch_size // 2))
    half.__dict__.update({k: v for k, v in subject.__dict__.items() if k in ("predictions", "sides")})
    return half


def finite(found: Finding) -> Finding:
    """A finding whose numbers are numbers, with the reason where one was not.

    >>> finite(Finding("accuracy", "nll", 0.3, 1, float("-inf"), float("inf"))).evidence
    {'reason': 'no interval from 1 samples'}
    """
    if found.value is not None and not math.isfinite(found.value):
        evidence = {**found.evidence, "reason": f"the value is {found.value}, not a finite number"}
        return replace(found, value=None, n=0, low=None, high=None, evidence=evidence)
    if all(end is None or math.isfinite(end) for end in (found.low, found.high)):
        return found
    evidence = {**found.evidence, "reason": f"no interval from {found.n} samples"}
    return replace(found, low=None, high=None, evidence=evidence)


def why_empty(findings: Sequence[Finding]) -> str | None:
    """Why nothing at all was measured; None where something was.

    >>> why_empty([Finding("groups", "worst_group_accuracy", None, 0, evidence={"reason": "no groups"})])
    'no groups'
    """
    if any(f.value is not None for f in findings):
        return None
    reasons = [str(f.evidence["reason"]) for f in findings if f.evidence.get("reason")]
    return reasons[0] if reasons else "there was nothing to measure"


def audit(
    model: nn.Module,
    data: str | Path | Dataset,
    *,
    only: Sequence[str] | None = None,
    device: str = "auto",
    batch_size: int = 256,
    precision: str = "fp32",
    seed: int = 0,
    data_seed: int = 0,
    output: str | None = None,
) -> tuple[Finding, ...]:
    """Measure a model on every check, or on those named in ``only``.

    model: any module from images in [0, 1] to one row an image, in the order of the data's classes; it is given back as
    it was, on the audit's device. What it returns may be a tensor, have ``.logits``, or hold a single tensor. output:
    "logits", "probabilities", "log-probabilities" or "sigmoid"; decided on all test images by default. A check that
    crashes leaves a warning and a finding of its name without a value; the others go on. data: as of ``holdfast.fit``;
    a set in memory needs a test split. data_seed: give the one the model was trained with, or it is measured on images
    it was trained on.
    """
    check_measuring(batch_size, 0, seed, precision)
    require(
        data_seed == 0 or not isinstance(data, Dataset),
        f"data_seed {data_seed}: not for a set in memory, which is taken as it is; give it to holdfast.data.load",
    )
    chosen = check_names(list(CHECKS) if only is None else only)
    where = resolve_device(device)
    if isinstance(data, Dataset):
        dataset = admitted(data, training=False)
    else:
        dataset = load(data, data_seed=data_seed, training=False)
    require(
        dataset.test is not None,
        f"{dataset.name} has no test split to audit on; give it one: Dataset(..., test=ArraySplit(images, labels))",
    )
    channels = dataset.shape[0]
    require(
        channels in (1, 3), f"{dataset.name} has images of {channels} channels; an audit is of grey or colour images"
    )
    taken = prepared_module(model, dataset.shape, where)
    subject = Subject(taken, dataset, where, batch_size=batch_size, precision=precision, seed=seed)
    subject = with_logits(ready(subject)[0], taken, output)
    found: list[Finding] = []
    for name in chosen:
        outcome = measure(name, subject)
        if outcome.state == "crashed":
            warnings.warn(f"check {name} crashed: {outcome.reason}", RuntimeWarning, stacklevel=2)
            found.append(Finding(name, "crashed", None, 0, evidence={"reason": outcome.reason}))
        found += outcome.findings
    return tuple(found)


def with_logits(subject: Subject, model: PreprocessedModel, output: str | None) -> Subject:
    """The subject with a model whose answers are logits, whatever they are."""
    if output is not None and output not in KINDS:
        raise unknown("kind of outputs", output, KINDS)
    answers = subject.predictions.logits
    kind = output or decide_kind(answers)
    if doubt := kind_warning(answers, kind):
        warnings.warn(doubt, RuntimeWarning, stacklevel=3)
    if kind == "logits":
        return subject
    columns = [[column] for column in range(answers.shape[1])]
    told = replace(subject, model=AlignedModel(model, kind, columns))
    told.__dict__["predictions"] = replace(subject.predictions, logits=to_logits(answers, kind))
    return told


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
