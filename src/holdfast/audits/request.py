"""What an audit was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.audits.subject import check_measuring

Note = Callable[[str], None]
"""Says something to the user as the audit goes on."""


@dataclass(frozen=True)
class Plan:
    """What an audit was asked for; see ``holdfast audit --help``. settings: by check, see ``settings.SETTINGS``."""

    data: str | None = None
    only: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    model: str | None = None
    class_map: str | None = None
    preprocessing: str = "stated"
    output: str | None = None
    allow_random: bool = False
    predictions: str | None = None
    group: tuple[str, ...] = ()
    root: str | None = None
    data_seed: int | None = None
    names: str | None = None
    label: str | None = None
    image_size: int | None = None
    budget: str | None = None
    samples: str = "csv"
    no_images: bool = False
    redact_paths: bool = False
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    batch_size: int = 256
    workers: int = 4
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_measuring(self.batch_size, self.workers, self.seed, self.precision)
