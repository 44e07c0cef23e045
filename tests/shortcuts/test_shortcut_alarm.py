"""Whether there is a shortcut: the test keeps its level on simulated data without one, and finds simulated ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from holdfast.data import ArraySplit
from holdfast.shortcuts.shortcut_alarm import (
    LEAST_RIGHT,
    LEVEL,
    ShortcutTest,
    closeness,
    halves,
    judge,
    thumbnails,
)  # fmt: skip

Drawn = tuple[Tensor, Tensor, Tensor]
"""Logits of the biased model, how close the picture is to each class, and labels."""
N, CLASSES = 1500, 10


def seen(attribute: Tensor, strength: float = 6.0, classes: int = CLASSES) -> Tensor:
    """How much is seen of each class by something that sees this attribute (N,) of the samples, and noise."""
    return one_hot(attribute, classes) * strength + torch.randn(len(attribute), classes)


def flipped(labels: Tensor, share: float, classes: int = CLASSES) -> Tensor:
    other = (labels + torch.randint(1, classes, labels.shape)) % classes
    return torch.where(torch.rand(len(labels)) < share, other, labels)


def noise() -> Drawn:
    return torch.randn(N, CLASSES), torch.randn(N, CLASSES), torch.randint(CLASSES, (N,))


def wrong_labels(share: float, classes: int = CLASSES) -> Drawn:
    truth = torch.randint(classes, (N,))
    return seen(truth, classes=classes), seen(truth, classes=classes), flipped(truth, share, classes)


def hard_samples(share: float, classes: int = CLASSES) -> Drawn:
    """Some pictures show another class too, for the model and for the eye."""
    truth = torch.randint(classes, (N,))
    mixed = (torch.rand(N, 1) < share) * torch.rand(N, 1) * 6
    shown = one_hot(truth, classes) * (6 - mixed) + one_hot(flipped(truth, 1.0, classes), classes) * mixed
    return shown + torch.randn(N, classes), shown + torch.randn(N, classes), truth


def planted(conflict: float, classes: int = CLASSES) -> Drawn:
    """The biased model sees the attribute alone; the picture shows the class too."""
    truth = torch.randint(classes, (N,))
    attribute = flipped(truth, conflict, classes)
    return seen(attribute, classes=classes), seen(truth, 4, classes) + seen(attribute, 4, classes), truth


def alarms(make: Callable[..., Drawn], *given: float, times: int) -> float:
    torch.manual_seed(0)
    drawn = (make(*given) for _ in range(times))
    return sum(judge(*found, halves(found[2])).alarm for found in drawn) / times


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (noise, ()), (wrong_labels, (0.05,)), (wrong_labels, (0.3,)), (wrong_labels, (0.1, 2)),
        (hard_samples, (0.1,)), (hard_samples, (0.5,)), (hard_samples, (0.5, 2)),
    ],
)  # fmt: skip
def test_without_a_shortcut_alarms_are_at_most_as_frequent_as_stated(
    make: Callable[..., Drawn], given: tuple[float, ...]
) -> None:
    assert alarms(make, *given, times=40) <= LEVEL


@pytest.mark.parametrize("given", [(0.01,), (0.05,), (0.1,), (0.05, 2)])
def test_a_planted_shortcut_is_found(given: tuple[float, ...]) -> None:
    assert alarms(planted, *given, times=20) >= 0.9


@pytest.mark.parametrize("make", [hard_samples, planted])
def test_the_count_is_what_the_definition_says(make: Callable[..., Drawn]) -> None:
    """Sample by sample, in plain Python."""
    torch.manual_seed(0)
    biased, close, labels = make(0.3)
    half = halves(labels)
    predicted, counted = biased.argmax(1), []
    for i in range(N):
        b, y = int(predicted[i]), int(labels[i])
        those = (predicted == b) & (labels == b) & (half == half[i])
        if b == y or those.sum() < LEAST_RIGHT:
            continue
        as_much = ((biased[those][:, y] - biased[those][:, b]) >= biased[i, y] - biased[i, b]).double().mean()
        second_half = int((biased[i] > biased[i, y]).sum()) - 1 > (CLASSES - 2) / 2
        farther = ((close[those][:, y] - close[those][:, b]) < close[i, y] - close[i, b]).double().mean()
        counted.append(bool((as_much > 0.25 or second_half) and farther > 0.95))
    found = judge(biased, close, labels, half)
    assert (found.conflicting, found.mistakes) == (sum(counted), len(counted))


def test_p_is_the_binomial_tail() -> None:
    """1 − 0.9⁵ − 5 · 0.1 · 0.9⁴ for two of five."""
    assert ShortcutTest.of(conflicting=2, mistakes=5).p == pytest.approx(1 - 0.9**5 - 0.5 * 0.9**4)
    assert ShortcutTest.of(conflicting=0, mistakes=0).p == 1


def test_no_mistakes_are_no_alarm() -> None:
    labels = torch.arange(40) % 2
    right = one_hot(labels, 2).float()
    assert judge(right, right, labels, halves(labels)) == ShortcutTest(1.0, 0, 0)


def test_closeness_is_to_the_other_half() -> None:
    """Against three nearest by hand; a class that the other half lacks is as far as the farthest."""
    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (30, 3, 20, 10), dtype=torch.uint8), torch.arange(30) % 2
    labels[0] = 2
    split, half = ArraySplit(images, labels), halves(labels)
    found = closeness(split, half, 3)
    for i in (0, 7):
        for k in range(3):
            expected = 0.0
            for view in thumbnails(split):
                distance = (view - view[i]).square().sum(1)
                own = distance[(half != half[i]) & (labels == k)].sort().values[:3]
                farthest = distance[half != half[i]].max()
                expected -= float((own.mean() if len(own) else farthest).log()) / 2
            assert float(found[i, k]) == pytest.approx(expected, rel=1e-3)


def test_grey_thumbnails_ignore_colour_and_contrast() -> None:
    grey = torch.randint(0, 100, (4, 1, 12, 12), dtype=torch.uint8)
    coloured = torch.cat([2 * grey, 0 * grey, grey], 1)
    first, second = (thumbnails(ArraySplit(x, [0, 0, 1, 1]))[1] for x in (grey.repeat(1, 3, 1, 1), coloured))
    torch.testing.assert_close(first, second, atol=1e-3, rtol=1e-3)
