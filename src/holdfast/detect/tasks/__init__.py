"""The commands around detectors: fit one, score pictures with it, judge it, and draw the map of a set."""

from holdfast.detect.tasks.describe import describe
from holdfast.detect.tasks.evaluate import detect_evaluate, summary_text
from holdfast.detect.tasks.fit import detect_fit
from holdfast.detect.tasks.score import ScoreSummary, detect_score, predict
from holdfast.detect.tasks.sources import DETECTOR, Source

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
