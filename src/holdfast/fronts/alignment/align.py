"""A model and data brought to the same terms before anything is measured: classes, preprocessing, kind of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.borrow import evaluating
from holdfast.data.augment import to_float
from holdfast.data.printable import printable
from holdfast.data.splits import Dataset, Split
from holdfast.data.statistics import channel_statistics
from holdfast.errors import HoldfastError, require, unknown
from holdfast.fronts.alignment.aligned_model import AlignedModel
from holdfast.fronts.alignment.classes import ClassMap, ClassMatch, match_classes
from holdfast.fronts.alignment.order import find_order
from holdfast.fronts.alignment.outputs import (
    KINDS,
    change,
    check_classes,
    check_finite,
    decide_kind,
    kind_warning,
)
from holdfast.fronts.alignment.relabel import relabel, set_aside
from holdfast.fronts.alignment.rivals import Rival, candidates, judge
from holdfast.models.sources import NONE, Opened, Prepared, Preprocessing
from holdfast.rng import derive

STATED = "stated"
STEADY = 1e-2
"""Answers to the same images may differ by this share of their spread: kernels add in another order."""
ALONE = 5e-2
"""By this share where the batch has another size: other kernels, in TF32 at worst."""


@dataclass(frozen=True, eq=False)
class Reading:
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
    first; empty where it was not probed.
    """

    readings: Mapping[str, Reading]
    classes: ClassMatch
    output: str
    preprocessing: Preprocessing
    preprocessing_name: str
    accuracy: float
    n: int
    rivals: tuple[Rival, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def reading(self) -> Reading:
        """The one to measure by: restricted where the classes match in part, since the data can test nothing else."""
        return self.readings.get("restricted", self.readings["all"])

    def record(self) -> dict[str, Any]:
        """Plain values for findings.json."""
        return {
            "classes": {
                "kind": self.classes.kind,
                "how": self.classes.how,
                "mapping": [list(pair) for pair in self.classes.pairs()] if self.classes.moved else "identity",
                "missing": list(self.classes.missing),
                "extra": len(self.classes.extra),
            },
            "readings": list(self.readings),
            "output": self.output,
            "preprocessing": {"name": self.preprocessing_name, **asdict(self.preprocessing)},
            "sample": {"n": self.n, "accuracy": self.accuracy},
            "rivals": [
                {"name": r.name, "accuracy": r.accuracy, "better": r.better, **asdict(r.paired)} for r in self.rivals
            ],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def align(
    opened: Opened,
    data: Dataset,
    *,
    class_map: ClassMap | str | None = None,
    output: str | None = None,
    preprocessing: str | Preprocessing = STATED,
    probe: bool = True,
    allow_random: bool = False,
    sample: int = 512,
    seed: int = 0,
    batch_size: int = 64,
) -> Aligned:
    """Align an opened model with the test split of a data set, or refuse with what to do.

    class_map: see :func:`match_classes`. output: kind of outputs, None to decide. preprocessing: "stated" (the model's
    own settings), a rival's name, or a value. probe: try the rivals. allow_random: audit a model whose answers change
    from call to call, with a warning. sample: labelled test images all decisions rest on, drawn by the seed.
    """
    split = _test(data)
    if output is not None and output not in KINDS:
        raise unknown("kind of outputs", output, KINDS)
    device = opened.model.normalised.mean.device
    statistics = Preprocessing(*channel_statistics(data.train))
    name, used = _choose(opened, preprocessing, statistics)
    model = opened.model.with_preprocessing(used)
    index = draw(len(split), sample, seed)
    images, labels = split.read(index), split.labels[index]

    def answer(to: Prepared) -> Tensor:
        return _answers(to, images, batch_size, device)

    outputs = answer(model)
    check_classes(outputs)
    check_finite(outputs)
    warnings = [*opened.warnings, *_unsteady(model, images, outputs, device, allow_random, batch_size)]
    match = match_classes(
        data.classes, opened.classes, outputs=outputs.shape[1], aliases=opened.aliases, class_map=class_map
    )
    kind = output or decide_kind(outputs)
    notes = [f"outputs are {kind}" + (", as stated" if output else f", decided on {len(outputs)} images")]
    right = _right(outputs, labels, match)
    rivals = _probe(model, used, statistics, labels, match, answer) if probe and len(right) else ()
    warnings += [text for text in (kind_warning(outputs, kind),) if text]
    warnings += [rival.warning(float(right.double().mean())) for rival in rivals[:1] if rival.better]
    notes.append(f"preprocessing: {_naming(name, used, opened)}")
    class_notes, class_warnings = _class_words(match, split)
    if match.kind == "order":
        class_warnings += _order_warning(outputs, labels, match)
    return Aligned(
        _readings(model, kind, match, data),
        match,
        kind,
        model.preprocessing,
        name,
        float(right.double().mean()) if len(right) else float("nan"),
        len(right),
        rivals,
        (*opened.notes, *notes, *class_notes),
        (*warnings, *class_warnings),
    )


def draw(total: int, wanted: int, seed: int) -> Tensor:
    """Positions of a sample, in order; all of them where there are no more."""
    generator = torch.Generator().manual_seed(derive(seed, "alignment"))
    return torch.randperm(total, generator=generator)[:wanted].sort().values


def _test(data: Dataset) -> Split:
    require(
        data.test is not None and len(data.test) > 0, f"{data.name} has no test images to align and audit a model on"
    )
    assert data.test is not None
    return data.test


def _choose(opened: Opened, asked: str | Preprocessing, statistics: Preprocessing) -> tuple[str, Preprocessing]:
    """(name, value) of the preprocessing to use."""
    if isinstance(asked, Preprocessing):
        return "given", asked
    own = opened.stated or NONE
    if asked == STATED:
        return STATED, own
    known = candidates(own, channels=opened.channels, data=statistics)
    same = {"none": NONE} if own == NONE else {}
    if asked not in {**known, **same}:
        raise unknown("preprocessing", asked, [STATED, *known, *same])
    return asked, {**known, **same}[asked]


def _naming(name: str, used: Preprocessing, opened: Opened) -> str:
    if name == STATED and opened.stated is None:
        return f"{used} (the model states nothing: images go in as they are)"
    return f"{used} ({'by the model' if name == STATED else name})"


@torch.no_grad()
def _answers(model: Prepared, images: Tensor, batch_size: int, device: torch.device) -> Tensor:
    """(N, K) on the CPU."""
    with evaluating(model):
        return torch.cat([model(to_float(part.to(device))).cpu() for part in torch.split(images, batch_size)])


def _unsteady(
    model: Prepared, images: Tensor, outputs: Tensor, device: torch.device, allowed: bool, batch_size: int
) -> list[str]:
    """What to say of answers that change from call to call, or with the other images of a batch."""
    few = images[:batch_size]
    again = _answers(model, few, batch_size, device)
    if (moved := change(outputs[: len(few)], again)) > STEADY:
        text = f"the model's answers change between calls, by up to {moved:.2g} of their spread"
        if not allowed:
            raise HoldfastError(
                f"{text}; put it into evaluation mode, seed it, or average several passes in a python: function; "
                "--allow-random audits it as it is"
            )
        return [f"{text}: every number below is one draw of many"]
    alone = _answers(model, few[:4], 1, device)
    if (moved := change(outputs[:4], alone)) > ALONE:
        return [
            f"an answer depends on the other images of its batch (by up to {moved:.2g} of the spread): a BatchNorm "
            "layer in training mode? Export the model in evaluation mode"
        ]
    return []


def _probe(
    model: Prepared,
    used: Preprocessing,
    statistics: Preprocessing,
    labels: Tensor,
    match: ClassMatch,
    answer: Callable[[Prepared], Tensor],
) -> tuple[Rival, ...]:
    """Every rival on the same images. One whose answers are not finite is simply wrong there."""
    tried = candidates(used, channels=model.channels, data=statistics)
    stated = _right(answer(model), labels, match)
    rights = {name: _right(answer(model.with_preprocessing(value)), labels, match) for name, value in tried.items()}
    return judge(stated, rights, tried)


def _right(outputs: Tensor, labels: Tensor, match: ClassMatch) -> Tensor:
    """(M,) whether the strongest of all outputs belongs to the label, for samples whose class the model knows."""
    owner = torch.full((outputs.shape[1],), -1)
    for label, own in enumerate(match.columns):
        owner[list(own)] = label
    known = torch.tensor([bool(own) for own in match.columns])[labels]
    return (owner[outputs.nan_to_num().argmax(1)] == labels)[known]


def _readings(model: Prepared, kind: str, match: ClassMatch, data: Dataset) -> dict[str, Reading]:
    names = ["all", "restricted"] if match.kind == "partial" else ["all"]
    return {
        name: Reading(name, AlignedModel(model, kind, match.selection(name)), relabel(data, match, name))
        for name in names
    }


def _order_warning(outputs: Tensor, labels: Tensor, match: ClassMatch) -> list[str]:
    """What to say where the outputs fit the classes far better in another order."""
    found = find_order(outputs.argmax(1), labels, len(match.data))
    if found is None:
        return []
    pair = found.paired
    wrong = [i for i, column in enumerate(found.columns) if column != i][:5]
    swaps = ", ".join(f"{printable(match.data[i])} = output {found.columns[i]}" for i in wrong)
    return [
        f"the outputs seem to stand in another order ({swaps}{', ...' if len(wrong) == 5 else ''}): "
        f"{100 * pair.lead:+.1f} points, {100 * pair.low:+.1f} to {100 * pair.high:+.1f} at {pair.level:.0%}, on "
        f"{pair.n} images that did not choose it. Say it with --class-map FILE"
    ]


def _class_words(match: ClassMatch, split: Split) -> tuple[list[str], list[str]]:
    """(notes, warnings) on the classes."""
    notes, warnings = [f"classes matched {match.how}"], []
    if match.moved:
        notes.append(f"class mapping: {match.describe()}")
    if match.kind == "order" and "assumed" in match.how:
        warnings.append(
            "the model does not name its classes: output 0 is taken for "
            f"{printable(match.data[0])!r}, and so on in order; --class-map FILE says it for sure"
        )
    if match.kind == "partial":
        warnings.append(
            f"{len(match.known)} of the data's {len(match.data)} classes are among the model's {len(match.model)}; "
            "two readings: 'all' counts an answer outside the data's classes as wrong, 'restricted' leaves it no choice"
        )
    if match.missing:
        names = ", ".join(printable(name) for name in match.missing[:5]) + (", ..." if len(match.missing) > 5 else "")
        warnings.append(
            f"the model does not know {names}: {set_aside(split, match)} of {len(split)} test images are set aside"
        )
    return notes, warnings
