"""The settings of one training, in groups. Outside they are flat: flags, YAML keys and keyword arguments.

A group's ``name`` is spelled as the group itself: ``settings.optimizer.name`` is ``--optimizer``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Suppress, arg

from holdfast.errors import brief, require, require_known
from holdfast.parts import TRACKERS, data_name, named_data
from holdfast.settings.fields import (
    LARGEST_SEED,
    UNCHOSEN,
    AscentSettings,
    Bounded,
    Chosen,
    Columns,
    Confine,
    Device,
    MethodSettings,
    Several,
    SkipUnreadable,
    Switch,
    Unset,
    Within,
    Workers,
    flatten,
    parse_columns,
)

DATA_READING_KEYS = (
    "root", "image_size", "val", "conflict", "names", "label", "group", "columns", "data_seed", "labels",
    "unlabeled", "confine", "skip_unreadable",
)  # fmt: skip
"""Settings that say how data is read; not for a data set in memory."""
MODEL_BUILDING_KEYS = ("pretrained", "weights", "pretrain", "pretrain_for")
"""Settings that say how a network is built; not for a module of the caller's own."""

SAME_NUMBERS = frozenset(
    {
        "root",
        "confine",
        "skip_unreadable",
        "loader",
        "workers",
        "device",
        "capture",
        "compile",
        "checkpoint_every",
        "track",
        "track_project",
    }
)
"""Settings that do not change what is computed: they may differ when a run is continued, and between seeds of one
row."""

CellRule = Literal["val-average", "val-worst-class", "val-worst-group"]
"""How the best cell of a comparison may be chosen: on held-out data, and never on the test set. The last needs group
labels there."""

CONFLICT = 0.05
"""The share of bias-conflicting training samples where none is given. Only sets that are made as they are loaded take
one; their readers say so."""


def takes_conflict(name: object) -> bool:
    """Whether the share of conflicting samples of this data can be chosen."""
    part = named_data().get(data_name(name)) if isinstance(name, str) else None
    return part is not None and "conflict" in part.takes


def check_conflict(name: object, conflict: float | None) -> None:
    """Refuse a value that is not a share, or that the data of that name would silently ignore."""
    if conflict is None:
        return
    number = isinstance(conflict, (int, float))
    require(number and 0 <= conflict <= 1, f"conflict must be in [0, 1], got {brief(conflict)}")
    made = ", ".join(name for name in named_data() if takes_conflict(name))
    wrong = f"conflict {conflict} is for data made with a shortcut ({made}), not for {name}"
    published = "take a split published with its share (bar-1pct, bar-5pct, cifar10c-5pct, ...)"
    remedy = f"leave it out, {published}, or put a shortcut into the set: holdfast data make"
    require(takes_conflict(name), f"{wrong}; {remedy}")


@dataclass(frozen=True)
class DataSettings(Bounded):
    """What to train on."""

    name: Annotated[str, arg(name="data")] = "coloured-digits"
    """A built-in set, an .npz file, a folder of images, tar shards or their URL, a table, or hf:NAME_OR_PATH."""
    root: Unset[str] = None
    """Where built-in sets lie or are downloaded to (default: $HOLDFAST_ROOT, or ./data)."""
    image_size: Annotated[Unset[int], Within(1, 4096, "..")] = None
    """Side in pixels that the short side is resized to; the centre is cut out (default: their own size)."""
    val: Annotated[float, Within(0, 1, "[)")] = 0.0
    """Share of the training set held out for validation, by class; 0 uses the set's own, if any."""
    conflict: Unset[float] = None
    """Sets made with a shortcut (coloured-digits, corrupted-cifar10-...): bias-conflicting share (default: 0.05)."""
    names: Unset[str] = None
    """Pattern of file names that labels are taken from, such as "{age}_{gender}_{race}_"."""
    label: Unset[str] = None
    """Rule for the label on the parts of such names ("age>=40"), or an attribute of CelebA."""
    group: Unset[str] = None
    """The same for the group; for a table or hf: data the column of groups."""
    columns: Columns = None
    data_seed: int = 0
    """Seed of the held-out split, of generated sets and of --labels; apart from --seed, so all runs share them."""
    labels: Annotated[Unset[int], Within(1)] = None
    """Use only this many labels of the training set, evenly over its classes (default: all)."""
    unlabeled: Unset[str] = None
    """Images without labels, for --pretrain and --method fixmatch: a set, file or folder (default: the rest)."""
    confine: Confine = False
    skip_unreadable: SkipUnreadable = False
    loader: Literal["auto", "resident", "stream"] = "auto"
    """Keep all images on the device, or stream them (auto: arrays stay, files stream unless they are few)."""
    workers: Annotated[Workers, Within(0)] = None
    decode: Literal["cpu", "gpu"] = "cpu"
    """Where streamed JPEG files are decoded. gpu is experimental: it needs CUDA, pixels differ by a few grey levels,
    and a training with it was seen to diverge."""
    shuffle: Literal["full", "window"] = "full"
    """Order of an epoch: a full shuffle, or blocks of neighbours mixed within a window, which reads in long pieces: for
    data behind a URL, or larger than memory on a slow disk."""
    shuffle_window: Annotated[int, Within(1)] = 16384
    """Images per window of --shuffle window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conflict(self.name, self.conflict)
        parse_columns(self.columns)


@dataclass(frozen=True)
class AugmentSettings(Bounded):
    """Random changes to training images, in batches on the device, in the order of torchvision's reference recipes:
    crop, flip, auto-augment, colour jitter, cutout, erasing."""

    resized_crop: Annotated[float, Within(0, 1)] = 0.0
    """Random resized crop: the smallest share of an image's area that is cut out and enlarged; 0 is off (0.08 is
    usual for ImageNet)."""
    crop: Annotated[int, Within(0)] = 0
    """Pad by this many black pixels and crop back at random; 0 is off."""
    flip: bool = False
    """Mirror left to right with probability 1/2."""
    auto_augment: Literal["none", "trivialaugment", "randaugment"] = "none"
    """One random operation at a random strength for each image, or several at a fixed one."""
    rand_ops: Annotated[int, Within(1)] = 2
    """randaugment: operations, one after the other."""
    rand_magnitude: Annotated[int, Within(0, 30, "..")] = 9
    """randaugment: their strength."""
    color_jitter: Several[float] = ()
    """Strength of random brightness, contrast, saturation and hue (at most 0.5): 4 numbers, 3 without hue, or 1 for the
    first three; none by default."""
    cutout: Annotated[int, Within(0)] = 0
    """Side of a square set to the mean colour, anywhere on the image; 0 is off."""
    cutout_p: Annotated[float, Within(0, 1)] = 1.0
    """Probability that an image is cut out from."""
    erasing: Annotated[float, Within(0, 1)] = 0.0
    """Random erasing: probability that a box of 2 to 33 % of an image is set to the mean colour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        both = f"crop {self.crop} and resized_crop {self.resized_crop}"
        require(not (self.crop and self.resized_crop), f"{both} are two ways to crop; set one of them to 0")
        given = list(self.color_jitter)
        fits = len(given) in (0, 1, 3, 4) and all(strength >= 0 for strength in given) and max(given[3:] or [0]) <= 0.5
        meant = "1, 3 or 4 numbers >= 0 (brightness, contrast, saturation, hue), the last at most 0.5"
        require(fits, f"color_jitter must be {meant}, got {brief(given)}")

    @property
    def jitter(self) -> dict[str, float]:
        """The strengths of colour jitter by name."""
        given = self.color_jitter * 3 if len(self.color_jitter) == 1 else self.color_jitter
        return dict(zip(("brightness", "contrast", "saturation", "hue"), given, strict=False))


@dataclass(frozen=True)
class ModelSettings(Bounded):
    """The network."""

    name: Annotated[str, arg(name="model")] = "convnet"
    """A name that 'holdfast list models' shows."""
    pretrained: bool = False
    """Start from the pretrained weights that timm or torchvision publishes."""
    weights: Unset[str] = None
    """Start from a file: .safetensors, or .pth/.pt holding tensors only."""
    pretrain: Literal["none", "rotation", "vae"] = "none"
    """Learn from the images without labels first: to tell rotations, or as a VAE (models vae-head, vae-classifier)."""
    pretrain_for: Annotated[int, Within(1)] = 20
    """Epochs of --pretrain."""
    freeze: Literal["none", "backbone"] = "none"
    """backbone: train the last layer only; the rest keeps its weights and statistics."""

    def __post_init__(self) -> None:
        both = f"pretrained and weights ({self.weights})"
        require(not (self.pretrained and self.weights), f"{both} exclude each other; give one of them")
        taken = self.pretrained or self.weights
        lost = f"pretrain {self.pretrain} would overwrite the weights that were asked for"
        require(self.pretrain == "none" or not taken, f"{lost}; give one of them")
        super().__post_init__()


@dataclass(frozen=True)
class OptimizerSettings(Bounded):
    """The optimiser and its learning rate."""

    name: Annotated[Chosen[Literal["sgd", "adam", "adamw"]], arg(name="optimizer")] = UNCHOSEN
    """Which torch optimiser (default: chosen for the data and the model, and said; --plan shows it)."""
    lr: Annotated[Chosen[float], Within(0)] = UNCHOSEN
    """Peak learning rate (default: chosen for the optimiser, the model and the batch size)."""
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    """sgd only."""
    nesterov: bool = False
    """sgd only."""
    betas: tuple[float, float] = (0.9, 0.999)
    """adam and adamw only."""
    weight_decay: Annotated[float, Within(0)] = 5e-4
    """Weight decay (L2); adamw applies it apart from the gradient (decoupled)."""
    layer_decay: Annotated[float, Within(0, 1, "(]")] = 1.0
    """Layer-wise decay: factor of the learning rate per layer below the last one; 1 is off (0.65 to 0.9 are usual)."""
    clip: Annotated[Unset[float], Within(0, ends="(]")] = None
    """Largest norm of the whole gradient before the descent; none by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(0 <= b < 1 for b in self.betas), f"betas must be in [0, 1), got {brief(self.betas)}")
        require(not self.nesterov or self.momentum > 0, "nesterov needs momentum > 0, got 0")


@dataclass(frozen=True)
class ScheduleSettings(Bounded):
    """How the learning rate moves; lengths are in epochs, the rate changes every step."""

    name: Annotated[Literal["constant", "step", "multistep", "cosine"], arg(name="schedule")] = "cosine"
    """From the peak: stay there, drop every so often or at milestones, or fall to 0 along a cosine."""
    warmup: Annotated[Unset[float], Within(0)] = None
    """Epochs of linear rise from 0 at the start (default: 5 or 10 % of all; none where --lr is given)."""
    step_size: Annotated[int, Within(1)] = 30
    """step: epochs between two drops."""
    milestones: Several[int] = ()
    """multistep: epochs at which the rate drops."""
    gamma: Annotated[float, Within(0, ends="(]")] = 0.1
    """step and multistep: factor of a drop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = list(self.milestones) == sorted(self.milestones) and all(epoch >= 1 for epoch in self.milestones)
        require(rising, f"milestones must rise from 1 on, got {brief(self.milestones)}")


SelectionRule = Literal["last", "val-average", "val-loss", "val-worst-class", "val-worst-group", "oracle-test"]


@dataclass(frozen=True)
class LoopSettings(Bounded):
    """Length, batches, precision, evaluation and checkpoints of the training."""

    epochs: Annotated[Chosen[int], Within(1)] = UNCHOSEN
    """Passes over the training set (default: chosen so that there are enough steps)."""
    batch_size: Annotated[Chosen[int], Within(1)] = UNCHOSEN
    """Images per step (default: 32, 64 or 128, by the number of training images)."""
    accumulate: Annotated[int, Within(1)] = 1
    """Parts a batch is split into to save memory; gradients are those of the whole batch."""
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """Seed of weights, data order, augmentation, mixing and attacks."""
    device: Device = "auto"
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Of the arithmetic (auto: bf16 on a GPU that has it, else fp32)."""
    channels_last: Switch = "auto"
    """Keep images and weights in NHWC order in memory (auto: for convolutional networks on a GPU)."""
    compile: Switch = "auto"
    """Compile the network with torch.compile (auto: on a GPU, where there are steps enough to pay for it)."""
    capture: Switch = "auto"
    """Run the whole step as one CUDA graph (auto: on a GPU)."""
    deterministic: bool = False
    """Use deterministic kernels only, even if they are slower."""
    ema: Annotated[Unset[float], Within(0, 1, "()")] = None
    """Decay of a running average of the weights that is evaluated and kept instead; none by default."""
    sync_batchnorm: bool = False
    """Under torchrun: BatchNorm takes mean and variance over the whole batch, not over each rank's part of it."""
    class_weights: Several[float | str] = ()
    """Weight of each class in the loss: balanced (every class counts the same), or one number per class; none by
    default."""
    select: SelectionRule = "last"
    """Which epoch's weights to keep: the last, or the best on val by accuracy, by loss, in its worst class, or in its
    worst cell of class and group. oracle-test looks at the test set: never report it as a result."""
    early_stopping: Annotated[int, Within(0)] = 0
    """End when val has not improved for this many epochs, and keep the best weights (by --select; by val-average if
    that is last); 0 trains to the end."""
    eval_every: Annotated[int, Within(0)] = 1
    """Epochs between two evaluations; the last epoch is always evaluated. 0 evaluates at the end only."""
    checkpoint_every: Annotated[int, Within(1)] = 1
    """Epochs between two checkpoints."""
    diagnose: Annotated[int, Within(0)] = 0
    """Epochs between two measurements of the ascent (norms, share of the full gradient); 0 is off."""
    track: Several[str] = ()
    """Trackers to record the training in as well: tensorboard, mlflow, wandb ('holdfast list trackers'). They get
    settings, the numbers of every epoch and, at the end, results, findings and report."""
    track_project: Unset[str] = None
    """Experiment of MLflow or project of Weights & Biases (default: their own variables, or holdfast)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        too_many = f"accumulate ({self.accumulate}) cannot exceed batch_size ({self.batch_size})"
        require(self.batch_size is None or self.accumulate <= self.batch_size, too_many)
        for name in self.track:
            require_known("tracker", name, TRACKERS)
        given = list(self.class_weights)
        numbers = all(isinstance(weight, (int, float)) and weight >= 0 for weight in given)
        require(given == ["balanced"] or numbers, f"class_weights must be balanced or numbers >= 0, got {brief(given)}")
        if self.early_stopping:
            stops = f"early_stopping {self.early_stopping}"
            remedy = "use --select val-average, val-loss, val-worst-class or val-worst-group"
            require(
                self.select != "oracle-test", f"{stops} must not look at the test set (select oracle-test); {remedy}"
            )
            require(self.eval_every > 0, f"{stops} needs evaluations on the way; give eval_every 1, not 0")

    @property
    def compiles(self) -> bool:
        return self.compile == "on"

    @property
    def rule(self) -> SelectionRule:
        """Which epoch's weights are kept."""
        return "val-average" if self.early_stopping and self.select == "last" else self.select


@dataclass(frozen=True)
class TrainSettings:
    """All settings of one training."""

    data: OmitArgPrefixes[DataSettings] = field(default_factory=DataSettings)
    model: OmitArgPrefixes[ModelSettings] = field(default_factory=ModelSettings)
    method: Suppress[MethodSettings] = field(default_factory=lambda: MethodSettings.choose("erm"))
    ascent: Suppress[AscentSettings] = field(default_factory=lambda: AscentSettings.choose("none"))
    optimizer: OmitArgPrefixes[OptimizerSettings] = field(default_factory=OptimizerSettings)
    schedule: OmitArgPrefixes[ScheduleSettings] = field(default_factory=ScheduleSettings)
    augment: OmitArgPrefixes[AugmentSettings] = field(default_factory=AugmentSettings)
    loop: OmitArgPrefixes[LoopSettings] = field(default_factory=LoopSettings)

    def __post_init__(self) -> None:
        # Here for every group and method alike: an infinity passes most of their own bounds.
        for name, value in flatten(self).items():
            own = {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
            for key, found in own.items():
                numbers = found if isinstance(found, list) else [found]
                finite = all(math.isfinite(n) for n in numbers if isinstance(n, float))
                require(finite, f"{key} must be finite, got {found}")

    def require_unlabeled_used(self) -> None:
        """Refuse pictures without labels that nothing would look at. Not for a comparison: one arm may, another not."""
        unused = self.data.unlabeled is not None and self.model.pretrain == "none" and not self.method.learns_unlabeled
        alone = f"unlabeled {self.data.unlabeled}: {self.method.name} learns from labels alone"
        remedy = "add --pretrain rotation, use --method fixmatch, or leave it out"
        require(not unused, f"{alone}; {remedy}")

    def resolved(self) -> TrainSettings:
        """With the values that defaults stand for, so that two ways to ask for the same are equal. What follows from
        data and model is left open: ``holdfast.settings.training_defaults`` chooses that."""
        conflict = CONFLICT if self.data.conflict is None and takes_conflict(self.data.name) else self.data.conflict
        loop, schedule = replace(self.loop, select=self.loop.rule), self.schedule
        if self.optimizer.lr is not None and schedule.warmup is None:  # who gives a rate gives its warm-up
            schedule = replace(schedule, warmup=0.0)
        return replace(self, data=replace(self.data, conflict=conflict), schedule=schedule, loop=loop)
