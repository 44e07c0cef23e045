"""Is there a shortcut at all? A test on held-out halves of the training set. Open this file to change the alarm.

A biased model is trained on one half and predicts the other. Take a sample with label y that it assigns to another
class b, and compare it with the samples of class b that it gets right:

- A hard sample: the biased model sees more of y in it than in those; y is its second choice.
- A wrong label, or noise: the sample is one of those. Its picture is not closer to pictures of y than theirs are.
- A bias-conflicting sample: the biased model sees nothing of y in it, since it sees the shortcut alone, but the picture
  is closer to pictures of y than theirs are.

So mistakes of the third kind are counted. A few such are among those on any data, NULL_SHARE at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from holdfast.augment.basic import to_float
from holdfast.data.loaders import make_loader
from holdfast.data.splits import Dataset, Split
from holdfast.devices import kernels
from holdfast.rng import derive
from holdfast.settings import TrainSettings
from holdfast.shortcuts.biased_models import train_biased_model
from holdfast.train.evaluate import predict
from holdfast.train.progress import Progress

LEVEL = 0.05
"""The alarm is raised from this p on: on data without a shortcut at most so often."""
NULL_SHARE = 0.1
"""Of the mistakes on data without a shortcut, at most this share looks bias-conflicting: it was 0.075 or less on the
sets that ``benchmarks/shortcuts.py --sets calibration`` measures."""
UNSEEN = 0.25
"""The biased model sees nothing of y in a sample if it sees as much of y in this share of the right samples of b."""
CLOSER = 0.95
"""A picture is closer to y than those of b if it is closer than this share of the right samples of b."""
LEAST_RIGHT = 8
"""Right samples of a class that a mistake is compared with, at least."""
LEAST_STEPS = 100
"""Of each training: a biased model that has hardly learned anything makes mistakes of any kind."""
MOST_TESTED = 40_000
SIDE = 10
"""Of the thumbnails that pictures are compared by."""
NEIGHBOURS = 3
CHUNK = 1000


@dataclass(frozen=True)
class ShortcutTest:
    """mistakes: held-out samples that the biased models get wrong. conflicting: those among them that look
    bias-conflicting. p: the chance of so many on data without a shortcut, where their share is 10 % at most.

    >>> ShortcutTest.of(conflicting=9, mistakes=16).alarm, ShortcutTest.of(conflicting=3, mistakes=40).alarm
    (True, False)
    """

    p: float
    conflicting: int
    mistakes: int

    @classmethod
    def of(cls, *, conflicting: int, mistakes: int) -> ShortcutTest:
        from scipy.stats import binom  # type: ignore[import-untyped]  # half a second, for those who need it

        return cls(float(binom.sf(conflicting - 1, mistakes, NULL_SHARE)), conflicting, mistakes)

    @property
    def alarm(self) -> bool:
        return self.p <= LEVEL


def held_out_test(settings: TrainSettings, data: Dataset, *, device: torch.device, progress: Progress) -> ShortcutTest:
    """Train a biased model on each half of the training set (of 40,000 samples at most), and test what it says of the
    other half."""
    loop, given = settings.loop, settings.data
    drawn = torch.Generator().manual_seed(derive(loop.seed, "shortcuts/test"))
    split = data.train.subset(torch.randperm(len(data.train), generator=drawn)[:MOST_TESTED])
    half = halves(split.labels)
    epochs = math.ceil(LEAST_STEPS / math.ceil(len(split) / 2 / loop.batch_size))
    logits = torch.empty(len(split), data.num_classes)
    layout = torch.channels_last if loop.channels_last else torch.contiguous_format
    for number in (0, 1):
        progress.note(f"half {number + 1} of 2, to test whether there is a shortcut")
        own, other = (split.subset((half == k).nonzero().flatten()) for k in (number, 1 - number))
        model = train_biased_model(
            replace(settings, loop=replace(loop, epochs=max(loop.epochs, epochs))),
            replace(data, train=own, val=None, test=None),
            device=device,
            progress=progress,
        ).biased
        size = max(loop.batch_size, 256)
        loader = make_loader(other, batch_size=size, device=device, kind=given.loader, workers=given.workers)
        with kernels(loop.precision, deterministic=False):
            seen = predict(model, other, loader, device=device, precision=loop.precision, memory_format=layout)
        logits[half != number] = seen.logits.cpu()
    return judge(logits, closeness(split, half, data.num_classes), split.labels, half)


def halves(labels: Tensor) -> Tensor:
    """(N,) 0 or 1: the samples of every class in turn.

    >>> halves(torch.tensor([0, 1, 1, 0, 0]))
    tensor([0, 1, 0, 1, 0])
    """
    half = torch.empty_like(labels)
    half[labels.argsort(stable=True)] = torch.arange(len(labels)) % 2
    return half


def judge(biased: Tensor, close: Tensor, labels: Tensor, half: Tensor) -> ShortcutTest:
    """Count the mistakes that look bias-conflicting.

    biased: (N, K) logits of a biased model that was trained on the other half. close: (N, K) how close the picture is
    to pictures of each class in the other half.
    """
    predicted, classes = biased.argmax(1), biased.shape[1]
    rank = (biased > biased.gather(1, labels[:, None])).sum(1)  # of the label: 0 is right, 1 the second choice
    conflicting = mistakes = 0
    for number in (0, 1):
        for b in range(classes):
            here = (half == number) & (predicted == b)
            right, wrong = (here & (labels == b)).nonzero().flatten(), (here & (labels != b)).nonzero().flatten()
            if len(right) < LEAST_RIGHT:
                continue
            y = labels[wrong]
            as_much_seen = 1 - _share_below(biased, b, right, wrong, y)
            unseen = (as_much_seen > UNSEEN) | (rank[wrong] - 1 > 0.5 * (classes - 2))
            conflicting += int((unseen & (_share_below(close, b, right, wrong, y) > CLOSER)).sum())
            mistakes += len(wrong)
    return ShortcutTest.of(conflicting=conflicting, mistakes=mistakes)


def _share_below(values: Tensor, b: int, right: Tensor, wrong: Tensor, y: Tensor) -> Tensor:
    """(M,) for each wrong sample the share of the right ones with less of y, compared with b; ties count half."""
    more = values - values[:, b : b + 1]
    own, those = more[wrong, y], more[right][:, y]  # (M,), (R, M)
    return ((those < own).double() + (those <= own).double()).mean(0) / 2


def closeness(split: Split, half: Tensor, classes: int) -> Tensor:
    """(N, K) how close each sample's picture is to the nearest of each class in the other half: the negative logarithm
    of the distance between thumbnails, in colour and in grey of equal brightness and contrast, both added."""
    views = thumbnails(split)
    close = torch.zeros(len(split), classes)
    for number in (0, 1):
        own, other = (half == number).nonzero().flatten(), (half != number).nonzero().flatten()
        for view in views:
            for start in range(0, len(own), CHUNK):
                part = own[start : start + CHUNK]
                distance = torch.cdist(view[part], view[other]).square()
                for k in range(classes):
                    near = distance[:, split.labels[other] == k]
                    if near.shape[1] == 0:  # as far as any
                        near = distance.amax(1, keepdim=True)
                    nearest = near.topk(min(NEIGHBOURS, near.shape[1]), largest=False).values
                    close[part, k] -= nearest.mean(1).clamp_min(1e-9).log() / 2
    return close


def thumbnails(split: Split) -> tuple[Tensor, Tensor]:
    """(N, D) in colour and (N, D') in grey, each grey one with mean 0 and standard deviation 1."""
    parts = []
    for start in range(0, len(split), CHUNK):
        x = to_float(split.read(torch.arange(start, min(start + CHUNK, len(split)))))
        parts.append(adaptive_avg_pool2d(x, (min(SIDE, x.shape[2]), min(SIDE, x.shape[3]))))
    small = torch.cat(parts)
    grey = small.mean(1).flatten(1)
    grey = (grey - grey.mean(1, keepdim=True)) / (grey.std(1, keepdim=True) + 1e-6)
    return small.flatten(1), grey
