"""holdfast: train image classifiers that stay accurate outside their training data, and measure whether they do.

Everything is loaded when first used: ``import holdfast`` itself imports nothing heavy.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import ascents as ascents
    from holdfast import attacks as attacks
    from holdfast import audits as audits
    from holdfast import augment as augment
    from holdfast import corruptions as corruptions
    from holdfast import curvature as curvature
    from holdfast import data as data
    from holdfast import detect as detect
    from holdfast import losses as losses
    from holdfast import methods as methods
    from holdfast import metrics as metrics
    from holdfast import models as models
    from holdfast import optim as optim
    from holdfast import parts as parts
    from holdfast import quality as quality
    from holdfast import repairs as repairs
    from holdfast import reports as reports
    from holdfast import settings as settings
    from holdfast import shortcuts as shortcuts
    from holdfast import train as train
    from holdfast.audits.audit_result import Audit as Audit
    from holdfast.audits.run_audit import audit as audit
    from holdfast.comparisons.running import compare as compare
    from holdfast.comparisons.tuning import tune as tune
    from holdfast.detect import predict as predict
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.exports import export as export
    from holdfast.models import load_model as load_model
    from holdfast.quality import check_data as check_data
    from holdfast.repairs.run_repair import repair as repair
    from holdfast.reports import report as report
    from holdfast.shortcuts import find_shortcuts as find_shortcuts
    from holdfast.train import Run as Run
    from holdfast.train import fit as fit

__version__ = "0.1.0"

_NAMES = {
    "Audit": "holdfast.audits.audit_result",
    "HoldfastError": "holdfast.errors",
    "Run": "holdfast.train",
    "audit": "holdfast.audits.run_audit",
    "check_data": "holdfast.quality",
    "compare": "holdfast.comparisons.running",
    "export": "holdfast.exports",
    "find_shortcuts": "holdfast.shortcuts",
    "fit": "holdfast.train",
    "load_model": "holdfast.models",
    "predict": "holdfast.detect",
    "repair": "holdfast.repairs.run_repair",
    "report": "holdfast.reports",
    "tune": "holdfast.comparisons.tuning",
}
_MODULES = (
    "ascents", "attacks", "audits", "augment", "corruptions", "curvature", "data", "detect", "losses", "methods",
    "metrics", "models", "optim", "parts", "quality", "repairs", "reports", "settings", "shortcuts", "train",
)  # fmt: skip
__all__ = ["__version__", *_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _MODULES:
        return import_module(f"holdfast.{name}")
    close = get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
