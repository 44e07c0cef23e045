"""Settings that people write by hand, as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import HoldfastError


def read_yaml(path: Path) -> dict[str, Any]:
    """Flat settings values from a file. ``environment``, which a run records there, is not a setting."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise HoldfastError(f"cannot read settings from {path}: {error}") from error
    except yaml.YAMLError as error:
        raise HoldfastError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise HoldfastError(f"{path} must hold 'key: value' lines, got {values!r:.40}")
    values.pop("environment", None)
    return values
