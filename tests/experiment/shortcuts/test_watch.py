"""What is kept of each training."""

from __future__ import annotations

import torch

from holdfast.experiment.shortcuts.watch import relative_difficulty


def test_relative_difficulty_is_lffs_weight() -> None:
    """The formula of the authors' code, sample by sample."""
    biased, main = torch.tensor([1.0, 4.0, 0.5, 0.25]), torch.tensor([2.0, 1.0, 0.125, 0.5])
    labels = torch.tensor([0, 0, 1, 1])
    expected = []
    for i in range(4):
        own = labels == labels[i]
        b, d = biased[i] / biased[own].max(), main[i] / main[own].max()
        expected.append(b / (b + d + 1e-8))
    torch.testing.assert_close(relative_difficulty(biased, main, labels), torch.stack(expected))
    unseen = torch.tensor([1.0, torch.nan, 0.5, 0.25])
    assert relative_difficulty(unseen, main, labels)[1] == 0.5
