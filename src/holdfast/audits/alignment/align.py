"""A model and data brought to the same terms before anything is measured: classes, preprocessing, kind of outputs.

Samples of classes that the model does not know are set aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from holdfast.audits.alignment import alignment_probes as probes
from holdfast.audits.alignment.classes import ORDER, ClassMap, ClassMatch, match_classes
from holdfast.audits.alignment.outputs import (
    KINDS,
    change,
    check_classes,
    check_finite,
    decide_kind,
    kind_warnings,
    to_logits,
)
from holdfast.audits.subject import draw
from holdfast.augment.basic import to_float
from holdfast.data.splits import ArraySplit, Dataset, Split, WrappedSplit
from holdfast.errors import HoldfastError, require, require_known
from holdfast.metrics import Paired
from holdfast.models import NONE, LoadedModel, PreprocessedModel, Preprocessing
from holdfast.models.loaded_model import explaining_failures
from holdfast.module_state import evaluating
from holdfast.rng import derive
from holdfast.train.progress import Progress
from holdfast.types import Note

STEADY = 1e-2
"""Answers to the same images may differ by this share of their spread: kernels add in another order."""
ALONE = 5e-2
"""By this share where the batch has another size: other kernels, in TF32 at worst."""


@dataclass(frozen=True, eq=False)
class ClassReading:
    """One way to read the answers: a module to logits, and the data under the same classes.

    name: "all" (every output is a class) or "restricted" (only those the data has).
    """

    name: str
    model: nn.Module
    data: Dataset


@dataclass(frozen=True, eq=False)
class Aligned:
    """Everything decided, and why.

    readings: by name; a full match has "all" alone. output: kind of the model's numbers. preprocessing: what is used,
    and under which name. accuracy: on the labelled sample of n images, as "all". rivals: other preprocessing, the best
    first; empty where it was not probed. accuracy is None where no sample is of a class the model knows.
    """

    readings: Mapping[str, ClassReading]
    classes: ClassMatch
    output: str
    preprocessing: Preprocessing
    preprocessing_name: str
    accuracy: float | None
    n: int
    rivals: tuple[probes.Rival, ...]
    notes: tuple[Note, ...]

    @property
    def warnings(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.level == "warning")

    @property
    def reading(self) -> ClassReading:
        """The one to measure by: restricted where the classes match in part, since the data can test nothing else."""
        return self.readings.get("restricted", self.readings["all"])

    def record(self) -> dict[str, Any]:
        """Plain values for findings.json."""
        match = self.classes
        mapping = [list(pair) for pair in match.pairs()] if match.moved else "identity"
        classes: dict[str, Any] = {"kind": match.kind, "how": match.how, "mapping": mapping}
        rivals = [{"name": r.name, "accuracy": r.accuracy, "better": r.better, **asdict(r.paired)} for r in self.rivals]
        return {
            "classes": classes | {"missing": list(match.missing), "extra": len(match.extra)},
            "readings": list(self.readings),
            "output": self.output,
            "preprocessing": {"name": self.preprocessing_name, **asdict(self.preprocessing)},
            "sample": {"n": self.n, "accuracy": self.accuracy},
            "rivals": rivals,
            "notes": [str(note) for note in self.notes if note.level == "note"],
            "warnings": [str(note) for note in self.warnings],
        }


def align(
    opened: LoadedModel,
    data: Dataset,
    *,
    class_map: ClassMap | str | None = None,
    output: str | None = None,
    preprocessing: str | Preprocessing = probes.STATED,
    probe: bool = True,
    allow_random: bool = False,
    sample: int = 512,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Aligned:
    """Align an opened model with the test split of a data set, or refuse with what to do.

    class_map: see :func:`match_classes`. output: kind of outputs, None to decide. preprocessing: "stated" (the model's
    own settings), a rival's name, or a value. probe: try the rivals. allow_random: audit a model whose answers change
    from call to call, with a warning. sample: labelled test images all decisions rest on, drawn by the seed. progress:
    where the trials of rivals are shown.
    """
    split = data.test
    if split is None or len(split) == 0:
        raise HoldfastError(f"{data.name} has no test images to align and audit a model on")
    if output is not None:
        require_known("kind of outputs", output, KINDS)
    device = opened.model.normalised.mean.device
    index = draw(len(split), sample, seed, "alignment")
    images, labels = split.read(index), split.labels[index]
    statistics = _statistics(images)
    name, used = _choose(opened, preprocessing, statistics)
    model = opened.model.with_preprocessing(used)

    def answer(to: PreprocessedModel) -> Tensor:
        return _answers(to, images, batch_size, device)

    outputs = answer(model)
    check_classes(outputs)
    check_finite(outputs)
    notes = [Note("model", text) for text in opened.notes]
    notes += [Note("model", text, level="warning") for text in opened.warnings]
    notes += _unsteady(model, images, outputs, device, allow_random, batch_size)
    match = match_classes(
        data.classes, opened.classes, outputs=outputs.shape[1], aliases=opened.aliases, class_map=class_map
    )
    aside = int((~torch.tensor([bool(own) for own in match.columns])[split.labels]).sum())
    require(
        aside < len(split),
        f"no test image of {data.name} is of a class the model knows ({match.describe()}); check --class-map",
    )
    kind = output or decide_kind(outputs)
    decided = ", as stated" if output else f", decided on {len(outputs)} images"
    notes.append(Note("outputs", f"outputs are {kind}{decided}"))
    predicted = outputs.nan_to_num().argmax(1)
    right = _right(predicted, labels, match)
    tried = probes.candidates(used, channels=model.channels, data=statistics) if probe and len(right) else {}
    moved = probes.find_order(predicted, labels, len(match.data)) if match.kind == ORDER else None
    shown = progress or Progress()
    if tried:
        shown.begin("align", 1, len(tried) * (1 + len(probes.LOOKS)), 0)  # fewer where rivals are given up
        shown.log(f"alignment: {len(tried)} other ways to preprocess, tried on up to {len(images)} images each")

    def ask(key: str, places: Tensor) -> Tensor:
        shown.doing(f"{key}, {len(places)} images")
        to = model.with_preprocessing(tried[key])
        found = _answers(to, images[places], batch_size, device).nan_to_num().argmax(1)
        shown.step()
        return found

    def is_right(own: probes.Answers) -> Tensor:
        return _right(own.predicted, labels[own.places], match)

    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(derive(seed, "alignment/order")))
    others = probes.race(tried, ask, is_right, predicted, order, to_the_end=moved is not None)
    notes += kind_warnings(outputs, kind)
    rivals, explained = _explain(predicted, others, labels, match, tried, moved)
    notes += explained
    notes.append(probes.preprocessing_note(name, used, stated=opened.preprocessing))
    notes += probes.class_notes(match, split, aside)
    names = ["all", "restricted"] if match.kind == "partial" else ["all"]
    made = {n: ClassReading(n, AlignedModel(model, kind, match.selection(n)), relabel(data, match, n)) for n in names}
    accuracy = float(right.double().mean()) if len(right) else None
    return Aligned(made, match, kind, model.preprocessing, name, accuracy, len(right), rivals, tuple(notes))


def _statistics(images: Tensor) -> Preprocessing:
    """Mean and deviation of each channel of uint8 images (N, C, H, W), in [0, 1]; a constant channel counts 1/255."""
    pixels = to_float(images).double()
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp_min(1 / 255)
    return Preprocessing(tuple(mean.tolist()), tuple(std.tolist()))


def _choose(opened: LoadedModel, asked: str | Preprocessing, statistics: Preprocessing) -> tuple[str, Preprocessing]:
    if isinstance(asked, Preprocessing):
        return "given", asked
    own = opened.preprocessing or NONE
    known = {probes.STATED: own, **probes.named(own, channels=opened.channels, data=statistics)}
    require_known("preprocessing", asked, known)
    return asked, known[asked]


@torch.no_grad()
def _answers(model: PreprocessedModel, images: Tensor, batch_size: int, device: torch.device) -> Tensor:
    """(N, K) on the CPU."""
    with explaining_failures(batch_size), evaluating(model):
        return torch.cat([model(to_float(part.to(device))).cpu() for part in torch.split(images, batch_size)])


def _unsteady(
    model: PreprocessedModel, images: Tensor, outputs: Tensor, device: torch.device, allowed: bool, batch_size: int
) -> list[Note]:
    """What to say of answers that change from call to call, or with the other images of a batch."""
    few = images[: max(4, batch_size)]
    if (moved := change(outputs[: len(few)], _answers(model, few, batch_size, device))) > STEADY:
        text = f"the model's answers change between calls, by up to {moved:.2g} of their spread"
        if not allowed:
            raise HoldfastError(
                f"{text}; put it into evaluation mode, seed it, or average several passes in a python: function; "
                "--allow-random audits it all the same"
            )
        return [Note("random", f"{text}: every number below is one draw of many", level="warning")]
    if (moved := change(outputs[:4], _answers(model, few[:4], 1, device))) > ALONE:
        text = (
            f"an answer depends on the other images of its batch (by up to {moved:.2g} of the spread): a BatchNorm "
            "layer in training mode?"
        )
        return [Note("batch-dependent", text, "export the model in evaluation mode", "warning")]
    return []


def _explain(
    predicted: Tensor,
    others: Mapping[str, probes.Answers],
    labels: Tensor,
    match: ClassMatch,
    tried: Mapping[str, Preprocessing],
    found: tuple[tuple[int, ...], Paired] | None,
) -> tuple[tuple[probes.Rival, ...], list[Note]]:
    """How other preprocessing does, and what to say where it, or another order of unnamed outputs, explains the score.

    predicted: (N,) the strongest output with the preprocessing in use. others: with each of those tried. found: another
    order of the outputs that fits better, and its lead; all of the others are tried on all samples then. Outputs in
    another order are worse than chance, so that whatever confuses the model seems to help it: preprocessing is then
    judged in the order that fits. Wrong preprocessing can make another order fit a little better: the order counts only
    where no preprocessing does better in the present one, on the images that did not choose the order.
    """

    def rights(by: ClassMatch) -> dict[str, Tensor]:
        return {key: _right(own.predicted, labels[own.places], by) for key, own in others.items()}

    by, notes, order = match, [], ""
    if found is not None:
        moved = replace(match, columns=tuple((column,) for column in found[0]))
        fits = _right(predicted, labels, moved)[probes.JUDGING].double().mean()
        whole = (own.predicted[own.places.argsort()] for own in others.values())
        if all(_right(own, labels, match)[probes.JUDGING].double().mean() < fits for own in whole):
            by, notes, order = moved, [probes.order_note(*found, match)], " in that order"
    right = _right(predicted, labels, by)
    known = torch.tensor([bool(own) for own in match.columns])[labels]
    place = known.cumsum(0) - 1  # among those whose class the model knows
    seen = {key: place[own.places[known[own.places]]] for key, own in others.items()}
    rivals = probes.judge(right, rights(by), tried, seen=seen)
    return rivals, notes + [r.warning(float(right.double().mean()), order) for r in rivals[:1] if r.better]


def _right(predicted: Tensor, labels: Tensor, match: ClassMatch) -> Tensor:
    """(M,) whether the strongest of all outputs belongs to the label, for samples whose class the model knows."""
    owner = torch.full((1 + max(int(predicted.max()), *(max(own) for own in match.columns if own)),), -1)
    for label, own in enumerate(match.columns):
        owner[list(own)] = label
    return (owner[predicted] == labels)[torch.tensor([bool(own) for own in match.columns])[labels]]


class AlignedModel(nn.Module):
    """Images (B, C, H, W) in [0, 1] at the data's size to logits (B, K), one a class.

    kind: what the prepared model gives. selection: its outputs that stand for each class; several are added up as
    probabilities.
    """

    columns: Tensor
    unused: Tensor

    def __init__(self, prepared: PreprocessedModel, kind: str, selection: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.prepared, self.kind = prepared, kind
        # Short rows are padded; where more than one output counts, a mask leaves the padding out.
        padded = pad_sequence([torch.tensor(own) for own in selection], batch_first=True, padding_value=-1)
        padded = padded.to(prepared.normalised.mean.device)
        self.register_buffer("columns", padded.clamp_min(0))
        self.register_buffer("unused", padded < 0)
        self.training = prepared.training

    def forward(self, x: Tensor) -> Tensor:
        logits = to_logits(self.prepared(x), self.kind)
        if self.columns.shape[1] == 1:
            return logits[:, self.columns[:, 0]]
        return logits[:, self.columns].masked_fill(self.unused, float("-inf")).logsumexp(2)


def relabel(data: Dataset, match: ClassMatch, reading: str) -> Dataset:
    """The data under a reading's class names: its own classes first and in its own order, so that labels stay as they
    are where the model knows every class."""
    names = match.names(reading)
    if not match.missing:
        return replace(data, classes=names)
    new = torch.full((len(match.data),), -1)
    new[list(match.known)] = torch.arange(len(match.known))

    def move(split: Split) -> Split:
        kept = split.subset((new[split.labels] >= 0).nonzero().flatten())
        labels = new[kept.labels]
        return replace(kept, labels=labels) if isinstance(kept, ArraySplit) else WrappedSplit(kept, labels, kept.groups)

    moved: dict[str, Any] = {name: move(split) for name, split in data.splits.items()}
    return replace(data, classes=names, **moved)
