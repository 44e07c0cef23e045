"""The VAE report as a study: its own runs with its mistakes on and off, and ours beside them.

Every unit, a job of a seed, leaves one JSON file. A unit whose file is there is not run again: a study can be stopped
and continued, and several processes can share its folder.
"""

from holdfast.detect.study.bench import QUICK, Bench, StudySettings
from holdfast.detect.study.jobs import JOBS
from holdfast.detect.study.judging import Record
from holdfast.detect.study.records import headline, in_order, read_study, slim
from holdfast.detect.study.run import run_study

__all__ = [
    "JOBS",
    "QUICK",
    "Bench",
    "Record",
    "StudySettings",
    "headline",
    "in_order",
    "read_study",
    "run_study",
    "slim",
]
