"""Where many trainings run: settings that ``compare`` and ``tune`` share. They do not change what is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from holdfast.errors import require
from holdfast.settings.fields import Bounded, Unset, Within, split_off


@dataclass(frozen=True)
class EngineSettings(Bounded):
    """Where the trainings run."""

    parallel: Unset[str] = None
    """Trainings at once: a number, or auto for as many as fit (default: one after the other, in this process)."""
    threads: Annotated[Unset[int], Within(1)] = None
    """Processor threads of each training (default: 1 with --parallel or --engine ray, else torch's own choice)."""
    engine: Literal["local", "ray"] = "local"
    """Processes of this machine, or a Ray cluster (extra ray)."""
    address: Unset[str] = None
    """Ray: address of the cluster, or auto (default: one of this machine alone, for the time of the command)."""
    lease: Annotated[float, Within(0, ends="()")] = 60.0
    """Seconds without a sign of life after which a training that another command began is taken over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.address is None or self.engine == "ray", f"address {self.address} needs engine ray")
        number = str(self.parallel) in ("None", "auto") or (str(self.parallel).isdecimal() and int(self.parallel) > 0)  # type: ignore[arg-type]
        require(number, f"parallel must be auto or a whole number >= 1, got {self.parallel!r}")


def split_engine(values: Mapping[str, Any]) -> tuple[EngineSettings, dict[str, Any]]:
    """Where to train, of keyword arguments that are settings of all kinds; and the others.

    >>> split_engine({"parallel": 2, "epochs": 3})[1]
    {'epochs': 3}
    """
    many = values.get("parallel")
    given = {**values, "parallel": str(many)} if isinstance(many, int) else values  # as the command line has it
    return split_off(EngineSettings, given)
