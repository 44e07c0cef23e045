"""Other spellings of the same weights, which the libraries themselves translate when they download."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from torch import Tensor, nn


def respell(net: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors as ``net`` names and shapes them, where its library knows how; None where it does not.

    timm keeps a filter beside each architecture, which also resamples position embeddings to another image
    size. torchvision's published DenseNet files keep the names of its first release.
    """
    translate = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if translate is None:
        return {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", k): v for k, v in tensors.items()}
    try:
        return dict(translate(dict(tensors), net))
    except Exception:
        return None  # the file is not of a kind the filter was written for: the caller says what does not fit
