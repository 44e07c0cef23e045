"""Where a score puts every image, kept beside its AUROC so that two models can be compared image by image."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from holdfast.audits.checks.verdicts import mask, unmask

RANKS: Final = "ranks"
"""Evidence under this key is what :meth:`Looked.ranks` makes."""


@dataclass(frozen=True, eq=False)
class Looked:
    """Which images were judged: (N,) positions of test images among so many, and of each set of OOD ones.

    kinds: what the images of a set depend on besides its name; sets of another kind hold other images.
    """

    test: Tensor
    size: int
    ood: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    kinds: Mapping[str, str] = field(default_factory=dict)

    def ranks(self, scores: Tensor) -> dict[str, Any]:
        """Evidence: the place of every score (N,) among the others, those of test images first; equal ones share it.

        An AUROC asks for nothing else, on any part of the images. Two or four bytes an image.
        """
        rank = np.unique(scores.double().cpu().numpy(), return_inverse=True)[1]
        ood = {
            name: {"kind": self.kinds.get(name, ""), "size": self.sizes[name], "seen": mask(own, self.sizes[name])}
            for name, own in self.ood.items()
        }
        code = "<u2" if len(rank) <= 2**16 else "<u4"
        text = base64.b64encode(rank.astype(code).tobytes()).decode("ascii")
        return {"test": mask(self.test, self.size), "ood": ood, "code": code, "rank": text}


@dataclass(frozen=True, eq=False)
class Ranked:
    """Ranks by position, NaN for images that were not judged; OOD ones by the name and kind of their set."""

    test: Tensor
    ood: Mapping[tuple[str, str], Tensor]


def read_ranks(evidence: Mapping[str, Any], size: int) -> Ranked:
    """What :meth:`Looked.ranks` kept, of a test split of some size.

    >>> looked = Looked(torch.tensor([0, 2]), 3, {"noise": torch.tensor([1])}, {"noise": 2})
    >>> read = read_ranks(looked.ranks(torch.tensor([0.5, 0.1, 0.9])), 3)
    >>> read.test.tolist(), read.ood["noise", ""].tolist()
    ([1.0, nan, 0.0], [nan, 2.0])
    """
    rank = np.frombuffer(base64.b64decode(evidence["rank"]), np.dtype(evidence["code"])).astype(np.float64)
    left = torch.from_numpy(rank)

    def placed(seen: Tensor) -> Tensor:
        nonlocal left
        count = int(seen.sum())
        values = torch.full((len(seen),), torch.nan, dtype=torch.float64)
        values[seen], left = left[:count], left[count:]
        return values

    test = placed(unmask(evidence["test"], size))
    sets = evidence["ood"].items()
    return Ranked(test, {(name, own["kind"]): placed(unmask(own["seen"], own["size"])) for name, own in sets})
