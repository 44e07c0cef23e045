"""Channel means and deviations of a split, for the normalisation inside the model."""

from __future__ import annotations

import torch

from holdfast.data.splits import ArraySplit, Split

SAMPLED_FILES = 2048
"""Enough decoded images for three digits of the mean; all arrays in memory are used whole."""


def channel_statistics(split: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of each channel in [0, 1]; a constant channel gets a deviation of 1/255, never 0."""
    count = len(split) if isinstance(split, ArraySplit) else min(len(split), SAMPLED_FILES)
    index = torch.linspace(0, len(split) - 1, count).round().long()
    channels = split.shape[0]
    histogram = torch.zeros(channels, 256, dtype=torch.float64)
    for part in torch.split(index, 1024):
        images = split.read(part)
        for channel in range(channels):
            histogram[channel] += torch.bincount(images[:, channel].flatten(), minlength=256)
    values = torch.arange(256, dtype=torch.float64) / 255
    share = histogram / histogram.sum(1, keepdim=True)
    mean = share @ values
    variance = (share * (values - mean[:, None]) ** 2).sum(1)
    return tuple(mean.tolist()), tuple(variance.sqrt().clamp_min(1 / 255).tolist())
