"""Whether there is a shortcut: the test keeps its level on simulated data without one, and finds simulated ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from holdfast.data import ArraySplit
from holdfast.shortcuts.shortcut_alarm import (
    COLOUR,
    LEAST_RIGHT,
    LEVEL,
    NULL_SHARE,
    NULL_SHARES,
    QUARTERS,
    ShortcutTest,
    closeness,
    halves,
    judge,
    p_of_counts,
    p_of_hinging,
    thumbnails,
    with_aspects_hidden,
)  # fmt: skip

Drawn = tuple[Tensor, list[Tensor], Tensor]
"""Logits of the biased model, how close each view of the picture is to each class, and labels."""
VIEWS = 7
N, CLASSES = 1500, 10


def seen(attribute: Tensor, strength: float = 6.0, classes: int = CLASSES) -> Tensor:
    """How much is seen of each class by something that sees this attribute (N,) of the samples, and noise."""
    return one_hot(attribute, classes) * strength + torch.randn(len(attribute), classes)


def flipped(labels: Tensor, share: float, classes: int = CLASSES) -> Tensor:
    other = (labels + torch.randint(1, classes, labels.shape)) % classes
    return torch.where(torch.rand(len(labels)) < share, other, labels)


def views(shown: Tensor) -> list[Tensor]:
    """What the picture shows, in all views alike."""
    return [shown + torch.randn(shown.shape) for _ in range(VIEWS)]


def noise() -> Drawn:
    return torch.randn(N, CLASSES), views(torch.zeros(N, CLASSES)), torch.randint(CLASSES, (N,))


def wrong_labels(share: float, classes: int = CLASSES) -> Drawn:
    truth = torch.randint(classes, (N,))
    return seen(truth, classes=classes), views(6 * one_hot(truth, classes)), flipped(truth, share, classes)


def hard_samples(share: float, classes: int = CLASSES) -> Drawn:
    """Some pictures show another class too, for the model and for the eye."""
    truth = torch.randint(classes, (N,))
    mixed = (torch.rand(N, 1) < share) * torch.rand(N, 1) * 6
    shown = one_hot(truth, classes) * (6 - mixed) + one_hot(flipped(truth, 1.0, classes), classes) * mixed
    return shown + torch.randn(N, classes), views(shown), truth


def planted(conflict: float, classes: int = CLASSES) -> Drawn:
    """The biased model sees the attribute alone; every view of the picture shows the class too."""
    truth = torch.randint(classes, (N,))
    attribute = flipped(truth, conflict, classes)
    return seen(attribute, classes=classes), views(4 * one_hot(truth, classes) + 4 * one_hot(attribute, classes)), truth


def local(conflict: float, classes: int = CLASSES) -> Drawn:
    """The attribute is a small part of the picture, and the biased model sees the class as well: its second choice."""
    truth = torch.randint(classes, (N,))
    attribute = flipped(truth, conflict, classes)
    close = views(6 * one_hot(truth, classes) + one_hot(attribute, classes))
    close[5] = seen(truth, classes=classes)  # without that part
    return seen(attribute, classes=classes) + 4 * one_hot(truth, classes), close, truth


def alarms(make: Callable[..., Drawn], *given: float, times: int) -> float:
    torch.manual_seed(0)
    drawn = (make(*given) for _ in range(times))
    return sum(judge(b[None], close, labels, halves(labels)).alarm for b, close, labels in drawn) / times


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


@pytest.mark.parametrize("given", [(0.05,), (0.1,)])
def test_a_shortcut_in_one_place_that_models_follow_in_part_is_found(given: tuple[float, ...]) -> None:
    assert alarms(local, *given, times=20) >= 0.9


@pytest.mark.parametrize("make", [hard_samples, planted, local])
def test_the_count_is_what_the_definition_says(make: Callable[..., Drawn]) -> None:
    """Sample by sample, in plain Python."""
    torch.manual_seed(0)
    biased, close, labels = make(0.3)
    half = halves(labels)
    predicted, counted = biased.argmax(1), []
    for i in range(N):
        b, y = int(predicted[i]), int(labels[i])
        of_b, of_y = ((predicted == k) & (labels == k) & (half == half[i]) for k in (b, y))
        if b == y or of_b.sum() < LEAST_RIGHT:
            continue

        def below(values: Tensor, those: Tensor, i: int = i, b: int = b, y: int = y) -> float:
            return float(((values[those][:, y] - values[those][:, b]) < values[i, y] - values[i, b]).double().mean())

        second_half = int((biased[i] > biased[i, y]).sum()) - 1 > (CLASSES - 2) / 2
        closer = below(close[0] + close[1], of_b) > 0.95 and biased[i].softmax(0)[b] > 1 / 3
        clear = closer and (below(biased, of_b) < 0.75 or second_half)
        typical = closer and of_y.sum() >= LEAST_RIGHT and any(below(view, of_y) > 0.5 for view in close[1:])
        counted.append((bool(clear), bool(clear or typical)))
    found = judge(biased[None], close, labels, half)
    clear, both = (sum(own[k] for own in counted) for k in (0, 1))
    assert (found.clear, found.conflicting, found.mistakes) == (clear, both, len(counted))


def test_p_is_the_tail_of_the_sum() -> None:
    """Of two mistakes that count 0, 1 or 2, by hand; of forty, and with shares below the stated ones, by simulation."""
    once, twice = NULL_SHARES[1] - NULL_SHARES[0], NULL_SHARES[0]
    assert p_of_counts(1, 2, 2) == pytest.approx(2 * once * twice + twice**2)
    assert p_of_counts(0, 0, 0) == 1
    torch.manual_seed(0)
    for fewer, exact in ((1.0, True), (0.6, False)):
        drawn = torch.multinomial(
            torch.tensor([1 - fewer * (once + twice), fewer * once, fewer * twice]), 4_000_000, True
        )
        reached = float((drawn.view(-1, 40).sum(1) >= 23).double().mean())
        p = p_of_counts(7, 16, 40)
        assert reached == pytest.approx(p, abs=0.01) if exact else reached < p


def test_no_mistakes_are_no_alarm() -> None:
    labels = torch.arange(40) % 2
    right = one_hot(labels, 2).float()
    assert judge(right[None], [right, right], labels, halves(labels)) == ShortcutTest(1.0, 0, 0, 0)
    seen = torch.stack([right, right / 2, right])
    assert judge(seen, [right, right], labels, halves(labels), ("a", "b")) == ShortcutTest(1.0, 0, 0, 0, 0, "a")


def test_closeness_is_to_the_other_half() -> None:
    """Against three nearest by hand; a class that the other half lacks is as far as the farthest."""
    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (30, 3, 20, 10), dtype=torch.uint8), torch.arange(30) % 2
    labels[0] = 2
    half = halves(labels)
    for view in thumbnails(ArraySplit(images, labels)):
        found = closeness(view, labels, half, 3)
        for i in (0, 7):
            for k in range(3):
                distance = (view - view[i]).square().sum(1)
                own = distance[(half != half[i]) & (labels == k)].sort().values[:3]
                farthest = distance[half != half[i]].max()
                expected = -float((own.mean() if len(own) else farthest).log()) / 2
                assert float(found[i, k]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_grey_thumbnails_ignore_colour_and_contrast() -> None:
    grey = torch.randint(0, 100, (4, 1, 12, 12), dtype=torch.uint8)
    coloured = torch.cat([2 * grey, 0 * grey, grey], 1)
    first, second = (thumbnails(ArraySplit(x, [0, 0, 1, 1]))[1] for x in (grey.repeat(1, 3, 1, 1), coloured))
    torch.testing.assert_close(first, second, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("view", "rows", "columns"), [(2, 0, 0), (3, 0, 19), (4, 19, 0), (5, 19, 19)])
def test_a_view_does_not_see_what_it_leaves_out(view: int, rows: int, columns: int) -> None:
    """One quarter each; the last one none of the margin."""
    plain = torch.randint(0, 256, (1, 1, 20, 20), dtype=torch.uint8)
    marked = plain.clone()
    marked[..., rows, columns] = 255 - marked[..., rows, columns]
    first, second = (thumbnails(ArraySplit(x, [0])) for x in (plain, marked))
    assert len(first) == VIEWS
    assert [k for k in range(VIEWS) if torch.equal(first[k], second[k])] == [view, 6]


def by_aspects(shown: Tensor, hidden: int) -> Tensor:
    """(1 + A, N, K) logits of a model that adds up what each of A aspects (A, N, K) shows: of all, and without each."""
    whole = shown.sum(0)
    return torch.stack([whole, *(whole - part for part in shown)]) + torch.randn(1 + hidden, *whole.shape) / 4


def aspects_with(conflict: float, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """The last of five aspects goes with the class but for a share; the others show the class, each a little."""
    truth = torch.randint(classes, (N,))
    last = 8 * one_hot(flipped(truth, conflict, classes), classes)
    shown = torch.stack([*(one_hot(truth, classes) + torch.randn(N, classes) / 3 for _ in range(4)), last])
    return by_aspects(shown, 5), truth


def aspects_without(how: str, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Five aspects show the class alike; samples are hard, mislabelled, or one and the same aspect of some misleads."""
    truth = torch.randint(classes, (N,))
    strength = torch.where(torch.rand(N, 1) < 0.2, 0.5, 2.0) if how == "hard" else torch.full((N, 1), 2.0)
    shown = torch.stack([strength * one_hot(truth, classes) + torch.randn(N, classes) / 1.5 for _ in range(5)])
    if how == "misleading":  # in one sample in ten, whatever the class: right samples rely on it no more than on others
        wrong = 14 * one_hot(flipped(truth, 1.0, classes), classes)
        shown[1] = torch.where(torch.rand(N, 1) < 0.1, wrong.float(), shown[1] / 2)
    return by_aspects(shown, 5), flipped(truth, 0.1, classes) if how == "mislabelled" else truth


NAMES = (COLOUR, *QUARTERS)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("how", ["hard", "mislabelled", "misleading"])
def test_mistakes_of_hard_or_mislabelled_samples_do_not_hinge_on_one_aspect(how: str, classes: int) -> None:
    torch.manual_seed(0)
    alarms, mistakes = 0, 0
    for _ in range(20):
        logits, labels = aspects_without(how, classes)
        close = [torch.randn(N, classes)] * 2
        found = judge(logits, close, labels, halves(labels), NAMES)
        alarms, mistakes = alarms + found.alarm, mistakes + found.mistakes
    assert mistakes >= 200
    assert alarms / 20 <= LEVEL


@pytest.mark.parametrize("conflict", [0.01, 0.05, 0.1])
def test_a_shortcut_in_one_aspect_is_found_and_named(conflict: float) -> None:
    """Pictures that resemble nothing, so that only hiding can tell."""
    torch.manual_seed(0)
    found = []
    for _ in range(10):
        logits, labels = aspects_with(conflict)
        found.append(judge(logits, [torch.randn(N, CLASSES)] * 2, labels, halves(labels), NAMES))
    assert [test.alarm for test in found] == [True] * 10
    assert {test.place for test in found} == {QUARTERS[3]}


@pytest.mark.parametrize("planted", [True, False])
def test_what_hinges_is_what_the_definition_says(planted: bool) -> None:
    """Sample by sample, in plain Python; the aspect is the one whose absence costs right samples most. Of hard samples,
    many are put right by hiding any of several."""
    torch.manual_seed(0)
    logits, labels = aspects_with(0.1) if planted else aspects_without("hard")
    half, predicted = halves(labels), logits[0].argmax(1)
    right = predicted == labels

    def margin(values: Tensor, i: int) -> float:
        others = [float(v) for k, v in enumerate(values[i]) if k != labels[i]]
        return float(values[i, labels[i]]) - max(others)

    cost = [sum(margin(logits[0], i) - margin(x, i) for i in right.nonzero().flatten().tolist()) for x in logits[1:]]
    most, count, not_alone = max(range(5), key=lambda v: cost[v]), 0, 0
    for i in (~right).nonzero().flatten().tolist():
        b, y = int(predicted[i]), int(labels[i])
        of_b = right & (labels == b) & (half == half[i])
        if of_b.sum() < LEAST_RIGHT:
            continue
        gained = [float(x[i, y] - x[i, b]) for x in logits[1:]]
        more = [float(((x[of_b, y] - x[of_b, b]) < own).double().mean()) > 0.95
                for x, own in zip(logits[1:], gained, strict=True)]  # fmt: skip
        put_right = [own > 0 and enough for own, enough in zip(gained, more, strict=True)]
        count += put_right[most] and sum(put_right) == 1
        not_alone += put_right[most] and sum(put_right) > 1
    found = judge(logits, [torch.randn(N, CLASSES)] * 2, labels, half, NAMES)
    assert (found.hinging, found.aspect) == (count, NAMES[most])
    assert count > 50 if planted else not_alone > 5


def test_the_better_of_two_counts_is_paid_for() -> None:
    """p of hinging is the binomial tail (by hand for two), and p of the test twice the smaller one, 1 at most."""
    assert p_of_hinging(1, 2) == pytest.approx(1 - (1 - NULL_SHARE) ** 2)
    assert p_of_hinging(0, 0) == 1
    assert ShortcutTest.of(0, 3, 12, hinging=10).p == pytest.approx(2 * p_of_hinging(10, 12))
    assert ShortcutTest.of(6, 10, 12, hinging=1).p == pytest.approx(2 * p_of_counts(6, 10, 12))
    assert ShortcutTest.of(6, 10, 12, hinging=1, aspect=COLOUR).place == ""  # found, but not there
    assert ShortcutTest.of(0, 0, 12).p == 1


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_each_view_hides_one_aspect(channels: int) -> None:
    x, mean = torch.rand(2, channels, 6, 5), torch.rand(1, channels, 6, 5)
    views = list(with_aspects_hidden(x, mean))
    assert torch.equal(views[0], x)
    assert len(views) == (6 if channels == 3 else 5)
    if channels == 3:
        torch.testing.assert_close(views[1], x.mean(1, keepdim=True).expand_as(x))
    parts = [(r, c) for r in (slice(0, 3), slice(3, 6)) for c in (slice(0, 3), slice(3, 5))]
    for view, (rows, columns) in zip(views[-4:], parts, strict=True):
        expected = x.clone()
        expected[..., rows, columns] = mean[..., rows, columns]
        assert torch.equal(view, expected)
