"""Every setting, as small frozen dataclasses that import nothing heavy.

They stand apart from the code that reads them so that ``holdfast --help`` and every usage error
answer without importing torch (docs/decisions/0002-settings-apart.md).
"""

from holdfast.settings.ascents import AscentSettings
from holdfast.settings.choice import Choice
from holdfast.settings.loader import build, flatten
from holdfast.settings.methods import MethodSettings
from holdfast.settings.training import (
    BUILDING,
    READING,
    AugmentSettings,
    DataSettings,
    LoopSettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)
from holdfast.settings.yaml_files import layered, read_config, read_environment, read_yaml

__all__ = [
    "BUILDING",
    "READING",
    "AscentSettings",
    "AugmentSettings",
    "Choice",
    "DataSettings",
    "LoopSettings",
    "MethodSettings",
    "ModelSettings",
    "OptimizerSettings",
    "ScheduleSettings",
    "TrainSettings",
    "build",
    "flatten",
    "layered",
    "read_config",
    "read_environment",
    "read_yaml",
]
