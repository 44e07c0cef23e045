"""What ``holdfast tune`` looks for and what it may spend: settings that command, function and workers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from holdfast.errors import require, require_known
from holdfast.settings.fields import Bounded, Several, Unset, Within
from holdfast.settings.training import CellRule

OBJECTIVES: tuple[CellRule, ...] = get_args(CellRule)


@dataclass(frozen=True)
class SearchSettings(Bounded):
    """What to search for, and for how long."""

    objectives: Several[CellRule] = ("val-average",)
    """Scores on held-out data to maximise; val-worst-group needs groups there."""
    trials: Annotated[int, Within(1)] = 30
    """Trainings in all, those of earlier calls included."""
    minutes: Annotated[Unset[float], Within(0, ends="()")] = None
    """Begin no trial after so many minutes."""
    pruning: Literal["median", "none"] = "median"
    """End trials that are behind half of the others at the same step (objective val-average alone)."""
    storage: Unset[str] = None
    """URL of a database that machines share, such as postgresql://user@host/db (default: SQLite in --out)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.objectives) > 0, f"objectives names none; use {', '.join(OBJECTIVES)}")
        for name in self.objectives:
            require_known("objective", name, OBJECTIVES)

    @property
    def prunes(self) -> bool:
        """Whether trials are ended early: only what epochs already report can say that one is behind."""
        return self.pruning == "median" and self.objectives == ("val-average",)
