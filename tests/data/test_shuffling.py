"""The order by windows: every image once, few at hand at a time, mixed as well as it says; the statistic is 1 for a
perfect shuffle."""

from __future__ import annotations

import pytest
import torch

from holdfast.data.shuffling import BLOCK, epoch_order, mixing, window_order
from holdfast.errors import HoldfastError
from holdfast.settings import DataSettings


@pytest.mark.parametrize(("count", "window", "block"), [(0, 4, 2), (1, 4, 2), (100, 7, 5), (1000, 64, 32), (5, 99, 99)])
def test_every_position_comes_once(count: int, window: int, block: int) -> None:
    order = window_order(count, 3, window=window, block=block)
    assert torch.equal(order.sort().values, torch.arange(count))


def test_it_is_a_function_of_the_seed_alone() -> None:
    first = window_order(500, 1, window=64)
    torch.manual_seed(5)
    assert torch.equal(first, window_order(500, 1, window=64))
    assert not torch.equal(first, window_order(500, 2, window=64))


def test_a_window_needs_few_blocks_and_no_other_window_needs_them() -> None:
    order = window_order(10_000, 0, window=1024, block=32)
    seen: set[int] = set()
    crossing = 0
    for part in order.split(1024):
        runs = int((part.sort().values.diff() > 1).sum()) + 1  # pieces of neighbours, read in one go each
        assert runs <= 1024 // 32 + 2
        own = set((part // 32).tolist())
        crossing += len(own & seen)
        seen |= own
    assert crossing < 400, "blocks begin anywhere, so that each shares its ends with two others"


def test_one_window_over_all_is_a_full_shuffle_of_blocks_and_images() -> None:
    """Every image is as likely to come first as any other."""
    firsts = torch.tensor([int(window_order(10, s, window=10, block=3)[0]) for s in range(4000)])
    counts = torch.bincount(firsts, minlength=10)
    assert float(((counts - 400) ** 2 / 400).sum()) < 27.9, "chi-square of 9 degrees at p = 0.001"


def test_settings_choose_the_order() -> None:
    full = torch.randperm(50, generator=torch.Generator().manual_seed(7))
    assert torch.equal(epoch_order(50, 7, DataSettings()), full)
    chosen = DataSettings(shuffle="window", shuffle_window=8)
    assert torch.equal(epoch_order(50, 7, chosen), window_order(50, 7, window=8))


def test_a_perfect_shuffle_scores_one() -> None:
    """By simulation: the mean over many is 1 within four standard errors."""
    labels = torch.arange(2000) // 400
    found = [mixing(torch.randperm(2000), labels, batch_size=50) for _ in range(60)]
    for name in ("classes", "neighbours"):
        values = torch.tensor([getattr(own, name) for own in found], dtype=torch.float64)
        assert abs(float(values.mean()) - 1) < 4 * float(values.std()) / 60**0.5
        assert float(values.std()) < 0.2


def test_stored_order_scores_as_badly_as_can_be_computed() -> None:
    """Batches of one class each: the variance of a count is B² p(1 − p) instead of B p(1 − p) (N − B)/(N − 1)."""
    n, size, classes = 1000, 50, 5
    found = mixing(torch.arange(n), torch.arange(n) * classes // n, batch_size=size)
    assert found.classes == pytest.approx(size * (n - 1) / (n - size))
    assert found.neighbours > 5


def test_a_larger_window_mixes_better() -> None:
    labels = torch.arange(20_000) // 2000
    scores = [mixing(window_order(20_000, 0, window=w), labels, batch_size=100) for w in (64, 1024, 16384)]
    assert scores[0].classes > 2 * scores[1].classes > 2 * scores[2].classes
    assert scores[2].classes < 2
    assert scores[0].neighbours > scores[1].neighbours > scores[2].neighbours


@pytest.mark.parametrize(("window", "block"), [(0, BLOCK), (8, 0)])
def test_impossible_windows_are_refused(window: int, block: int) -> None:
    with pytest.raises(HoldfastError, match="window and block must be >= 1"):
        window_order(10, 0, window=window, block=block)
    with pytest.raises(HoldfastError, match=r"batch_size must be in 2..9 for 10 images, got 10"):
        mixing(torch.arange(10), torch.zeros(10).long(), batch_size=10)
