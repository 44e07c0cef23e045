"""Clusters of the suspected samples."""

from __future__ import annotations

import torch

from holdfast.shortcuts.conflicting_samples import k_means


def test_k_means_sorts_by_size_and_takes_equal_points() -> None:
    points = torch.tensor([[0.0], [10.0], [10.1], [9.9], [0.1], [50.0]])
    assert k_means(points, 3, seed=0).tolist() == [1, 0, 0, 0, 1, 2]
    assert k_means(torch.zeros(4, 2), 3, seed=0).tolist() == [0, 0, 0, 0]
