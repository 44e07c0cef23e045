"""Weak slices: parts of the data, by how images look or how the model sees them, where it is weaker than elsewhere.

Whoever looks at many parts finds a weak one by chance. So parts are found on one half of the test samples and judged on
the other, by an exact test that is corrected for how many were brought forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from holdfast.audits.checks.accuracy.clean_accuracy import accuracy
from holdfast.audits.checks.slices.feature_clusters import LEAST, Clustering, cluster, features_of, telling
from holdfast.audits.sample_passes import Rows, SamplePass, encode
from holdfast.audits.subject import Subject, halves
from holdfast.augment.basic import to_float
from holdfast.corruptions.pixels import luminance
from holdfast.data.images import peek, png
from holdfast.data.splits import FileSplit, Split
from holdfast.errors import require
from holdfast.metrics import combined, fisher_p, holm, proportion
from holdfast.types import Finding

LOOKS: Final = ("brightness", "contrast", "colourfulness", "sharpness")
SHARES: Final = (0.05, 0.1, 0.2, 0.3)
"""How much of the data the lower and the upper end of an attribute may be."""
FEW: Final = 10
"""An attribute of so few values is not cut in ends: every value is a part."""
SCREEN: Final = 0.05
MOST: Final = 10
"""Parts brought forward: those with p under the first number on the half where they are found, at most so many that
have a name and as many clusters."""
TENTHS: Final = 10
EXAMPLES: Final = 6

Side = Literal["at most", "above", "is"]


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the data: samples whose attribute is at most, above, or exactly a value, or a cluster of features.

    attribute: its name, or the clustering. found_p: Fisher's one-sided p on the half where it was found. p,
    adjusted_p: on the other half, as it is and by Holm's correction over all parts brought forward.
    """

    attribute: str | Clustering
    side: Side
    value: float
    found_p: float
    p: float = 1.0
    adjusted_p: float = 1.0

    def members(self, values: Tensor) -> Tensor:
        """(N,) which samples belong, from the attribute's (N,) values; NaN belongs nowhere."""
        return {"at most": values.le, "above": values.gt, "is": values.eq}[self.side](self.value)

    def compared(self, values: Tensor) -> Tensor:
        """(N,) samples that are compared: all, but for a cluster within a class those of the class."""
        if not isinstance(self.attribute, Clustering) or not self.attribute.within_class:
            return torch.ones_like(values, dtype=torch.bool)
        first = self.value // self.attribute.count * self.attribute.count
        return (values >= first) & (values < first + self.attribute.count)


def weak_slices(subject: Subject, level: float) -> tuple[Finding, ...]:
    """Weak parts by how images look, by the subject's columns, and by clusters of the model's features."""
    values, correct = attributes(subject), subject.predictions.correct
    first, second = halves(len(correct), subject.seed, "slices/halves")
    source, seen = features_of(subject) or ("nothing", None)
    labels, logits = subject.predictions.labels, subject.predictions.logits
    clusters = {} if seen is None else cluster(seen, labels, first, seed=subject.seed, logits=logits)
    every: dict[Any, Tensor] = {**values, **clusters}
    found = search(every, correct, first, second)
    settings = {"level": level, "screen": SCREEN, "shares": list(SHARES), "seed": subject.seed}
    varied = {name: own for name, own in values.items() if len(_distinct(own)) > 1}
    summary = {
        "attributes": list(varied),
        "constant": [name for name in values if name not in varied],
        "clusters": {"of": source, "tried": sum(len(_distinct(ids)) for ids in clusters.values())},
        "brought_forward": len(found),
        "profile": {name: profile(own, correct) for name, own in varied.items()},
    }
    confirmed = [s for s in found if s.adjusted_p <= level]
    count = float(len(confirmed))
    made = [Finding("slices", "confirmed_slices", count, len(second), settings=settings, evidence=summary)]
    for i, part in enumerate(found, start=1):
        number = sum(isinstance(s.attribute, Clustering) for s in found[:i])
        words, evidence = named(subject, part, number, every, second)
        own = every[part.attribute]
        made += slice_findings(subject, part, words, own, first, second, evidence | {"confirmed": part in confirmed})
    return tuple(made)


def search(values: Mapping[Any, Tensor], correct: Tensor, first: Tensor, second: Tensor) -> list[Slice]:
    """Parts found on the first half, the most striking first, with what the second half says of each."""
    best: list[Slice] = []
    for name, own in values.items():
        found = [
            replace(part, found_p=p)
            for part in candidates(name, own[first])
            if (p := _p(part, own[first], correct[first], least=LEAST)) <= SCREEN
        ]
        for side in dict.fromkeys(part.side for part in found):
            alike = [part for part in found if part.side == side]
            best += alike if side == "is" else [min(alike, key=lambda part: part.found_p)]
    best.sort(key=lambda s: s.found_p)
    named, clusters = ([s for s in best if isinstance(s.attribute, kind)] for kind in (str, Clustering))
    best = sorted([*named[:MOST], *distinct_clusters(clusters, values, first)], key=lambda s: s.found_p)
    judged = [_p(s, values[s.attribute][second], correct[second], least=1) for s in best]
    return [replace(s, p=p, adjusted_p=adjusted) for s, p, adjusted in zip(best, judged, holm(judged), strict=True)]


def distinct_clusters(found: Sequence[Slice], values: Mapping[Any, Tensor], first: Tensor) -> list[Slice]:
    """The first so many clusters, without those that lie in one before them by more than half, or hold its half."""
    kept: list[tuple[Slice, Tensor]] = []
    for part in found:
        own = part.members(values[part.attribute][first])
        if all(2 * (own & other).sum() <= min(own.sum(), other.sum()) for _, other in kept):
            kept.append((part, own))
        if len(kept) == MOST:
            break
    return [part for part, _ in kept]


def candidates(name: str | Clustering, values: Tensor) -> Iterator[Slice]:
    """The parts that one attribute offers: its ends, or each of its few values."""
    distinct = _distinct(values)
    if len(distinct) < 2:
        return
    if len(distinct) <= FEW or not values.is_floating_point():
        offered = name.offered if isinstance(name, Clustering) else None
        for value in distinct:
            if offered is None or value in offered:
                yield Slice(name, "is", value, 1.0)
        return
    ordered = values[~values.isnan()].sort().values
    for share in SHARES:
        below, above = ordered[max(0, round(share * len(ordered)) - 1)], ordered[-1 - round(share * len(ordered))]
        yield Slice(name, "at most", float(below), 1.0)
        yield Slice(name, "above", float(above), 1.0)


def _p(part: Slice, values: Tensor, correct: Tensor, *, least: int) -> float:
    """Fisher's p that the part is no weaker than the rest; 1 where it, or the rest, is too small to tell."""
    compared = part.compared(values)
    inside, correct = part.members(values[compared]), correct[compared]
    n = int(inside.sum())
    rest = len(inside) - n
    if n < least or rest < least:
        return 1.0
    wrong = int((~correct[inside]).sum())
    return fisher_p(wrong, n, int((~correct).sum()) - wrong, rest)


def attributes(subject: Subject) -> dict[str, Tensor]:
    """(N,) of everything that slices are searched in: looks, sizes of files, and the subject's group columns."""
    columns, n = {name: column.values.cpu() for name, column in subject.columns.items()}, len(subject.split)
    for name, own in columns.items():
        require(own.shape == (n,), f"column {name!r} has shape {tuple(own.shape)}, and there are {n} test samples")
    return {**appearance(subject), **columns}


def looks_pass(subject: Subject) -> SamplePass:
    """Every look of the test images, measured where the images are, and the sizes of their files."""

    @torch.no_grad()
    def compute(blocks: Sequence[int]) -> Iterator[Rows]:
        order = made.order(blocks)
        for positions, batch in zip(torch.split(order, made.size), subject.loader.batches(order), strict=True):
            x = to_float(batch.x)
            looks = dict(zip(LOOKS, (look(x).double() for look in looked), strict=True))
            yield looks | file_sizes(subject.split, positions)

    looked = (brightness, contrast, colourfulness, sharpness)
    made = SamplePass("slices-looks", torch.arange(len(subject.split)), subject.batch_size, compute, cost=0.5)
    return made


def appearance(subject: Subject) -> dict[str, Tensor]:
    """(N,) of every look of the test images and, where they are files, of their sizes on disk."""
    found = subject.rows(looks_pass(subject))
    return found or {name: torch.empty(0, dtype=torch.float64) for name in LOOKS}


def brightness(x: Tensor) -> Tensor:
    """(B,) mean luminance of images (B, C, H, W) in [0, 1]."""
    return _luma(x).mean((1, 2))


def contrast(x: Tensor) -> Tensor:
    """(B,) standard deviation of luminance."""
    return _luma(x).flatten(1).std(1, correction=0)


def colourfulness(x: Tensor) -> Tensor:
    """(B,) spread and mean of the opponent colours, after Hasler and Süsstrunk (2003); 0 for grey images."""
    if x.shape[1] != 3:
        return x.new_zeros(len(x))
    red, green, blue = x.flatten(2).unbind(1)
    opponents = torch.stack([red - green, (red + green) / 2 - blue])
    return opponents.var(2, correction=0).sum(0).sqrt() + 0.3 * opponents.mean(2).square().sum(0).sqrt()


def sharpness(x: Tensor) -> Tensor:
    """(B,) standard deviation of the Laplacian of luminance; 0 where there is no inner pixel."""
    y = _luma(x)
    if min(y.shape[1:]) < 3:
        return x.new_zeros(len(x))
    middle = y[:, 1:-1, 1:-1]
    around = y[:, :-2, 1:-1] + y[:, 2:, 1:-1] + y[:, 1:-1, :-2] + y[:, 1:-1, 2:]
    return (around - 4 * middle).flatten(1).std(1, correction=0)


def _luma(x: Tensor) -> Tensor:
    """(B, H, W); images that are neither grey nor RGB count their channels alike."""
    return (luminance(x) if x.shape[1] in (1, 3) else x.mean(1, keepdim=True))[:, 0]


def file_sizes(split: Split, positions: Tensor) -> dict[str, Tensor]:
    """Size (square root of the pixels) and aspect (width over height) as they are on disk; nothing for arrays."""
    if not isinstance(split, FileSplit):
        return {}
    sides = torch.tensor([peek(split.paths[i])[0] for i in positions.tolist()], dtype=torch.float64).view(-1, 2)
    return {"size": sides.prod(1).sqrt(), "aspect": sides[:, 1] / sides[:, 0]}


def profile(values: Tensor, correct: Tensor) -> dict[str, list[float]]:
    """Accuracy along an attribute, in tenths of the samples, on both halves: for the eye, not for a verdict."""
    known = _known(values).nonzero().flatten()
    parts = [part for part in known[values[known].argsort(stable=True)].tensor_split(TENTHS) if len(part)]
    return {
        "value": [float(values[part].double().mean()) for part in parts],
        "n": [len(part) for part in parts],
        "accuracy": [float(correct[part].double().mean()) for part in parts],
    }


def named(
    subject: Subject, part: Slice, number: int, values: Mapping[Any, Tensor], second: Tensor
) -> tuple[str, dict[str, Any]]:
    """A part in words, and what a report says of it; a cluster by what it is predicted as and what sets it apart."""
    if isinstance(part.attribute, str):
        column = subject.columns.get(part.attribute)
        words = describe(part, column.names if column else ())
        return words, {"attribute": part.attribute, "side": part.side, "value": part.value}
    label, seen, own = part.attribute.class_of(part.value), subject.predictions, values[part.attribute]
    compared = second[part.compared(own[second])]
    inside = part.members(own[compared])
    names = {"group": subject.data.group_names, "class": subject.data.classes}
    names |= {name: column.names for name, column in subject.columns.items()}
    properties = {"group": subject.split.groups} | ({"class": seen.labels} if label is None else {})
    properties |= {name: of for name, of in values.items() if isinstance(name, str)}
    said: dict[str, Any] = {"attribute": "cluster", "class": None if label is None else subject.data.classes[label]}
    members = compared[inside]
    wrong = seen.logits.argmax(1)[members][~seen.correct[members]]
    about = []
    if len(wrong):
        most = int(wrong.mode().values)
        share = float((wrong == most).sum() / len(members))
        said["prediction"] = [subject.data.classes[most], share]
        about.append(f"{100 * share:.0f} % predicted as {subject.data.classes[most]}")
    if found := telling(inside, {k: v[compared] for k, v in properties.items()}, names):
        about.append(found[0])
        said["telling"] = found[1]
    of = "all classes" if label is None else f"class {said['class']}"
    if label is not None:
        said["compared_with"] = f"accuracy in the rest of {of}"
    return f"{of}, cluster {number}" + (f": {', '.join(about)}" if about else ""), said


def slice_findings(
    subject: Subject,
    part: Slice,
    words: str,
    values: Tensor,
    first: Tensor,
    second: Tensor,
    evidence: dict[str, Any],
) -> list[Finding]:
    """Accuracy of a part and its distance from the rest, on the half that did not find it."""
    second, right = second[part.compared(values[second])], subject.predictions.correct
    inside, correct, where = part.members(values[second]), right[second], {"slice": words}
    earlier = right[first][part.members(values[first])]
    evidence |= {
        "p": part.p,
        "adjusted_p": part.adjusted_p,
        "found": {"p": part.found_p, "n": len(earlier), "accuracy": float(earlier.double().mean())},
    }
    if evidence["confirmed"]:
        members = part.members(values).nonzero().flatten()
        evidence["examples"] = _examples(subject, second[inside & ~correct][:EXAMPLES])
        evidence["verdicts"] = encode(members, [words] * len(members))
    made = [accuracy(correct[inside], where, check="slices", name="slice_accuracy", evidence=evidence)]
    if 0 < int(inside.sum()) < len(inside):
        gap = combined(lambda p: p[0] - p[1], [proportion(correct[~inside]), proportion(correct[inside])])
        made.append(Finding("slices", "slice_gap", gap.value, gap.n, gap.low, gap.high, where))
    return made


def describe(part: Slice, names: tuple[str, ...] = ()) -> str:
    """A part in words.

    >>> describe(Slice("brightness", "at most", 0.21341, 0.01)), describe(Slice("site", "is", 1.0, 0.01), ("a", "b"))
    ('brightness at most 0.213', 'site is b')
    """
    whole = int(part.value) if part.side == "is" and part.value == int(part.value) else None
    value = f"{part.value:.3g}" if whole is None else names[whole] if 0 <= whole < len(names) else str(whole)
    return f"{part.attribute} {part.side} {value}"


def _examples(subject: Subject, positions: Tensor) -> list[dict[str, Any]]:
    seen, classes, rows = subject.predictions, subject.data.classes, []
    for i, image in zip(positions.tolist(), subject.split.read(positions), strict=True):
        said = {"label": classes[seen.labels[i]], "prediction": classes[seen.logits[i].argmax()]}
        rows.append({"png": png(image), **said, "source": subject.split.describe(i)})
    return rows


def _known(values: Tensor) -> Tensor:
    return ~values.isnan() if values.is_floating_point() else values >= 0


def _distinct(values: Tensor) -> list[float]:
    return sorted(set(values[_known(values)].tolist()))
