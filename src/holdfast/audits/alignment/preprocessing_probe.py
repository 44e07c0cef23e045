"""Other preprocessing that would explain a bad score: tried beside what the model states, judged in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from holdfast.metrics import Paired, paired_difference
from holdfast.models import HALF, IMAGENET, NONE, Preprocessing
from holdfast.types import Note

STATED: Final = "stated"
"""The name of what the model's own settings say."""
LEVEL: Final = 0.99
"""Over all rivals together: each interval has its share of the 1 %."""
LEAST_LEAD: Final = 0.02
"""A smaller lead is not worth an alarm, however sure."""
MEANING: Final = {
    "none": "images without preprocessing: the network may normalise by itself already",
    "imagenet": "ImageNet's mean and deviation",
    "half": "0.5 and 0.5",
    "data": "mean and deviation of the data itself",
    "bgr": "as stated, but blue first",
    "bytes": "values from 0 to 255",
    "undo-imagenet": "ImageNet's normalisation undone: the network normalises twice",
    "undo-half": "0.5 and 0.5 undone: the network normalises twice",
    "undo-data": "the data's normalisation undone: the network normalises twice",
}


@dataclass(frozen=True)
class Rival:
    """How another preprocessing did on the same labelled sample. paired: its lead over what the model states."""

    name: str
    preprocessing: Preprocessing
    accuracy: float
    paired: Paired

    @property
    def better(self) -> bool:
        """Surely, and by enough to matter."""
        return self.paired.low > 0 and self.paired.lead > LEAST_LEAD

    def warning(self, stated: float) -> Note:
        pair = self.paired
        text = (
            f"preprocessing is probably wrong: {self.name} ({MEANING[self.name]}) scores {self.accuracy:.1%} where the "
            f"one in use scores {stated:.1%} on the same {pair.n} images: {100 * pair.lead:+.1f} points, "
            f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f} at {pair.level:.2%}, McNemar p = {pair.p:.1g}"
        )
        return Note("preprocessing", text, f"if so, give --preprocessing {self.name}", "warning")


def named(stated: Preprocessing, *, channels: int, data: Preprocessing | None = None) -> dict[str, Preprocessing]:
    """Every preprocessing that has a name. data: mean and deviation of the data itself."""
    own = {} if data is None else {"data": data, "undo-data": data.undone()}
    tried = {
        "none": NONE,
        "imagenet": IMAGENET,
        "half": HALF,
        "bgr": Preprocessing(stated.mean, stated.std, bgr=not stated.bgr),
        "bytes": Preprocessing((0.0,), (1 / 255,)),
        "undo-imagenet": IMAGENET.undone(),
        "undo-half": HALF.undone(),
        **own,
    }
    if channels != 3:
        del tried["bgr"]
    return {name: preprocessing.for_channels(channels) for name, preprocessing in tried.items()}


def candidates(stated: Preprocessing, *, channels: int, data: Preprocessing | None = None) -> dict[str, Preprocessing]:
    """Those worth trying: without what equals the stated one or an earlier name."""
    found: dict[str, Preprocessing] = {}
    for name, preprocessing in named(stated, channels=channels, data=data).items():
        if preprocessing != stated.for_channels(channels) and preprocessing not in found.values():
            found[name] = preprocessing
    return found


def judge(
    stated: Tensor, rivals: Mapping[str, Tensor], preprocessing: Mapping[str, Preprocessing]
) -> tuple[Rival, ...]:
    """Rivals from the best to the worst. stated, rivals: (N,) bool, right or wrong on the same samples."""
    level = 1 - (1 - LEVEL) / max(len(rivals), 1)
    judged = (
        Rival(name, preprocessing[name], float(right.double().mean()), paired_difference(right, stated, level=level))
        for name, right in rivals.items()
    )
    return tuple(sorted(judged, key=lambda rival: -rival.accuracy))
