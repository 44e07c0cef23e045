"""holdfast: train image classifiers that hold outside their training data, and measure whether they do.

Everything is loaded when first used: ``import holdfast`` itself imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import (
        attacks,
        audits,
        augment,
        corruptions,
        curvature,
        data,
        detect,
        losses,
        methods,
        metrics,
        models,
        optim,
        reports,
        settings,
        train,
    )
    from holdfast.audits.run_audit import audit
    from holdfast.errors import HoldfastError
    from holdfast.models import load_model
    from holdfast.reports import report
    from holdfast.train import fit

__version__ = "0.1.0"

_NAMES = {
    "HoldfastError": "holdfast.errors",
    "audit": "holdfast.audits.run_audit",
    "fit": "holdfast.train",
    "load_model": "holdfast.models",
    "report": "holdfast.reports",
}
_MODULES = (
    "attacks",
    "audits",
    "augment",
    "corruptions",
    "curvature",
    "data",
    "detect",
    "losses",
    "methods",
    "metrics",
    "models",
    "optim",
    "reports",
    "settings",
    "train",
)

__all__ = [
    "HoldfastError",
    "__version__",
    "attacks",
    "audit",
    "audits",
    "augment",
    "corruptions",
    "curvature",
    "data",
    "detect",
    "fit",
    "load_model",
    "losses",
    "methods",
    "metrics",
    "models",
    "optim",
    "report",
    "reports",
    "settings",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _MODULES:
        return import_module(f"holdfast.{name}")
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
