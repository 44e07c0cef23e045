"""The detectors, one score each: fit on normal data, then score. Higher is more anomalous, for every one of them.

Add one by declaring it with ``@detector`` in a file here, or in a package of your own (entry-point group ``holdfast``).
These files import torch inside functions only, so that ``holdfast detect fit --help`` can list the detectors fast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from holdfast.errors import require, require_known
from holdfast.parts import DETECTORS

if TYPE_CHECKING:
    from holdfast.detect.detectors.detector import Detector
    from holdfast.detect.features import FeatureExtractor


FUSED = "fused"
"""The name of the default choice: not a score of its own, but several joined."""


def check_scores(names: Collection[str]) -> list[str]:
    """The declared names behind any spellings; what is neither ``fused``, alone, nor a detector is refused."""
    known = (FUSED, *DETECTORS)
    require(bool(names), f"no score named; give one of {', '.join(known)}")
    names = [DETECTORS[name].name if name in DETECTORS else name for name in names]
    for name in names:
        require_known("score", name, known)
    require(FUSED not in names or len(names) == 1, "fused is a choice of its own; name either it or single scores")
    return names


def make_detector(name: str, extractor: FeatureExtractor | None = None, **settings: Any) -> Detector:
    """A detector by its name, as ``holdfast list detectors`` shows it. settings: its own.

    >>> import torch
    >>> detector = make_detector("energy", temperature=1.0)
    >>> detector.score_features(torch.zeros(1, 2))  # -log 2
    tensor([-0.6931])
    """
    made: Detector = DETECTORS[name].made(extractor, **settings)
    return made
