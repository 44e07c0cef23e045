"""A model whose outputs are logits in the order of the data's classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.audits.alignment.outputs import to_logits
from holdfast.models import PreprocessedModel


class AlignedModel(nn.Module):
    """Images (B, C, H, W) in [0, 1] at the data's size to logits (B, K), one a class.

    kind: what the prepared model gives. selection: its outputs that stand for each class; several are added up as
    probabilities.
    """

    columns: Tensor
    unused: Tensor

    def __init__(self, prepared: PreprocessedModel, kind: str, selection: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.prepared = prepared
        self.kind = kind
        widest = max(map(len, selection))
        # Short rows repeat their first output; where more than one counts, a mask leaves the repeats out.
        padded = [[*own, *[own[0]] * (widest - len(own))] for own in selection]
        used = [[True] * len(own) + [False] * (widest - len(own)) for own in selection]
        device = prepared.normalised.mean.device
        self.register_buffer("columns", torch.tensor(padded, device=device))
        self.register_buffer("unused", ~torch.tensor(used, device=device))
        self.training = prepared.training

    def forward(self, x: Tensor) -> Tensor:
        logits = to_logits(self.prepared(x), self.kind)
        if self.columns.shape[1] == 1:
            return logits[:, self.columns[:, 0]]
        return logits[:, self.columns].masked_fill(self.unused, float("-inf")).logsumexp(2)
