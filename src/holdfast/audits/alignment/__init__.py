"""A model and data on the same terms before anything is measured."""

from holdfast.audits.alignment.align import Aligned, Reading, align
from holdfast.audits.alignment.classes import ORDER, ClassMatch, match_classes, read_class_map
from holdfast.audits.alignment.predictions import PredictionTable, read_predictions
from holdfast.audits.alignment.preprocessing_probe import Rival

__all__ = [
    "ORDER",
    "Aligned",
    "ClassMatch",
    "PredictionTable",
    "Reading",
    "Rival",
    "align",
    "match_classes",
    "read_class_map",
    "read_predictions",
]
