"""The models of an audit, opened and aligned with the data, each ready to be measured."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.audits.alignment import ORDER, Aligned, align, read_class_map, read_predictions
from holdfast.audits.alignment.classes import ClassMap
from holdfast.audits.checking import ready
from holdfast.audits.checks.accuracy import accuracy
from holdfast.audits.checks.groups import check_columns
from holdfast.audits.from_predictions import told_subject
from holdfast.audits.group_columns import FILES, OWN, Columns, columns_of
from holdfast.audits.loading import Sets, asked, load_as, opener, terms_of_all
from holdfast.audits.request import Note, Plan
from holdfast.audits.subject import Subject
from holdfast.data import Dataset
from holdfast.data.load_data import SIZES_DIFFER
from holdfast.data.splits import FileSplit, hash_data
from holdfast.data.unlabelled_images import resized
from holdfast.errors import require
from holdfast.models import LoadedModel, open_model
from holdfast.train.run_data import DataTerms
from holdfast.types import Finding

GRADIENTS: Final = ("attacks", "curvature", "saliency")
"""Checks that need gradients."""
CODE: Final = ("python", "module")
"""Sources whose weights do not say all of what they compute."""


@dataclass(eq=False)
class Model:
    """One model under audit. records: of model and data, for findings.json. not_applicable: check -> why.

    settings: what each check is told.
    """

    name: str
    subject: Subject
    model: dict[str, Any]
    data: dict[str, Any]
    not_applicable: dict[str, str] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    extra: tuple[Finding, ...] = ()
    fix: Callable[[Finding], Finding] | None = None
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ids(self) -> list[str]:
        split = self.subject.split
        return [split.describe(i) for i in range(len(split))]


def open_all(specs: Sequence[str], plan: Plan, device: torch.device, note: Note) -> list[Model]:
    """Every model, MODEL first, before any is measured."""
    if plan.predictions is not None:
        require(not specs, "--predictions is audited alone; leave MODEL and --against out, or it")
        return [_from_predictions(plan, device, note)]
    require(
        bool(specs), "no model was given; try: holdfast audit timm:resnet18.a1_in1k --data DATA, or --predictions FILE"
    )
    require(plan.data is not None, "no data was given; name it with --data")
    open_set = opener(plan)
    terms = terms_of_all(specs, plan, open_set, note)
    said: set[str] = set()

    def once(text: str) -> None:  # models that share data share its notes
        if text not in said:
            said.add(text)
            note(text)

    return [
        _open(spec, name, own, plan, device, open_set, once)
        for spec, name, own in zip(specs, names_of(specs), terms, strict=True)
    ]


def _open(
    spec: str, name: str, terms: DataTerms, plan: Plan, device: torch.device, open_set: Sets, note: Note
) -> Model:
    by_name = plan.group != plan.group[:1] or plan.group in ((), (OWN,)) or Path(str(plan.data)).suffix.lower() in FILES
    if by_name:
        check_columns(plan.group)
    else:
        terms = replace(terms, group=plan.group[0])

    def opened_on(data: Dataset) -> LoadedModel:
        return open_model(spec, shape=data.shape, device=device, model=plan.model, num_classes=data.num_classes)

    data = open_set(plan.image_size, terms)
    opened = opened_on(data)
    if plan.image_size is None and opened.read_size not in (None, data.shape[1:]):
        fitted = _at_own_size(opened, data)
        if fitted is not data:
            tall, wide = fitted.shape[1:]
            note(f"{name}: images are read at {tall}x{wide}, as in the model's own evaluation; --image-size chooses")
            data, opened = fitted, opened_on(fitted)
    for text in map(str, data.notes):
        note(f"data: {text}")
    aligned = _align(opened, data, plan, name, note)
    for text in aligned.notes:
        note(f"{name}: {text}")
    for text in aligned.warnings:
        note(f"{name}: warning: {text}")
    reading = aligned.reading
    subject, spoken = ready(_subject(plan, reading.model, reading.data, device))
    for text in spoken:
        note(f"{name}: {text}")
    extra: tuple[Finding, ...] = ()
    if reading.name == "restricted":
        every = aligned.readings["all"]
        whole, _ = ready(_subject(plan, every.model, every.data, device))
        extra = (accuracy(whole.predictions.correct, {"reading": "all"}),)
    blocked = (
        {} if opened.gradients else dict.fromkeys(GRADIENTS, f"no gradients reach the images: {opened.no_gradients}")
    )
    record = {"name": name, "spec": spec, "source": opened.source, "hash": opened.hash, **aligned.record()}
    if opened.hash is None or opened.source in CODE:
        record["answers_hash"] = _hash_answers(subject.predictions.logits)
    columns = Columns()
    if by_name and plan.group:
        columns = columns_of(
            str(plan.data),
            plan.group,
            data,
            subject.data,
            again=lambda group: load_as(replace(terms, group=group), plan, plan.image_size),
        )
    settings = {check: dict(own) for check, own in plan.settings.items()}
    if other := settings.get("attacks", {}).get("surrogate"):
        opened = open_model(other, shape=data.shape, device=device, num_classes=data.num_classes)
        settings["attacks"]["surrogate"] = _align(opened, data, plan, "surrogate", note).reading.model
        record["surrogate"] = {"spec": other, "hash": opened.hash}
    about = {**_data_record(data, subject), **terms.record()}
    return Model(name, subject, record, about, blocked, columns, extra=extra, settings=settings)


def _at_own_size(opened: LoadedModel, data: Dataset) -> Dataset:
    """The data at the size a model was evaluated at, where it is known how its images came to that: a run's always,
    files those of others that are square."""
    size = opened.read_size
    assert size is not None
    known = opened.source == "run" or (size[0] == size[1] and isinstance(data.test, FileSplit))
    if not known:
        return data
    train, val, test = (None if split is None else resized(split, size) for split in (data.train, data.val, data.test))
    assert train is not None
    notes = tuple(own for own in data.notes if own.code != SIZES_DIFFER)  # it names the size before this one
    return replace(data, train=train, val=val, test=test, notes=notes)


def _align(opened: LoadedModel, data: Dataset, plan: Plan, name: str, note: Note) -> Aligned:
    """Aligned in batches that memory holds."""
    mapping = _class_map(plan)
    size = min(64, plan.batch_size)
    while True:
        try:
            return align(
                opened,
                data,
                class_map=mapping,
                output=plan.output,
                preprocessing=plan.preprocessing,
                allow_random=plan.allow_random,
                seed=plan.seed,
                batch_size=size,
            )
        except torch.OutOfMemoryError:
            require(size > 1, "out of memory with a single image a batch; use --device cpu or smaller images")
            size //= 2
            note(f"{name}: out of memory: aligned in batches of {size}")


def _class_map(plan: Plan) -> ClassMap | str | None:
    return plan.class_map if plan.class_map in (None, ORDER) else read_class_map(str(plan.class_map))


def _from_predictions(plan: Plan, device: torch.device, note: Note) -> Model:
    path = str(plan.predictions)
    check_columns(plan.group)
    for flag, value, usual in (("preprocessing", plan.preprocessing, "stated"), ("model", plan.model, None)):
        require(
            value == usual, f"--{flag} {value} is for a model that is asked, and predictions were made; leave it out"
        )
    data = None if plan.data is None else load_as(asked(plan), plan, plan.image_size)
    read = read_predictions(path, data=data, output=plan.output, class_map=_class_map(plan), groups=plan.group)
    for text in (*read.notes, *(f"warning: {text}" for text in read.warnings)):
        note(f"predictions: {text}")
    made = told_subject(read, data, device, seed=plan.seed, batch_size=plan.batch_size, workers=plan.workers)
    name = names_of([path])[0]
    record = {
        "name": name,
        "spec": path,
        "source": "predictions",
        "hash": None,
        "answers_hash": _hash_answers(read.predictions.logits),
        "output": read.output,
        "notes": list(read.notes),
        "warnings": list(read.warnings),
    }
    about = {**_data_record(made.subject.data, made.subject), "scores": read.scores}
    columns = Columns(read.columns)
    return Model(name, made.subject, record, about, made.not_applicable, columns, fix=made.fix)


def names_of(specs: Sequence[str]) -> list[str]:
    """A short name for each model, fit for a folder, such that no two are the same.

    >>> names_of(["timm:resnet18", "runs/a", "runs/a"])
    ['timm-resnet18', 'runs-a', 'runs-a-2']
    """
    names: list[str] = []
    for spec in specs:
        last = Path(spec).resolve().name if os.path.exists(spec) else spec
        short = re.sub(r"[^\w.\-]+", "-", last).strip("-.") or "model"
        number = sum(name == short or re.fullmatch(re.escape(short) + r"-\d+", name) is not None for name in names)
        names.append(short if number == 0 else f"{short}-{number + 1}")
    return names


def _subject(plan: Plan, model: torch.nn.Module, data: Dataset, device: torch.device) -> Subject:
    return Subject(
        model,
        data,
        device,
        batch_size=plan.batch_size,
        precision=plan.precision,
        seed=plan.seed,
        workers=plan.workers,
    )


def _data_record(data: Dataset, subject: Subject) -> dict[str, Any]:
    return {
        "name": data.name,
        "split": "test",
        "n": len(subject.split),
        "train": len(subject.data.train),
        "shape": list(subject.split.shape),
        "classes": list(subject.data.classes),
        "group_names": list(data.group_names),
        **hash_data(data, (data.test, data.train)),
    }


def _hash_answers(logits: Tensor) -> str:
    return hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()
