"""The settings of an audit and of its checks: flags of ``holdfast audit``, keyword arguments of :func:`holdfast.audit`.

Imports no torch, so that a mistyped name is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from tyro.conf import UseAppendAction, arg

from holdfast.errors import HoldfastError, require, unknown
from holdfast.parts import CHECKS
from holdfast.settings.fields import Unset, convert

if TYPE_CHECKING:  # what Python may hand over, where a command line has text
    from holdfast.audits.alignment.classes import ClassMap
    from holdfast.data import Dataset
    from holdfast.models import Preprocessing

    DataGiven = str | Dataset | None
    ClassMapGiven = ClassMap | str | None
    PreprocessingGiven = str | Preprocessing
else:
    DataGiven = ClassMapGiven = Unset[str]
    PreprocessingGiven = str


@dataclass(frozen=True)
class AuditSettings:
    """What an audit is asked for beside the model, the checks and the gates."""

    data: DataGiven = None
    """A built-in set, an .npz file, a folder of images, or a CSV/Parquet table; its test split is measured."""
    architecture: Annotated[Unset[str], arg(name="model")] = None
    """Architecture of a weight file."""
    class_map: ClassMapGiven = None
    """JSON file that says which model class is which, or 'order' (default: by their names)."""
    preprocessing: PreprocessingGiven = "stated"
    """Done to images first: stated, none, imagenet, half, data, bgr, bytes, undo-imagenet, undo-half or undo-data."""
    output: Unset[Literal["logits", "probabilities", "log-probabilities", "sigmoid"]] = None
    """What the model's numbers are (default: decided on a sample)."""
    allow_random: bool = False
    """Audit a model whose answers change from call to call."""
    predictions: Unset[str] = None
    """CSV or Parquet file of predictions to audit instead of a model; --data is optional then."""
    group: UseAppendAction[tuple[str, ...]] = ()
    """Column of groups, each alone and crossed with the label."""
    root: Unset[str] = None
    """Where built-in sets lie (default: $HOLDFAST_ROOT, or ./data)."""
    data_seed: Unset[int] = None
    """Seed of the held-out split and of generated sets (default: the run's own, or 0)."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_" (default: the run's)."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA (default: the run's)."""
    image_size: Unset[int] = None
    """Side in pixels that images are read at (default: what the model was evaluated at, or their own)."""
    budget: Unset[str] = None
    """About how long it may take, such as 5m; costly checks then take fewer images."""
    fail_on: Literal["value", "low"] = "value"
    """What gates judge: the value, or the end of its interval that speaks against the model."""
    samples: Literal["csv", "parquet"] = "csv"
    """What the table of samples is written as; Parquet needs pyarrow."""
    no_images: bool = False
    """No pictures in what is written."""
    redact_paths: bool = False
    """No folders in what is written."""
    seed: int = 0
    """Seed of attacks, of samples that checks draw, and of intervals."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of the model's arithmetic."""
    batch_size: int = 256
    """Batch size; halved where memory runs out."""
    workers: int = 4
    """Processes that decode image files; 0 decodes in this process."""


def make_settings(**given: Any) -> AuditSettings:
    """Settings from keyword arguments; paths and a single group column are taken too."""
    known = [f.name for f in fields(AuditSettings)]
    for name in given:
        if name not in known:
            raise unknown("setting of an audit", name, known)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    group = plain.get("group", ())
    return AuditSettings(**plain | {"group": (group,) if isinstance(group, str) else tuple(group)})


def chosen_checks(names: Sequence[str] | None) -> list[str]:
    """The names of checks in the order they are measured, each once; None is all. An unknown one is refused."""
    for name in names or ():
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    return [name for name in CHECKS if names is None or name in names]


def command_settings(check: str) -> dict[str, Field[Any]]:
    """The settings of a check that the command line takes."""
    return {f.name: f for f in fields(CHECKS[check].made) if not f.metadata.get("python_only")}


def make_checks(given: Mapping[str, Mapping[str, Any] | Any]) -> dict[str, Any]:
    """Every check with its settings: what is given, as a mapping or as the check itself, defaults for the others."""
    for name in given:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    made = {}
    for name, part in CHECKS.items():
        own = given.get(name, {})
        if isinstance(own, Mapping):
            known = [f.name for f in fields(part.made)]
            for key in own:
                if key not in known:
                    raise unknown("setting", f"{name}.{key}", [f"{name}.{other}" for other in known])
            own = part.made(**own)
        made[name] = own
    return made


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings by check, only those that were given; a check refuses values that it cannot work with.

    >>> parse_settings(["attacks.radii=0.01,0.02", "attacks.norm=l2", "curvature.ggn=true"])
    {'attacks': {'radii': (0.01, 0.02), 'norm': 'l2'}, 'curvature': {'ggn': True}}
    """
    given: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        check, dot, name = key.partition(".")
        require(bool(equals and dot and name and value), f"{text!r} sets nothing; write CHECK.SETTING=VALUE")
        if check not in CHECKS:
            raise unknown("check", check, CHECKS)
        known = command_settings(check)
        require(bool(known), f"the check {check} has no settings; leave {text!r} out")
        if name not in known:
            raise unknown("setting", key, [f"{check}.{other}" for other in known])
        own = given.setdefault(check, {})
        require(name not in own, f"{key} is set twice; give it once")
        kind = _without_none(get_type_hints(CHECKS[check].made)[name])
        own[name] = convert(_read(value, kind, text), kind, key)
        CHECKS[check].made(**own)
    return given


def _without_none(kind: Any) -> Any:
    kinds = [k for k in get_args(kind) if k is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(kind) else kind


def _read(value: str, kind: Any, text: str) -> Any:
    several = get_origin(kind) is tuple
    try:
        return yaml.safe_load(f"[{value.removeprefix('[').removesuffix(']')}]" if several else value)
    except yaml.YAMLError:
        raise HoldfastError(f"cannot read the value of {text!r}; write CHECK.SETTING=VALUE,VALUE") from None
