"""Every setting, as small frozen dataclasses that import nothing heavy.

``holdfast --help`` and every usage error answer without torch (docs/decisions/0002-settings-without-torch.md). The
settings of a method are with its algorithm (docs/decisions/0003-methods-declare-themselves.md).
"""

from holdfast.settings.fields import AscentSettings, Bounded, MethodSettings, Several, Unset, Within, build, flatten
from holdfast.settings.training import (
    DATA_READING_KEYS,
    MODEL_BUILDING_KEYS,
    SAME_NUMBERS,
    AugmentSettings,
    DataSettings,
    LoopSettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)
from holdfast.settings.yaml_files import data_of_run, handed_over, layered, read_config, read_environment, read_yaml

__all__ = [
    "DATA_READING_KEYS", "MODEL_BUILDING_KEYS", "SAME_NUMBERS", "AscentSettings", "AugmentSettings", "Bounded",
    "DataSettings", "LoopSettings", "MethodSettings", "ModelSettings", "OptimizerSettings", "ScheduleSettings",
    "Several", "TrainSettings", "Unset", "Within", "build", "data_of_run", "flatten", "handed_over", "layered",
    "read_config", "read_environment", "read_yaml",
]  # fmt: skip
