"""Settings of single commands beside train, audit and detect: where many trainings run (``compare``, ``tune``), what
``tune`` searches for, and the flags of ``repair``, ``data check`` and ``export``, which are keyword arguments too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

from holdfast.errors import brief, require, require_known
from holdfast.settings.fields import (
    LARGEST_SEED,
    Bounded,
    Columns,
    Confine,
    Device,
    Root,
    Several,
    Unset,
    Within,
    Workers,
    split_off,
)
from holdfast.settings.training import CellRule


@dataclass(frozen=True)
class EngineSettings(Bounded):
    """Where the trainings run."""

    parallel: Unset[str] = None
    """Trainings at once: a number, or auto for as many as fit (default: one after the other, in this process)."""
    threads: Annotated[Unset[int], Within(1)] = None
    """Processor threads of each training (default: the study's; 1 with --parallel or --engine ray; else torch's own
    choice)."""
    engine: Literal["local", "ray"] = "local"
    """Processes of this machine, or a Ray cluster (extra ray)."""
    address: Unset[str] = None
    """Ray: address of the cluster, or auto (default: one of this machine alone, for the time of the command)."""
    lease: Annotated[float, Within(0, ends="()")] = 60.0
    """Seconds without a sign of life after which a training that another command began is taken over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.address is None or self.engine == "ray", f"address {self.address} needs engine ray")
        number = str(self.parallel) in ("None", "auto") or (str(self.parallel).isdecimal() and int(self.parallel) > 0)  # type: ignore[arg-type]
        require(number, f"parallel must be auto or a whole number >= 1, got {brief(self.parallel)}")


def split_engine(values: Mapping[str, Any]) -> tuple[EngineSettings, dict[str, Any]]:
    """Where to train, of keyword arguments that are settings of all kinds; and the others.

    >>> split_engine({"parallel": 2, "epochs": 3})[1]
    {'epochs': 3}
    """
    many = values.get("parallel")
    given = {**values, "parallel": str(many)} if isinstance(many, int) else values  # as the command line has it
    return split_off(EngineSettings, given)


OBJECTIVES: tuple[CellRule, ...] = get_args(CellRule)


@dataclass(frozen=True)
class SearchSettings(Bounded):
    """What to search for, and for how long."""

    objectives: Several[CellRule] = ("val-average",)
    """Scores on held-out data to maximise; val-worst-group needs groups there."""
    trials: Annotated[int, Within(1)] = 30
    """Trainings in all, those of earlier calls included."""
    minutes: Annotated[Unset[float], Within(0, ends="()")] = None
    """Begin no trial after so many minutes."""
    pruning: Literal["median", "none"] = "median"
    """End trials that are behind half of the others at the same step (objective val-average alone)."""
    storage: Unset[str] = None
    """URL of a database that machines share, such as postgresql://user@host/db (default: SQLite in --out)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.objectives) > 0, f"objectives names none; use {', '.join(OBJECTIVES)}")
        for name in self.objectives:
            require_known("objective", name, OBJECTIVES)

    @property
    def prunes(self) -> bool:
        """Whether trials are ended early: only what epochs already report can say that one is behind."""
        return self.pruning == "median" and self.objectives == ("val-average",)


@dataclass(frozen=True)
class RepairSettings(Bounded):
    """How to repair a trained classifier, and with which held-out images."""

    by: Literal["auto", "dfr", "afr", "none"] = "auto"
    """New last layer: dfr (groups are known), afr (they are not), none (keep it); auto chooses by the groups."""
    held_out: Annotated[float, Within(0, 1, "()")] = 0.5
    """Share of the training split to fit on where the data has no validation split."""
    penalty: Literal["l1", "l2"] = "l1"
    """dfr: what keeps the weights small."""
    strengths: Annotated[tuple[float, ...], Within(0, ends="()")] = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
    """dfr: candidates for C, the weight of the losses against the penalty; the best worst-group accuracy decides."""
    balance: Literal["auto", "subsample", "weights"] = "auto"
    """dfr: draw equally many of every pair of class and group, or weigh them; auto weighs where a pair has under 5."""
    repeats: Annotated[int, Within(1)] = 10
    """dfr: group-balanced subsamples that the last layer is averaged over."""
    gammas: Annotated[tuple[float, ...], Within(0, ends="[)")] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    """afr: candidates for γ, how much more a sample counts that the model is not sure of; 0 weighs classes only."""
    pulls: Annotated[tuple[float, ...], Within(0, ends="()")] = (0.001, 0.01, 0.1, 1.0)
    """afr: candidates for λ, how strongly the new layer is drawn to the old one."""
    temperature: bool = True
    """Scale the logits so that confidence is calibrated on the held-out images; --no-temperature leaves them."""
    coverage: Annotated[float, Within(0, 1, "(]")] = 0.9
    """Share of inputs to answer; below the confidence that gives it, the model abstains."""
    risk: Annotated[Unset[float], Within(0, 1, "()")] = None
    """Instead: the largest share of wrong answers to allow among those given, with 95 % certainty."""
    folds: Annotated[int, Within(2)] = 5
    """Parts of the held-out images; a layer is judged and calibrated on a part that it was not fitted on."""
    checks: Several[str] = ()
    """Checks of the audit before and after (default: accuracy and groups)."""
    audit: bool = True
    """Audit the model before and after on the test split; --no-audit leaves that out."""
    conflict: Unset[float] = None
    """Sets made with a shortcut (coloured-digits, ...): share of bias-conflicting samples (default: the run's)."""
    val: Annotated[Unset[float], Within(0, 1, "[)")] = None
    """Share of training that is the validation split (default: the run's, where it is the run's data)."""
    data_seed: Unset[int] = None
    """Seed of held-out splits and generated sets (default: the run's)."""
    root: Root = None
    confine: Confine = False
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """Seed of subsamples, folds, and the part of training that is held out."""
    batch_size: Annotated[Unset[int], Within(1)] = None
    """Images per pass (default: 256; on a CPU fewer of large images, such as 4 of 224 pixels)."""
    workers: Annotated[Workers, Within(0)] = None
    device: Device = "auto"
    overwrite: bool = False
    """Replace the run in --out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        answer = self.by != "none" or self.temperature or self.risk is not None or self.coverage < 1
        require(answer, "by none without temperature at coverage 1 changes nothing; ask for one of them")


@dataclass(frozen=True)
class CheckedDataSettings(Bounded):
    """How the data is read, as :func:`holdfast.data.load` reads it."""

    root: Root = None
    names: Unset[str] = None
    """Pattern of file names that hold the labels, such as "{age}_{gender}_{race}_"."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA."""
    group: Unset[str] = None
    """The same for the group; for a table or hf: data the column of groups."""
    columns: Columns = None
    confine: Confine = False

    def reading(self) -> dict[str, Any]:
        """These alone."""
        return {f.name: getattr(self, f.name) for f in fields(CheckedDataSettings)}


@dataclass(frozen=True)
class QualitySettings(CheckedDataSettings):
    """What to search for beside unreadable files, and where to write it."""

    near: Annotated[float, Within(0, 1)] = 0.3
    """Largest distance of near duplicates (correlation is 1 - distance²/2); 0 searches for identical images alone."""
    label_errors: bool = False
    """Also search for wrong labels, by confident learning. It trains one model per fold."""
    model: str = "convnet"
    """label errors: the network that is trained on each fold."""
    pretrained: bool = False
    """label errors: do not train the network; fit a linear classifier per fold on its pretrained features."""
    folds: Annotated[int, Within(2, 100, "..")] = 4
    """label errors: parts of the training split, each judged by a model that was trained on the others."""
    epochs: Annotated[int, Within(1)] = 8
    """label errors: epochs of each training."""
    image_size: Annotated[Unset[int], Within(1, 4096, "..")] = None
    """label errors: side in pixels that images are resized to (default: their own)."""
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """label errors: seed of folds and trainings."""
    device: Device = "auto"
    out: Unset[str] = None
    """A folder for a page of pictures (data_check.html), findings.json and tables of all that was found."""
    overwrite: bool = False
    """Replace what an earlier check wrote there."""


ExportKind = Literal["onnx", "torchscript", "pt2"]


@dataclass(frozen=True)
class ExportSettings(Bounded):
    """What to write, and how closely it must agree with the run."""

    to: ExportKind = "onnx"
    """The kind of file: ONNX, TorchScript, or an archive of torch.export."""
    out: Unset[str] = None
    """The file to write (default: export/model.KIND in the run folder); its card is beside it."""
    output: Literal["logits", "probabilities"] = "logits"
    """What the file returns for each image, one number per class."""
    opset: Annotated[Unset[int], Within(18, 30, "..")] = None
    """The version of ONNX's operators (default: torch's choice)."""
    data: Unset[str] = None
    """Images to compare on: a set, a file or a folder (default: the run's own test split, or noise)."""
    root: Root = None
    images: Annotated[int, Within(1)] = 1000
    """How many of them."""
    tolerance: Annotated[float, Within(0, ends="()")] = 1e-4
    """Largest difference from the run's outputs, as a share of the largest output where that is above 1; a file that
    differs more is not kept."""
    audits: Several[str] = ()
    """Audit folders of this model, for the card; what the run itself measured is always in it."""
    redact_paths: bool = False
    """Leave folder names out of the card: files are shown by their name only."""
    overwrite: bool = False
    """Replace a file that is there."""
