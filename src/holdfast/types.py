"""The small frozen values that the layers hand to each other.

Nothing here imports torch at run time, so that findings can be read and rendered without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece of a split, on the device that will use it.

    index: (B,) int64 position of each sample in its split.
    x: images (B, C, H, W), uint8 as they rest, float in [0, 1] once a step has prepared them.
    y: (B,) int64 class.
    group: (B,) int64 group, -1 where it is not known.
    others: (B, C, H, W) in [0, 1], other images of the training set, in a step of a method that asks for them.
    """

    index: Tensor
    x: Tensor
    y: Tensor
    group: Tensor
    others: Tensor | None = None

    def __len__(self) -> int:
        return self.y.shape[0]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a loader gives."""
        return self.index, self.x, self.y, self.group

    def to(self, device: torch.device) -> Batch:
        return Batch(*(t.to(device, non_blocking=True) for t in self.tensors()))

    def split(self, parts: int) -> list[Batch]:
        """At most ``parts`` consecutive pieces of (nearly) equal size."""
        return [Batch(*piece) for piece in zip(*(t.chunk(parts) for t in self.tensors()), strict=True)]


@dataclass(frozen=True, slots=True)
class View:
    """One neighbour of a batch to train on.

    x: images (B, C, H, W) in [0, 1].
    label: (B,) int64 classes or (B, K) probabilities.
    weight: (B,) weight of each sample's loss; None is 1.
    update_statistics: whether the model's running statistics follow these images.
    norms: what these images go through instead of the model's own BatchNorm: scales, shifts and running statistics by
    their names in the model.
    """

    x: Tensor
    label: Tensor
    weight: Tensor | None = None
    update_statistics: bool = True
    norms: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Views:
    """What a method draws once per step: neighbours, and the loss of its own auxiliary model, if it has one.

    weigh: gives the final views where weights depend on the outputs of the model that is trained. It is called once
    per step, under every ascent, with the detached logits (B, K) of the first view at the unmoved weights.
    extra: further tensors that the method's forward pass or its loss needs.
    """

    items: tuple[View, ...]
    auxiliary_loss: Tensor | None = None
    weigh: Callable[[Tensor], Views] | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)


class Needs(Flag):
    """What a part cannot do without."""

    NOTHING = 0
    IMAGES = auto()
    """Pixels, not only predictions that were made elsewhere."""
    MODEL = auto()
    """A model that can be asked again."""
    GRADIENTS = auto()
    """A model whose gradients reach the images or the weights."""
    TRAINING_IMAGES = auto()
    GROUPS = auto()
    """Group labels."""
    FEATURES = auto()
    """The input of the model's last layer."""
    UNLABELLED = auto()
    """Images without labels."""


class Unit(Enum):
    """How a measure's number is read and shown."""

    PERCENT = "%"
    """A share in [0, 1], shown as a percentage."""
    POINTS = "points"
    """A difference of shares, shown in percentage points."""
    NUMBER = ""
    P_VALUE = "p"
    COUNT = "count"
    SECONDS = "s"
    FLAG = "yes/no"
    """1 for yes, 0 for no."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that an audit measures: what it is called, its unit, and which way is better.

    name: as in findings, gates and tables, such as "worst_group_accuracy". title: its name in reports. gate: whether
    ``--fail-under`` and ``--max-drop`` take it. headline: whether it is among the few numbers that represent its check
    in a report's overview. headline_where: what the finding's ``where`` must be for that, such as {"strength": "1"}.
    digits: after the point, for a plain number; None shows four significant digits. part: the key of ``where`` that a
    gate names after an @, as in ``robust_accuracy@8/255``. usual_part: its value where a gate names none. data_part:
    the parts are of the data, such as its classes, and a gate names one after a colon, as in ``class_accuracy:cat``;
    where ``part`` is "*", by all values of ``where``, as in ``group_accuracy:cat/night``. of: the measure that has the
    findings, if it is another one. drop: the measure that says how far this one is below the clean accuracy of the same
    images. drop_from: what the drop is from instead, such as "bias-aligned accuracy". about: what the number is, in one
    plain sentence. changed_images: whether the images were changed for it, by a corruption or an attack; a headline
    names failures on unmodified images first. poor: from this value on the number is poor, even without a drop.
    remedies: commands that help where the number is poor, with RUN for a run folder, MODEL for a model of any kind, and
    DATA for the data; after " # ", what the command does.
    """

    name: str
    title: str
    unit: Unit = Unit.PERCENT
    better: Literal["higher", "lower", "neither"] = "higher"
    gate: bool = False
    headline: bool = False
    headline_where: Mapping[str, str] = field(default_factory=dict, hash=False)
    digits: int | None = None
    part: str = ""
    usual_part: str = ""
    data_part: bool = False
    of: str = ""
    drop: str = ""
    drop_from: str = ""
    about: str = ""
    changed_images: bool = False
    poor: float | None = None
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell the user. A warning changes how to read a number and is never hidden.

    code: what it is, for programs; text: what happened; remedy: what to do about it, where something can be done.
    """

    code: str
    text: str
    remedy: str = ""
    level: Literal["note", "warning"] = "note"

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured number with its evidence.

    check: which check of an audit made it, such as "groups".
    name: of its measure, such as "worst_group_accuracy".
    value: the number, or None where there was nothing to measure (n is 0 then).
    n: how many samples it rests on.
    low, high: the 95 % interval, where one exists.
    where: the part of the data it speaks of, such as {"group": "red"}; empty for all of it.
    settings: what the check was told.
    evidence: anything a report needs to draw it; JSON values only.
    """

    check: str
    name: str
    value: float | None
    n: int
    low: float | None = None
    high: float | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Finding:
        return cls(**values)
