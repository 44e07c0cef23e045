"""The settings of an audit: flags of ``holdfast audit``, and keyword arguments of :func:`holdfast.audit`; and those of
the checks that it runs, from the registry alone: ``--checks``, ``--set attacks.images=10``.

Imports no torch, so that a mistyped name is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from tyro.conf import arg

from holdfast.errors import HoldfastError, require, require_known
from holdfast.parts import CHECKS, TRACKERS
from holdfast.settings.fields import (
    Bounded,
    Columns,
    Confine,
    Device,
    Root,
    Several,
    SkipUnreadable,
    Unset,
    Within,
    Workers,
    columns_text,
    convert,
)
from holdfast.settings.yaml_files import parse_yaml

if TYPE_CHECKING:
    Given = Any
    """Text; from Python also a ``Dataset``, a mapping of classes or a ``Preprocessing``, which lie in layers above."""
else:
    Given = Unset[str]


MeasuringPrecision = Literal["auto", "fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class AuditedDataSettings:
    """What the model is measured on."""

    data: Given = None
    """What to measure it on: the test split of DATA (default: the data of the run)."""
    predictions: Unset[str] = None
    """CSV or Parquet file of predictions to audit instead of a model; --data is optional then."""
    group: Several[str] = ()
    """Columns of groups, each alone and crossed with the label."""
    root: Root = None
    confine: Confine = False
    skip_unreadable: SkipUnreadable = False
    data_seed: Unset[int] = None
    """Seed of the held-out split and of generated sets (default: the run's own, or 0)."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_" (default: the run's)."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA (default: the run's)."""
    columns: Columns = None
    image_size: Unset[int] = None
    """Side in pixels that images are read at (default: what the model was evaluated at, or their own)."""


@dataclass(frozen=True)
class ModelReadingSettings:
    """How the model is read."""

    architecture: Annotated[Given, arg(name="model")] = None
    """Architecture of a weight file: a name, or python:package.module:function."""
    class_map: Given = None
    """JSON file that says which model class is which, or 'order' (default: by their names)."""
    preprocessing: Given = "stated"
    """Done to images first: stated, none, imagenet, half, data, bgr, bytes, undo-imagenet, undo-half or undo-data."""
    output: Unset[Literal["logits", "probabilities", "log-probabilities", "sigmoid"]] = None
    """What the model's numbers are (default: decided on a sample)."""
    allow_random: bool = False
    """Audit a model whose answers change from call to call."""


@dataclass(frozen=True)
class VerdictSettings:
    """What fails the audit, with exit code 1."""

    fail_on: Literal["value", "low"] = "value"
    """What gates judge: the value, or the end of its interval that speaks against the model."""
    fail_on_warning: bool = False
    """Exit with 1 where something was said that changes how to read the numbers."""


@dataclass(frozen=True)
class AuditOutputSettings:
    """What is written."""

    samples: Literal["csv", "parquet"] = "csv"
    """What the table of samples is written as; Parquet needs pyarrow."""
    no_images: bool = False
    """No pictures in what is written."""
    redact_paths: bool = False
    """No folders in what is written."""
    track: Several[str] = ()
    """Trackers to record the audit in as well: tensorboard, mlflow, wandb ('holdfast list trackers'). They get
    settings, the headline measures, findings and report."""
    track_project: Unset[str] = None
    """Experiment of MLflow or project of Weights & Biases (default: their own variables, or holdfast)."""

    def __post_init__(self) -> None:
        for name in self.track:
            require_known("tracker", name, TRACKERS)


@dataclass(frozen=True)
class AuditComputeSettings:
    """How it is computed."""

    budget: Unset[str] = None
    """About how long it may take, such as 5m; costly checks then take fewer images."""
    seed: int = 0
    """Seed of attacks, of samples that checks draw, and of intervals."""
    device: Device = "auto"
    precision: MeasuringPrecision = "auto"
    """Of the model's arithmetic (auto: tf32 on a GPU that has it, else fp32); some checks take fp32 in any case."""
    batch_size: Unset[int] = None
    """Batch size, halved where memory runs out (default: 256; on a CPU fewer of large images, such as 4 of 224
    pixels)."""
    workers: Workers = None


@dataclass(frozen=True)
class AuditShardSettings(Bounded):
    """Where it is computed: in one process, or in shards of the test set, which changes no number."""

    shards: Annotated[Unset[int], Within(1)] = None
    """Compute predictions and checks in so many shards of the test set, in processes side by side (extra parquet)."""
    threads: Annotated[Unset[int], Within(1)] = None
    """Processor threads of each shard (default: 1)."""
    engine: Literal["local", "ray"] = "local"
    """Where shards run: processes of this machine, or a Ray cluster (extra ray). Under torchrun, its processes."""
    address: Unset[str] = None
    """Ray: address of the cluster, or auto (default: one of this machine alone, for the time of the command)."""
    lease: Annotated[float, Within(0, ends="()")] = 60.0
    """Seconds without a sign of life after which a shard that another process began is taken over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.address is None or self.engine == "ray", f"address {self.address} needs engine ray")
        if self.shards is None:
            usual = AuditShardSettings
            given = [name for name in ("threads", "engine", "lease") if getattr(self, name) != getattr(usual, name)]
            require(not given, f"{' and '.join(given)} is for an audit in shards; give shards, or leave it out")


@dataclass(frozen=True)
class AuditSettings(
    AuditShardSettings,
    AuditComputeSettings,
    AuditOutputSettings,
    VerdictSettings,
    ModelReadingSettings,
    AuditedDataSettings,
):
    """What an audit is asked for beside the model, the checks and the gates; help shows it group by group."""

    def __post_init__(self) -> None:
        AuditShardSettings.__post_init__(self)
        AuditOutputSettings.__post_init__(self)


def make_settings(**given: Any) -> AuditSettings:
    """Settings from keyword arguments; paths and a single group column are taken too."""
    known = [f.name for f in fields(AuditSettings)]
    for name in given:
        require_known("setting of an audit", name, known)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    if isinstance(columns := plain.get("columns"), Mapping):
        plain["columns"] = columns_text(columns)
    several = {name: plain.get(name, ()) for name in ("group", "track")}
    return AuditSettings(**plain | {k: (own,) if isinstance(own, str) else tuple(own) for k, own in several.items()})


def chosen_checks(names: Sequence[str] | None) -> list[str]:
    """The names of checks in the order they are measured, each once; None is all. An unknown one is refused."""
    chosen = None if names is None else CHECKS.names_of(names)
    return [name for name in CHECKS if chosen is None or name in chosen]


def command_settings(check: str) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(CHECKS[check].made) if not f.metadata.get("python_only")}


def make_checks(given: Mapping[str, Mapping[str, Any] | Any]) -> dict[str, Any]:
    """Every check with its settings: what is given, as a mapping or as the check itself, defaults for the others."""
    given = {CHECKS[name].name: own for name, own in given.items()}
    made = {}
    for name, part in CHECKS.items():
        own = given.get(name, {})
        if isinstance(own, Mapping):
            known = [f.name for f in fields(part.made)]
            for key in own:
                require_known("setting", f"{name}.{key}", [f"{name}.{other}" for other in known])
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
        check, name = CHECKS[check].name, name.replace("-", "_")
        key = f"{check}.{name}"
        known = command_settings(check)
        require(bool(known), f"the check {check} has no settings; leave {text!r} out")
        require_known("setting", key, [f"{check}.{other}" for other in known])
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
        return parse_yaml(f"[{value.removeprefix('[').removesuffix(']')}]" if several else value)
    except yaml.YAMLError:
        raise HoldfastError(f"cannot read the value of {text!r}; write CHECK.SETTING=VALUE,VALUE") from None
