"""Is there a shortcut at all? A test on held-out halves of the training set. Open this file to change the alarm.

A biased model is trained on one half and predicts the other. Take a sample with label y that it assigns to another
class b, and compare it with the samples of b and of y that it gets right:

- A wrong label, or noise: the sample is one of those of b. Its picture is not closer to pictures of y than theirs are.
- A hard sample: its picture is closer to y than those of b, but less so than those of y; and the biased model sees more
  of y in it than in those of b: y is its second choice. Or the model is not sure of b.
- A bias-conflicting sample: its picture is closer to y than those of b, and the biased model is sure of b. It sees
  nothing of y, since it sees the shortcut alone (a clear one); or the picture is as close to y as those of y are, at
  least where the shortcut is not: in grey, without one quarter, or without the margin.

So mistakes of the third kind are counted, clear ones twice. Some are among those on any data, NULL_SHARES at most.

A second count needs no comparison of pictures. One aspect at a time is hidden from the biased model: the colour, or one
quarter. Of these, the shortcut would be in the one that the right samples rely on most. A mistake hinges on it if the
model sees y rather than b once it is hidden, and not when any other is. A hard sample is lost or won by several aspects
alike, and in a wrong label nothing shows y: NULL_SHARE of the mistakes at most hinge on that aspect without a shortcut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from holdfast.augment.basic import to_float
from holdfast.data.splits import Dataset, Split
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.shortcuts.biased_models import held_out_logits
from holdfast.train.progress import Progress

LEVEL = 0.05
"""The alarm is raised from this p on: on data without a shortcut at most so often."""
NULL_SHARES = (0.1, 0.3)
"""Of the mistakes on data without a shortcut, at most these shares are clear, and look bias-conflicting at all: they
were 0.08 and 0.2 or less on the sets that ``benchmarks/shortcuts.py --sets calibration`` measures."""
NULL_SHARE = 0.25
"""Of the mistakes on data without a shortcut, at most this share hinges on the aspect that right samples rely on most:
it was 0.11 or less on 12 sets (``benchmarks/results/shortcuts_null.json``)."""
FOUND_FROM = 20
"""Bias-conflicting samples that a clear shortcut usually takes (benchmarks/results/shortcuts_limit.json)."""
SURE = 1 / 3
"""The biased model is sure of b from this probability on; of a blurred or noisy picture it seldom is."""
UNSEEN = 0.25
"""The biased model sees nothing of y in a sample if it sees as much of y in this share of the right samples of b."""
CLOSER = 0.95
"""A picture is closer to y than those of b if it is closer than this share of the right samples of b."""
TYPICAL = 0.5
"""A picture is as close to y as those of y are if it is closer than this share of the right samples of y."""
LEAST_RIGHT = 8
"""Right samples of a class that a mistake is compared with, at least."""
LEAST_STEPS = 100
"""Of each training: a biased model that has hardly learned anything makes mistakes of any kind."""
MOST_TESTED = 40_000
SIDE = 10
"""Of the thumbnails that pictures are compared by."""
NEIGHBOURS = 3
CHUNK = 1000


COLOUR = "the colour"
QUARTERS = ("the upper left quarter", "the upper right quarter", "the lower left quarter", "the lower right quarter")


@dataclass(frozen=True)
class ShortcutTest:
    """mistakes: held-out samples that the biased models get wrong. conflicting: those among them that look
    bias-conflicting. clear: those of them in which the biased models see nothing of the label. hinging: mistakes that
    hinge on one aspect of the picture, the one that right samples rely on most. p: the chance of so many, by either
    count, on data without a shortcut, where their shares are NULL_SHARES and NULL_SHARE at most.

    >>> ShortcutTest.of(clear=4, conflicting=9, mistakes=16).alarm, ShortcutTest.of(1, 8, 40).alarm
    (True, False)
    >>> ShortcutTest.of(0, 8, 20, hinging=15, aspect=COLOUR).place
    'the colour'
    """

    p: float
    clear: int
    conflicting: int
    mistakes: int
    hinging: int = 0
    aspect: str = ""

    @classmethod
    def of(cls, clear: int, conflicting: int, mistakes: int, hinging: int = 0, aspect: str = "") -> ShortcutTest:
        smaller = min(p_of_counts(clear, conflicting, mistakes), p_of_hinging(hinging, mistakes))
        return cls(min(1.0, 2 * smaller), clear, conflicting, mistakes, hinging, aspect)  # twice: the better of two

    @property
    def alarm(self) -> bool:
        return self.p <= LEVEL

    @property
    def place(self) -> str:
        """The aspect that the shortcut is in, where the mistakes show it."""
        return self.aspect if 2 * p_of_hinging(self.hinging, self.mistakes) <= LEVEL else ""


def p_of_counts(clear: int, conflicting: int, mistakes: int) -> float:
    """The chance of conflicting + clear, or more, if each mistake is clear (counts 2) or looks bias-conflicting without
    being clear (counts 1) with the shares of NULL_SHARES. With lower shares it is lower."""
    import numpy as np
    from scipy.stats import binom  # type: ignore[import-untyped]  # half a second, for those who need it

    first, both = NULL_SHARES
    twos = np.arange(mistakes + 1)
    once = binom.sf(conflicting + clear - 2 * twos - 1, mistakes - twos, (both - first) / (1 - first))
    return float(min(1.0, (binom.pmf(twos, mistakes, first) * once).sum()))


def p_of_hinging(hinging: int, mistakes: int) -> float:
    """The chance of so many, or more, if each mistake hinges on the aspect with the share of NULL_SHARE."""
    from scipy.stats import binom

    return float(binom.sf(hinging - 1, mistakes, NULL_SHARE))


def held_out_test(settings: TrainSettings, data: Dataset, *, device: torch.device, progress: Progress) -> ShortcutTest:
    """Train a biased model on each half of the training set (of 40,000 samples at most), and test what it says of the
    other half."""
    loop = settings.loop
    drawn = torch.Generator().manual_seed(derive(loop.seed, "shortcuts/test"))
    split = data.train.subset(torch.randperm(len(data.train), generator=drawn)[:MOST_TESTED])
    half = halves(split.labels)
    epochs = math.ceil(LEAST_STEPS / math.ceil(len(split) / 2 / loop.batch_size))
    training = replace(settings, loop=replace(loop, epochs=max(loop.epochs, epochs)))
    aspects = (COLOUR, *QUARTERS) if data.shape[0] == 3 else QUARTERS
    logits = torch.empty(1 + len(aspects), len(split), data.num_classes)
    for number in (0, 1):
        progress.note(f"half {number + 1} of 2, to test whether there is a shortcut")
        own, other = (split.subset((half == k).nonzero().flatten()) for k in (number, 1 - number))
        part = replace(data, train=own, val=None, test=None)
        logits[:, half != number] = held_out_logits(
            training, part, other, views=with_aspects_hidden, device=device, progress=progress
        )
    close = [closeness(view, split.labels, half, data.num_classes) for view in thumbnails(split)]
    return judge(logits, close, split.labels, half, aspects)


def with_aspects_hidden(x: Tensor, mean: Tensor) -> Iterator[Tensor]:
    """Images (B, C, H, W), then without each aspect: in grey, if there are three channels; each quarter as in the mean
    image (1, C, H, W)."""
    yield x
    if x.shape[1] == 3:
        yield x.mean(1, keepdim=True).expand_as(x)
    for rows in (0, 1):
        for columns in (0, 1):
            changed = x.clone()
            part, usual = (y.tensor_split(2, 2)[rows].tensor_split(2, 3)[columns] for y in (changed, mean))
            part.copy_(usual.expand_as(part))
            yield changed


def halves(labels: Tensor) -> Tensor:
    """(N,) 0 or 1: the samples of every class in turn.

    >>> halves(torch.tensor([0, 1, 1, 0, 0]))
    tensor([0, 1, 0, 1, 0])
    """
    half = torch.empty_like(labels)
    half[labels.argsort(stable=True)] = torch.arange(len(labels)) % 2
    return half


def judge(
    logits: Tensor, close: Sequence[Tensor], labels: Tensor, half: Tensor, aspects: Sequence[str] = ()
) -> ShortcutTest:
    """Count the mistakes that look bias-conflicting, and those that hinge on one aspect.

    logits: (1 + A, N, K) of a biased model that was trained on the other half, of the images and of them without each
    aspect. close: for the view in colour, the one in grey and its parts, (N, K) how close the picture is to pictures of
    each class in the other half.
    """
    biased, classes = logits[0], logits.shape[2]
    predicted = biased.argmax(1)
    rank = (biased > biased.gather(1, labels[:, None])).sum(1)  # of the label: 0 is right, 1 the second choice
    compared, closer, unseen, typical = (torch.zeros(len(labels), dtype=torch.bool) for _ in range(4))
    rescued = torch.zeros(len(aspects), len(labels), dtype=torch.bool)
    for number in (0, 1):
        for k in range(classes):
            here = half == number
            right = (here & (predicted == k) & (labels == k)).nonzero().flatten()
            if len(right) < LEAST_RIGHT:
                continue
            for taken in torch.split((here & (predicted == k) & (labels != k)).nonzero().flatten(), CHUNK):
                y, b = labels[taken], predicted[taken]
                compared[taken] = True
                closer[taken] = _share_below(close[0] + close[1], right, taken, y, b) > CLOSER
                as_much_seen = 1 - _share_below(biased, right, taken, y, b)
                unseen[taken] = (as_much_seen > UNSEEN) | (rank[taken] - 1 > 0.5 * (classes - 2))
                for own, hidden in zip(rescued, logits[1:], strict=True):  # and more so than right samples of b
                    more = _share_below(hidden, right, taken, y, b) > CLOSER
                    own[taken] = more & (hidden[taken, y] > hidden[taken, b])
            for lost in torch.split((here & (labels == k) & (predicted != k)).nonzero().flatten(), CHUNK):
                for view in close[1:]:
                    typical[lost] |= _share_below(view, right, lost, labels[lost], predicted[lost]) > TYPICAL
    closer &= compared & (biased.softmax(1).amax(1) > SURE)
    clear, conflicting = closer & unseen, closer & (unseen | typical)
    counts = int(clear.sum()), int(conflicting.sum()), int(compared.sum())
    if not len(aspects) or not bool((predicted == labels).any()):
        return ShortcutTest.of(*counts)
    margins = _margin(logits[:, predicted == labels], labels[predicted == labels]).mean(1)
    most = int((margins[0] - margins[1:]).argmax())
    return ShortcutTest.of(*counts, int((rescued[most] & (rescued.sum(0) == 1)).sum()), aspects[most])


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """(V, N) by how much the label's logit is above the highest other one, of logits (V, N, K)."""
    at = labels[None, :, None].expand(len(logits), -1, 1)
    return (logits.gather(2, at) - logits.scatter(2, at, -torch.inf).amax(2, keepdim=True))[..., 0]


def _share_below(values: Tensor, those: Tensor, own: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """(M,) for each sample of own (M,) the share of those (R,) with less of its y, compared with its b; ties count
    half."""
    theirs, mine = values[those][:, y] - values[those][:, b], values[own, y] - values[own, b]  # (R, M), (M,)
    return ((theirs < mine).double() + (theirs <= mine).double()).mean(0) / 2


def closeness(view: Tensor, labels: Tensor, half: Tensor, classes: int) -> Tensor:
    """(N, K) how close each sample's picture is to the nearest of each class in the other half: the negative logarithm
    of the distance between thumbnails (N, D)."""
    close = torch.zeros(len(view), classes)
    for number in (0, 1):
        own, other = (half == number).nonzero().flatten(), (half != number).nonzero().flatten()
        for part in torch.split(own, CHUNK):
            distance = torch.cdist(view[part], view[other]).square()
            for k in range(classes):
                near = distance[:, labels[other] == k]
                if near.shape[1] == 0:  # as far as any
                    near = distance.amax(1, keepdim=True)
                nearest = near.topk(min(NEIGHBOURS, near.shape[1]), largest=False).values
                close[part, k] = -nearest.mean(1).clamp_min(1e-9).log() / 2
    return close


def thumbnails(split: Split) -> list[Tensor]:
    """(N, D) in colour; in grey; in grey without each quarter in turn; in grey without the margin. Those in grey have
    mean 0 and standard deviation 1."""
    parts = []
    for start in range(0, len(split), CHUNK):
        x = to_float(split.read(torch.arange(start, min(start + CHUNK, len(split)))))
        parts.append(adaptive_avg_pool2d(x, (min(SIDE, x.shape[2]), min(SIDE, x.shape[3]))))
    small = torch.cat(parts)
    grey = small.mean(1)
    height, width = grey.shape[1:]
    kept = [torch.ones(height, width, dtype=torch.bool) for _ in range(6)]
    for mask, rows, columns in zip(kept[1:5], (0, 0, 1, 1), (0, 1, 0, 1), strict=True):
        mask.tensor_split(2, 0)[rows].tensor_split(2, 1)[columns].fill_(False)
    kept[5] = torch.zeros_like(kept[5])
    kept[5][height // 5 : height - height // 5, width // 5 : width - width // 5] = True
    return [small.flatten(1), *(_equal_contrast(grey[:, mask]) for mask in kept if bool(mask.any()))]


def _equal_contrast(grey: Tensor) -> Tensor:
    spread = grey.std(1, correction=0, keepdim=True)
    return (grey - grey.mean(1, keepdim=True)) / (spread + 1e-6)
