"""Sets with anomalies among normal images: the report's nested dictionary, and such sets made."""

from __future__ import annotations

from holdfast.data.anomalies.archive import holds_anomalies, read_anomalies, save_anomalies
from holdfast.data.anomalies.make import make_digits_anomalies, make_fashion_anomalies
from holdfast.data.anomalies.sets import AnomalySet

__all__ = [
    "AnomalySet",
    "holds_anomalies",
    "make_digits_anomalies",
    "make_fashion_anomalies",
    "read_anomalies",
    "save_anomalies",
]
