"""What would explain a bad score, and what the user is told: other preprocessing, another order of outputs, classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import ClassMatch, some
from holdfast.data.splits import Split
from holdfast.metrics import Paired, mcnemar, paired_difference
from holdfast.models import HALF, IMAGENET, NONE, Preprocessing
from holdfast.printable import printable
from holdfast.types import Note

STATED: Final = "stated"
"""The name of what the model's own settings say."""
LEVEL: Final = 0.99
"""Over all rivals together: each interval has its share of the 1 %."""
CHOOSING, JUDGING = slice(0, None, 2), slice(1, None, 2)
"""The samples that choose another order of the outputs, and those that judge it."""
LEAST_LEAD: Final = 0.02
"""A smaller lead is not worth an alarm, however sure."""
LOOKS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of the sample after which rivals that are clearly behind are given up."""
FEWEST: Final = 16
"""With fewer images nobody is clearly behind."""
BEHIND: Final = 1e-4
"""McNemar's p below which a rival is clearly behind the leader. The best one of ten is so by chance, against any of the
nine others at any of the four looks, with a probability of at most 9 × 4 × BEHIND / 2 = 0.2 %."""
MEANING: Final = {
    "none": "images without preprocessing: the network may normalise by itself already",
    "imagenet": "ImageNet's mean and deviation",
    "half": "0.5 and 0.5",
    "data": "mean and deviation of the data itself",
    "bgr": "as stated, but blue first",
    "bytes": "values from 0 to 255",
    "undo-imagenet": "ImageNet's normalisation undone: the network normalises twice",
    "undo-half": "0.5 and 0.5 undone: the network normalises twice",
    "undo-data": "the data's normalisation undone: the network normalises twice",
}


@dataclass(frozen=True)
class Rival:
    """How another preprocessing did on the same labelled sample. paired: its lead over what the model states."""

    name: str
    preprocessing: Preprocessing
    accuracy: float
    paired: Paired

    @property
    def better(self) -> bool:
        """Surely, and by enough to matter."""
        return self.paired.low > 0 and self.paired.lead > LEAST_LEAD

    def warning(self, stated: float, order: str = "") -> Note:
        """stated: the accuracy with the preprocessing in use. order: that both are with the outputs in another one."""
        pair = self.paired
        p = min(1.0, pair.p * (1 - LEVEL) / (1 - pair.level))
        text = (
            f"preprocessing is probably wrong: {self.name} ({MEANING[self.name]}) scores {self.accuracy:.1%} where the "
            f"one in use scores {stated:.1%} on the same {pair.n} images{order}: {100 * pair.lead:+.1f} points, "
            f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f} at {pair.level:.2%}, McNemar p = {p:.1g} (Bonferroni)"
        )
        return Note("preprocessing", text, f"if so, give --preprocessing {self.name}", "warning")


def named(stated: Preprocessing, *, channels: int, data: Preprocessing | None = None) -> dict[str, Preprocessing]:
    """Every preprocessing that has a name. data: mean and deviation of the data itself."""
    tried = {
        "none": NONE,
        "imagenet": IMAGENET,
        "half": HALF,
        "bgr": Preprocessing(stated.mean, stated.std, bgr=not stated.bgr),
        "bytes": Preprocessing((0.0,), (1 / 255,)),
        "undo-imagenet": IMAGENET.undone(),
        "undo-half": HALF.undone(),
        **({} if data is None else {"data": data, "undo-data": data.undone()}),
    }
    if channels != 3:
        del tried["bgr"]
    return {name: preprocessing.for_channels(channels) for name, preprocessing in tried.items()}


def candidates(stated: Preprocessing, *, channels: int, data: Preprocessing | None = None) -> dict[str, Preprocessing]:
    """Those worth trying: without what equals the stated one or an earlier name."""
    found: dict[str, Preprocessing] = {}
    for name, preprocessing in named(stated, channels=channels, data=data).items():
        if preprocessing != stated.for_channels(channels) and preprocessing not in found.values():
            found[name] = preprocessing
    return found


@dataclass(frozen=True, eq=False)
class Answers:
    """The strongest output (n,) for samples at these places (n,): not all of them where a rival was given up."""

    places: Tensor
    predicted: Tensor


def race(
    names: Iterable[str],
    ask: Callable[[str, Tensor], Tensor],
    right: Callable[[Answers], Tensor],
    stated: Tensor,
    order: Tensor,
    *,
    to_the_end: bool = False,
) -> dict[str, Answers]:
    """What each rival answers, as far as it takes to know that it is not the best.

    ask: a rival's strongest outputs (n,) for the samples at places (n,). right: which of the answers are, for samples
    that count. stated: (N,) those with the preprocessing in use, which runs along. order: (N,) the places in random
    order, so that a few stand for all. After each of ``LOOKS`` a rival is given up that is clearly behind the leader;
    ``to_the_end``: none is.
    """
    found = {name: Answers(order[:0], stated[:0]) for name in names}
    running, first = list(found), 0
    looks = [] if to_the_end else [round(len(order) * share) for share in LOOKS]
    for end in [*(look for look in looks if look >= FEWEST), len(order)] if running else []:
        for name in running:
            predicted = torch.cat([found[name].predicted, ask(name, order[first:end])])
            found[name] = Answers(order[:end], predicted)
        first, seen = end, order[:end]
        rights = {name: right(found[name]) for name in running} | {STATED: right(Answers(seen, stated[seen]))}
        leader = max(rights.values(), key=lambda own: int(own.sum()))
        running = [name for name in running if not _clearly_behind(rights[name], leader)]
    return found


def _clearly_behind(own: Tensor, leader: Tensor) -> bool:
    return int(own.sum()) < int(leader.sum()) and mcnemar(own, leader).p < BEHIND


def judge(
    stated: Tensor,
    rivals: Mapping[str, Tensor],
    preprocessing: Mapping[str, Preprocessing],
    *,
    seen: Mapping[str, Tensor] | None = None,
) -> tuple[Rival, ...]:
    """Rivals from the best to the worst, those given up last.

    stated, rivals: (N,) bool, right or wrong on the same samples. seen: of these, the places that a rival was tried on,
    if not all.
    """
    level = 1 - (1 - LEVEL) / max(len(rivals), 1)
    judged = []
    for name, right in rivals.items():
        own = stated if seen is None else stated[seen[name]]
        lead = paired_difference(right, own, level=level)
        judged.append(Rival(name, preprocessing[name], float(right.double().mean()), lead))
    return tuple(sorted(judged, key=lambda rival: (-rival.paired.n, -rival.accuracy)))


def preprocessing_note(name: str, used: Preprocessing, *, stated: Preprocessing | None) -> Note:
    known = "the model states nothing: images go in without preprocessing" if stated is None else "by the model"
    return Note("preprocessing-used", f"preprocessing: {used} ({known if name == STATED else name})")


def order_note(columns: Sequence[int], pair: Paired, match: ClassMatch) -> Note:
    """What to say where the outputs fit the classes far better in another order, as :func:`find_order` found it."""
    wrong = [i for i, column in enumerate(columns) if column != i][:5]
    swaps = ", ".join(f"{printable(match.data[i])} = output {columns[i]}" for i in wrong)
    text = (
        f"the outputs seem to stand in another order ({swaps}{', ...' if len(wrong) == 5 else ''}): "
        f"{100 * pair.lead:+.1f} points, {100 * pair.low:+.1f} to {100 * pair.high:+.1f} at {pair.level:.0%}, on "
        f"{pair.n} images that did not choose it"
    )
    return Note("class-order", text, "state it with --class-map FILE", "warning")


def class_notes(match: ClassMatch, split: Split, aside: int) -> list[Note]:
    """How the classes were matched, and what that leaves out. aside: test images of classes the model does not know."""
    notes = [Note("classes", f"classes matched {match.how}")]
    if match.moved:
        notes.append(Note("class-mapping", f"class mapping: {match.describe()}"))
    if match.assumed:
        text = f"the model does not name its classes: output 0 is taken for {printable(match.data[0])!r}, and so on"
        notes.append(Note("classes-assumed", f"{text} in order", "state them with --class-map FILE", "warning"))
    if match.kind == "partial":
        text = (
            f"{len(match.known)} of the data's {len(match.data)} classes are among the model's {len(match.model)}; "
            "two readings: 'all' counts an answer outside the data's classes as wrong, 'restricted' leaves it no choice"
        )
        notes.append(Note("classes-partial", text, level="warning"))
    counts = torch.bincount(split.labels, minlength=len(match.data))
    unseen = [match.data[i] for i in (counts == 0).nonzero().flatten().tolist()]
    if unseen:
        text = f"classes without a test image, of which nothing is measured: {some(unseen)}"
        notes.append(Note("classes-empty", text))
    if match.missing:
        text = f"{some(match.missing)}: {aside} of {len(split)} test images are set aside"
        notes.append(Note("classes-missing", f"the model does not know {text}", level="warning"))
    return notes


def find_order(predicted: Tensor, labels: Tensor, classes: int) -> tuple[tuple[int, ...], Paired] | None:
    """The output of each class in an order that is surely better by enough to matter, and its lead; None without one.

    predicted, labels: (N,). Every second sample chooses the assignment with the most hits; the others judge it.
    """
    counts = 0.5 * torch.eye(classes)  # where samples say nothing, the order stays
    counts.index_put_((labels[CHOOSING], predicted[CHOOSING]), torch.tensor(1.0), accumulate=True)
    if bool((counts.diagonal() == counts.amax(1)).all()):
        return None  # no order has more hits than the present one
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # a second, rarely needed

    columns = torch.from_numpy(linear_sum_assignment(counts.numpy(), maximize=True)[1])
    now, then = predicted[JUDGING] == labels[JUDGING], predicted[JUDGING] == columns[labels[JUDGING]]
    paired = paired_difference(then, now, level=LEVEL)
    return (tuple(columns.tolist()), paired) if paired.low > 0 and paired.lead > LEAST_LEAD else None
