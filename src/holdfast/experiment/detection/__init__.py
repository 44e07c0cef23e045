"""The commands around detectors: fit one, score pictures with it, judge it, and draw the map of a set."""

from holdfast.experiment.detection.describe import describe
from holdfast.experiment.detection.evaluate import detect_evaluate, summary_text
from holdfast.experiment.detection.fit import detect_fit
from holdfast.experiment.detection.score import ScoreSummary, detect_score, predict
from holdfast.experiment.detection.sources import DETECTOR, Source

__all__ = [
    "DETECTOR",
    "ScoreSummary",
    "Source",
    "describe",
    "detect_evaluate",
    "detect_fit",
    "detect_score",
    "predict",
    "summary_text",
]
