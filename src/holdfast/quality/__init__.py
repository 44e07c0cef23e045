"""The quality of a data set: what is in it, duplicates, leakage between splits, and labels that are probably wrong."""

from holdfast.quality.label_errors import SuspectLabel
from holdfast.quality.quality_check import DataReport, check_data

__all__ = ["DataReport", "SuspectLabel", "check_data"]
