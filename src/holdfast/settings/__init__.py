"""Every setting, as small frozen dataclasses that import nothing heavy.

``holdfast --help`` and every usage error answer without importing torch (docs/decisions/0002-settings-apart.md). The
settings of a method are with its algorithm (docs/decisions/0003-methods-declare-themselves.md).
"""

from holdfast.settings.choice import AscentSettings, Choice, MethodSettings
from holdfast.settings.hints import Several, Unset
from holdfast.settings.loader import build, flatten
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
    "Several",
    "TrainSettings",
    "Unset",
    "build",
    "flatten",
    "layered",
    "read_config",
    "read_environment",
    "read_yaml",
]
