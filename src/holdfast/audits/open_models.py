"""The models of an audit, opened and aligned with the data before any of them is measured.

Open this file to change what an audit takes for a model, or what a file of predictions is good for.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from holdfast.audits.alignment.align import Aligned, align
from holdfast.audits.alignment.classes import ORDER, ClassMap, read_class_map
from holdfast.audits.alignment.outputs import check_finite
from holdfast.audits.alignment.predictions import read_predictions
from holdfast.audits.audit_data import FILES, OWN, ColumnWords, Sets, columns_of, opener, stated_terms, terms_of_all
from holdfast.audits.checks.accuracy.clean_accuracy import accuracy
from holdfast.audits.checks.groups.group_accuracy import check_columns
from holdfast.audits.subject import Subject
from holdfast.data import Dataset
from holdfast.data.images import Unreadable
from holdfast.data.item_split import ItemSplit
from holdfast.data.load_data import SIZES_DIFFER
from holdfast.data.loaders import evaluation_batch
from holdfast.data.splits import ArraySplit, FileSplit, hash_data
from holdfast.data.unlabelled_images import resized
from holdfast.errors import HoldfastError, require
from holdfast.models import LoadedModel, open_model
from holdfast.models.adapters import Normalised
from holdfast.models.resolution import find_source
from holdfast.models.source_types import Preprocessing, both_sides
from holdfast.models.weights import hash_tensors
from holdfast.parts import CHECKS
from holdfast.settings import read_environment
from holdfast.settings.audit_settings import AuditSettings
from holdfast.train.folder import read_settings
from holdfast.train.progress import Progress
from holdfast.train.run_result import DataTerms, Run
from holdfast.types import Finding, Needs, Note

RUN: Final = "run"
"""The source of what was trained here."""
CODE: Final = ("python", "module")
"""Sources whose weights do not say all of what they compute."""
NO_MODEL: Final = "there are predictions alone, and no model to ask"
NO_MEMORY: Final = "out of memory with a single image per batch; use --device cpu or smaller images"
NO_IMAGES: Final = "there are no images; give the data they belong to with --data"

TellNotes = Callable[..., None]
"""Tells the user notes on something, such as a model by its name: ``tell("resnet", *notes)``."""


@dataclass(eq=False)
class AuditedModel:
    """One model under audit. model, data: records of the two, for findings.json. not_applicable: check -> why.

    words: the group columns that were asked for. extra: findings of no check. unreadable: files left out of the data.
    whole: the reading of all classes, where the model is measured by that of some.
    """

    name: str
    subject: Subject
    model: dict[str, Any]
    data: dict[str, Any]
    not_applicable: dict[str, str] = field(default_factory=dict)
    words: ColumnWords = field(default_factory=ColumnWords)
    extra: tuple[Finding, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    whole: Subject | None = None

    def ids(self) -> list[str]:
        split = self.subject.split
        return [split.describe(i) for i in range(len(split))]


def open_all(
    given: Sequence[Any],
    request: AuditSettings,
    checks: Mapping[str, Any],
    device: torch.device,
    tell: TellNotes,
    progress: Progress,
    ahead: Sequence[Callable[[list[AuditedModel]], None]] = (),
) -> list[AuditedModel]:
    """Every model with its predictions, the audited one first, before any check is measured. checks: those to run, with
    their settings. ahead: called when all are aligned, and before they are asked for predictions."""
    if request.predictions is not None:
        require(not given, "--predictions is audited alone; leave MODEL and --against out, or it")
        models = [_from_predictions(request, device, tell)]
        for call in ahead:
            call(models)
        return models
    require(
        bool(given), "no model was given; try: holdfast audit timm:resnet18.a1_in1k --data DATA, or --predictions FILE"
    )
    for one in given if request.data is None else ():
        if isinstance(one, str):
            find_source(one)  # a model that does not exist is the first thing to say
    require(request.data is not None, "no data was given; name it with --data")
    open_set = opener(request, given)
    terms = terms_of_all(given, request, open_set, lambda text: tell("", Note("data-terms", text)))
    said: set[tuple[str, Note]] = set()

    def once(about: str, *notes: Note) -> None:  # models that share data share its notes
        tell(about, *(note for note in dict.fromkeys(notes) if (about, note) not in said))
        said.update((about, note) for note in notes)

    models = [
        _open(one, name, own, request, checks, device, open_set, once, progress)
        for one, name, own in zip(given, names_of(given), terms, strict=True)
    ]
    for call in ahead:
        call(models)
    for model in models:
        _ask(model, tell)
    return models


def _ask(model: AuditedModel, tell: TellNotes) -> None:
    """Give a model its predictions, computed once: copies of its subject keep them."""
    subject, notes = ready(model.subject)
    tell(model.name, *notes)
    if model.whole is not None:
        whole, _ = ready(model.whole)
        model.extra, model.whole = (accuracy(whole.predictions.correct, {"reading": "all"}),), None
    if nameless(model):
        model.model["answers_hash"] = _hash_answers(subject.predictions.logits)
    model.subject = replace(subject, given=subject.predictions)


def nameless(model: AuditedModel) -> bool:
    """Whether only its answers tell a model from another."""
    return model.model["hash"] is None or model.model["source"] in CODE


def _open(
    given: Any,
    name: str,
    terms: DataTerms,
    request: AuditSettings,
    checks: Mapping[str, Any],
    device: torch.device,
    open_set: Sets,
    tell: TellNotes,
    progress: Progress,
) -> AuditedModel:
    group, source = request.group, request.data
    has_columns = isinstance(source, Dataset) or (isinstance(source, str) and Path(source).suffix.lower() in FILES)
    by_name = has_columns or len(group) != 1 or group == (OWN,)

    def by_group(column: str) -> Dataset:
        require(
            not isinstance(source, Dataset),
            f"there is no column {column!r} in a set in memory: its groups are those of its splits; leave --group out",
        )
        return open_set(request.image_size, replace(terms, group=column))

    # groups that the data has by itself stay; where there are none, the column asked for is the data's own
    if by_name or open_set(request.image_size, terms).group_names:
        by_name = True
        check_columns(group)
        for column in group:
            if not has_columns and column != OWN:
                by_group(column)  # refused before anything is measured
    else:
        terms = replace(terms, group=group[0])

    def opened_on(data: Dataset) -> LoadedModel:
        where: dict[str, Any] = {"shape": data.shape, "device": device}
        if isinstance(given, str):
            return open_model(given, model=request.architecture, num_classes=data.num_classes, **where)
        return _open_run(given, name, **where) if isinstance(given, Run) else open_model(given, name=name, **where)

    data = open_set(request.image_size, terms)
    require(
        data.test is not None,
        f"{data.name} has no test split to audit on; give it one: Dataset(..., test=ArraySplit(images, labels))",
    )
    channels = data.shape[0]
    require(channels in (1, 3), f"{data.name} has images of {channels} channels; an audit is of grey or colour images")
    opened = opened_on(data)
    if request.image_size is None and opened.read_size not in (None, data.shape[1:]):
        fitted = _at_own_size(opened, data, ours=isinstance(given, Run) or opened.source == RUN)
        if fitted is not data:
            tall, wide = fitted.shape[1:]
            text = f"images are read at {tall}x{wide}, as in the model's own evaluation"
            tell(name, Note("image-size", text, "--image-size chooses"))
            data, opened = fitted, opened_on(fitted)
    tell("data", *data.notes, *_beside_own(group, data.group_names))
    aligned = _align(opened, data, request, name, tell, given, progress)
    tell(name, *aligned.notes)
    reading = aligned.reading
    subject, whole = _subject(request, reading.model, reading.data, device), None
    if reading.name == "restricted":
        every = aligned.readings["all"]
        whole = _subject(request, every.model, every.data, device)
    spec = given if isinstance(given, str) else opened.spec
    record = {"name": name, "spec": spec, "source": opened.source, "hash": opened.hash, **aligned.record()}
    record |= {"trained": trained} if (trained := _trained(given)) else {}
    record |= {"architecture": request.architecture} if isinstance(request.architecture, str) else {}
    words = ColumnWords()
    if by_name and group:
        words = columns_of(source if isinstance(source, str) else "", group, data, subject.data, again=by_group)
    others = {}
    named = [(f.name, own) for own in checks.values() for f in fields(own) if "names_a_model" in f.metadata]
    for setting, own in named:
        if (other := getattr(own, setting)) is None:
            continue
        loaded = open_model(other, shape=data.shape, device=device, num_classes=data.num_classes)
        fitted_other = _align(loaded, data, request, setting, tell, other, progress)
        tell(f"{name}: {setting}", *fitted_other.warnings)
        record["warnings"] += [f"{setting}: {note}" for note in fitted_other.warnings]
        others[other] = fitted_other.reading.model
        record[setting] = {"spec": other, "hash": loaded.hash}
    subject = replace(subject, columns=words.group_columns(), others=others)
    about = {**_data_record(data, subject), **terms.record(), "spec": source if isinstance(source, str) else ""}
    why = f"no gradients reach the images: {opened.no_gradients}"
    blocked = {} if opened.gradients else {n: why for n, part in CHECKS.items() if Needs.GRADIENTS in part.needs}
    return AuditedModel(name, subject, record, about, blocked, words, (), data.unreadable, whole)


def _open_run(run: Run, name: str, **where: Any) -> LoadedModel:
    """A run in hand, as its folder would be opened: with its classes, its normalisation and its image size. Where it
    has a folder that can be opened, that is what commands name it by.
    """
    card = run.card
    if card is not None and isinstance(run.model, Normalised):
        stated: dict[str, Any] = {"preprocessing": Preprocessing(card.mean, card.std)}
        stated["image_size"] = None if card.image_size is None else both_sides(card.image_size)
        opened = open_model(run.model.net, name=name, **stated, **where)
    else:  # a module of the caller's
        opened = open_model(run.model, name=name, **where)
    known: dict[str, Any] = {"classes": tuple(run.data.classes), "hash": hash_tensors(run.model.state_dict())}
    if card is not None and run.out is not None:
        known |= {"source": RUN, "spec": str(run.out)}
    return replace(opened, **known)


def _trained(given: Any) -> dict[str, Any]:
    """How a run was trained: what a report must not propose once more. Empty for other models."""
    environment: Mapping[str, Any] = {}
    if isinstance(given, Run):
        settings = given.settings
    elif isinstance(given, str) and os.path.isfile(os.path.join(given, "run.yaml")):
        try:
            settings, environment = read_settings(Path(given, "run.yaml")), read_environment(Path(given))
        except HoldfastError:  # the model is what counts
            return {}
    else:
        return {}
    known = {"method": settings.method.name, "ascent": settings.ascent.name}
    known["auto_augment"] = settings.augment.auto_augment
    return known | {key: environment[key] for key in ("own_data", "own_model", "repaired_by") if key in environment}


def _at_own_size(opened: LoadedModel, data: Dataset, *, ours: bool) -> Dataset:
    """The data at the size a model was evaluated at, where it is known how its images came to that: a run's always,
    files those of others that are square."""
    size = opened.read_size
    assert size is not None
    if not ours and not (size[0] == size[1] and isinstance(data.test, FileSplit | ItemSplit)):
        return data
    splits: dict[str, Any] = {name: resized(split, size) for name, split in data.splits.items()}
    notes = tuple(note for note in data.notes if note.code != SIZES_DIFFER)  # it names the size before this one
    return replace(data, **splits, notes=notes)


def _align(
    opened: LoadedModel,
    data: Dataset,
    request: AuditSettings,
    name: str,
    tell: TellNotes,
    given: Any,
    progress: Progress,
) -> Aligned:
    """Aligned in batches that memory holds.

    The outputs of a module in hand are in the order of the data's classes unless it names them. What a training here
    made brings its preprocessing with it, so no other is tried unless it was given one: a model that was trained too
    briefly may do better with another by chance.
    """
    mapping = _class_map(request)
    unnamed = isinstance(given, Run) and data.classes == tuple(map(str, range(len(given.data.classes))))
    if mapping is None and not isinstance(given, str) and (opened.classes is None or unnamed):
        mapping = ORDER
    size = min(64, _batch_size(request, data, opened.model.normalised.mean.device))
    asked = {name: getattr(request, name) for name in ("output", "preprocessing", "allow_random", "seed")}
    ours = isinstance(given, Run) or opened.source == RUN
    asked["probe"] = not ours or request.preprocessing != "stated"
    while True:
        try:
            return align(opened, data, class_map=mapping, batch_size=size, progress=progress, **asked)
        except torch.OutOfMemoryError:
            require(size > 1, NO_MEMORY)
            size //= 2
            tell(name, Note("memory", f"out of memory: aligned in batches of {size}"))


def _class_map(request: AuditSettings) -> ClassMap | str | None:
    given = request.class_map
    return read_class_map(given) if isinstance(given, str) and given != ORDER else given


def ready(subject: Subject) -> tuple[Subject, tuple[Note, ...]]:
    """The subject with its predictions computed, in batches that memory holds, and what to say of it.

    A model that does not fit the data, or gives NaN, is bad input, found here once, and not a crash of every check.
    """
    notes: list[Note] = []
    while True:
        try:
            check_finite(subject.predictions.logits, "the test set")
            return subject, tuple(notes)
        except torch.OutOfMemoryError:
            require(subject.batch_size > 1, NO_MEMORY)
            subject, note = subject.with_half_the_batch()
            notes.append(note)


def _from_predictions(request: AuditSettings, device: torch.device, tell: TellNotes) -> AuditedModel:
    path = str(request.predictions)
    check_columns(request.group)
    for flag, value, default in (
        ("preprocessing", request.preprocessing, "stated"),
        ("model", request.architecture, None),
    ):
        require(
            value == default, f"--{flag} {value} is for a model that is asked, and predictions were made; leave it out"
        )
    data = request.data
    if data is not None and not isinstance(data, Dataset):
        data = opener(request)(request.image_size, stated_terms(request))
    if data is not None:
        tell("data", *data.notes)
    read = read_predictions(path, data=data, output=request.output, class_map=_class_map(request), groups=request.group)
    tell("predictions", *read.notes, *_beside_own(request.group, read.group_names))
    words, seen = ColumnWords(read.columns), read.predictions
    if data is not None and data.test is not None:
        known = replace(data, test=data.test.subset(read.positions))
    else:
        blank = torch.zeros(len(seen.labels), 1, 1, 1, dtype=torch.uint8)  # one pixel per image, never shown
        test = ArraySplit(blank, seen.labels, seen.groups, origin="row")
        empty = test.subset(torch.arange(0))
        known = Dataset("predictions", read.classes, train=empty, test=test, group_names=read.group_names)
    kept: dict[str, Any] = {"given": seen, "has_scores": read.scores, "columns": words.group_columns()}
    subject = replace(_subject(request, nn.Identity(), known, device), has_images=data is not None, **kept)
    name = names_of([path])[0]
    record: dict[str, Any] = {"name": name, "spec": path, "source": "predictions", "hash": None}
    record |= {"answers_hash": _hash_answers(seen.logits), "output": read.output}
    record["notes"] = [str(note) for note in read.notes if note.level == "note"]
    record["warnings"] = [str(note) for note in read.warnings]
    about = {**_data_record(subject.data, subject), "scores": read.scores}
    about["spec"] = request.data if isinstance(request.data, str) else ""
    blocked = {n: NO_MODEL for n, part in CHECKS.items() if Needs.MODEL in part.needs}
    if data is None:
        blocked = {n: NO_IMAGES for n, part in CHECKS.items() if Needs.IMAGES in part.needs} | blocked
    return AuditedModel(name, subject, record, about, blocked, words)


def _beside_own(group: Sequence[str], own: Sequence[str]) -> tuple[Note, ...]:
    """What to say where columns of groups were asked for of data that has groups of its own."""
    if not group or not own or OWN in group:
        return ()
    return (Note("own-groups", f"groups by {', '.join(group)}, and by the data's own column {OWN!r} as always"),)


def names_of(given: Sequence[Any]) -> list[str]:
    """A short name for each model, fit for a folder, such that no two are the same.

    >>> names_of(["timm:resnet18", "runs/a", "runs/a"])
    ['timm-resnet18', 'runs-a', 'runs-a-2']
    """
    names: list[str] = []
    for one in given:
        spec = one if isinstance(one, str) else one.network if isinstance(one, Run) else type(one).__name__
        last = Path(spec).resolve().name if isinstance(one, str) and os.path.exists(spec) else spec
        short = re.sub(r"[^\w.\-]+", "-", last).strip("-.") or "model"
        number = sum(name == short or re.fullmatch(re.escape(short) + r"-\d+", name) is not None for name in names)
        names.append(short if number == 0 else f"{short}-{number + 1}")
    return names


def _subject(request: AuditSettings, model: nn.Module, data: Dataset, device: torch.device) -> Subject:
    asked = {name: getattr(request, name) for name in ("precision", "seed", "workers")}
    return Subject(model, data, device, batch_size=_batch_size(request, data, device), **asked)


def _batch_size(request: AuditSettings, data: Dataset, device: torch.device) -> int:
    shape = data.shape if data.test is None else data.test.shape
    return request.batch_size or evaluation_batch(shape, device)


def _data_record(data: Dataset, subject: Subject) -> dict[str, Any]:
    split, warnings = subject.split, [str(note) for note in data.notes if note.level == "warning"]
    record: dict[str, Any] = {"name": data.name, "split": "test", "n": len(split), "train": len(subject.data.train)}
    record |= {"shape": list(split.shape), "classes": list(subject.data.classes)}
    record |= {"group_names": list(data.group_names), "group_attribute": data.group_attribute, "warnings": warnings}
    return record | hash_data(data, (data.test, data.train))


def _hash_answers(logits: Tensor) -> str:
    return hashlib.sha256(logits.contiguous().numpy().tobytes()).hexdigest()
