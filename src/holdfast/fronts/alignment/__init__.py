"""A model and data on the same terms before anything is measured."""

from holdfast.fronts.alignment.align import Aligned, Reading, align
from holdfast.fronts.alignment.classes import ORDER, ClassMatch, match_classes, read_class_map
from holdfast.fronts.alignment.predictions import PredictionTable, read_predictions
from holdfast.fronts.alignment.rivals import Rival

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
