"""``holdfast detect``, ``predict`` and ``describe``: what lies outside, what lies inside, and a map of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli.common import narrate, parse, say
from holdfast.settings.fields import Unset

Split = Literal["train", "val", "test", "labeled"]
"""``labeled``: of a set with anomalies, its labelled part."""


@dataclass(frozen=True)
class ReadOptions:
    """How pictures are read."""

    root: Unset[str] = None
    """Where built-in sets lie (default: $HOLDFAST_ROOT, or ./data)."""
    batch_size: int = 256
    """Pictures a pass."""
    workers: int = 4
    """Processes that decode picture files; 0 decodes in this process."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""


@dataclass(frozen=True)
class TrainOptions:
    """How a VAE is trained on pictures."""

    root: Unset[str] = None
    """Where built-in sets lie (default: $HOLDFAST_ROOT, or ./data)."""
    image_size: Unset[int] = None
    """Side in pixels that images are brought to (default: their own)."""
    network: Literal["strided", "report"] = "strided"
    """The VAE: ours, or that of the report this follows."""
    latent: int = 16
    """Latent dimensions of the VAE."""
    epochs: int = 20
    """Epochs of the VAE."""
    batch_size: int = 128
    """Pictures a step."""
    lr: float = 1e-3
    """Learning rate."""
    seed: int = 0
    """Seed of weights, of the order and of what is held out."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""


def values_of(options: Any) -> dict[str, Any]:
    """All fields by name, those of groups among them."""
    found: dict[str, Any] = {}
    for own in fields(options):
        value = getattr(options, own.name)
        found |= values_of(value) if is_dataclass(value) else {own.name: value}
    return found


@dataclass(frozen=True)
class FitOptions:
    """What is normal, and how to learn it."""

    data: str
    """Normal pictures: a built-in set, an .npz file, a folder of images, or a CSV/Parquet table."""
    out: Unset[str] = None
    """The detector's folder (default: inside --run)."""
    run: Unset[str] = None
    """A trained run whose classifier is to be watched; its features are scored then."""
    scores: tuple[str, ...] = ("fused",)
    """What to score by: fused, or any of elbo, reconstruction, local-reconstruction, kl, knn, mahalanobis, vim, ..."""
    beta: float = 1.0
    """Weight of the VAE's divergence term."""
    sigma: Unset[float] = None
    """The VAE's standard deviation of a pixel (default: learned; the report's is 0.7071)."""
    encoder: str = "convnet"
    """Network that learns features by predicting rotations."""
    changes: bool = False
    """It also learns to tell changes (blurred, pasted, ...), so that damage shows in its features."""
    combine: Literal["mean", "max"] = "mean"
    """How several scores become one."""
    encoder_epochs: int = 10
    """Epochs of that network."""
    held_out: float = 0.2
    """Share of the pictures that nothing is trained on: they give the scores their scale, and the threshold."""
    false_alarm_rate: float = 0.05
    """Share of normal pictures that may be flagged."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of the arithmetic."""
    training: OmitArgPrefixes[TrainOptions] = TrainOptions()


def detect_fit(words: list[str]) -> int:
    """Learn what normal pictures look like, and from where on to raise an alarm."""
    options: FitOptions = parse(FitOptions, words, "detect fit", detect_fit.__doc__)
    from holdfast.detect import tasks

    values = values_of(options)
    monitor = tasks.detect_fit(values.pop("data"), values.pop("out"), **values, note=narrate)
    where = options.out or f"{options.run}/{tasks.DETECTOR}"
    say(f"{where}: alarm above {monitor.threshold.value:.4g} ({options.false_alarm_rate:.1%} of held-out pictures)")
    return 0


@dataclass(frozen=True)
class ScoreOptions:
    """What to score, with which detector."""

    detector: Annotated[Positional[str], arg(metavar="DETECTOR")]
    """The detector's folder."""
    data: str
    """The pictures: a set, a file, or a folder of any size, with or without classes."""
    out: str
    """The CSV to write: a score, a flag and a reason a picture."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: train); a folder, and a file without parts, is taken whole."""
    reading: OmitArgPrefixes[ReadOptions] = ReadOptions()


def detect_score(words: list[str]) -> int:
    """Score pictures: how strange each is, whether that is an alarm, and why."""
    options: ScoreOptions = parse(ScoreOptions, words, "detect score", detect_score.__doc__)
    from holdfast.detect import tasks

    values = values_of(options)
    made = tasks.detect_score(values.pop("detector"), values.pop("data"), values.pop("out"), **values, note=narrate)
    say(f"{made.out}: {made.flagged} of {made.pictures} pictures flagged")
    return 0


@dataclass(frozen=True)
class EvaluateOptions:
    """Pictures whose truth is known."""

    detector: Annotated[Positional[str], arg(metavar="DETECTOR")]
    """The detector's folder."""
    normal: str
    """Normal pictures; or, alone, a set made by 'holdfast data make fashion-anomalies'."""
    anomalous: Unset[str] = None
    """Pictures that should be flagged."""
    out: Unset[str] = None
    """A folder for findings.json and report.html."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: test)."""
    resamples: int = 1000
    """Bootstrap samples behind the intervals of AUROC, AP, FPR95 and F1."""
    seed: int = 0
    """Seed of those samples."""
    reading: OmitArgPrefixes[ReadOptions] = ReadOptions()


def detect_evaluate(words: list[str]) -> int:
    """Judge a detector: AUROC, AP, FPR95, precision and recall at its threshold, with intervals."""
    options: EvaluateOptions = parse(EvaluateOptions, words, "detect evaluate", detect_evaluate.__doc__)
    from holdfast.detect import tasks

    values = values_of(options)
    found = tasks.detect_evaluate(
        values.pop("detector"), values.pop("normal"), values.pop("anomalous"), values.pop("out"), **values
    )
    say(tasks.summary_text(found))
    if options.out:
        say(f"report: {Path(options.out) / 'report.html'}")
    return 0


@dataclass(frozen=True)
class PredictOptions:
    """What to judge, with which run."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """The run folder of a trained classifier."""
    data: str
    """The pictures: a set, a file, or a folder of any size, with or without classes."""
    out: str
    """The CSV to write: label, confidence and, where the run carries a detector, an 'unknown' flag a picture."""
    detector: Unset[str] = None
    """A detector's folder (default: the one in the run, if any)."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: test); a folder, and a file without parts, is taken whole."""
    reading: OmitArgPrefixes[ReadOptions] = ReadOptions()


def predict(words: list[str]) -> int:
    """Classify pictures, and flag those the model should not judge."""
    options: PredictOptions = parse(PredictOptions, words, "predict", predict.__doc__)
    from holdfast.detect import tasks

    values = values_of(options)
    made = tasks.predict(values.pop("run"), values.pop("data"), values.pop("out"), **values, note=narrate)
    unknown = f"{made.flagged} of them unknown" if made.watched else "none looked at for being unknown"
    say(f"{made.out}: {made.pictures} pictures, {unknown}")
    if not made.watched:
        narrate(
            f"{options.run} carries no detector; give it one: "
            f"holdfast detect fit --run {shlex.quote(options.run)} --data NORMAL"
        )
    return 0


@dataclass(frozen=True)
class DescribeOptions:
    """What to draw a map of."""

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """A built-in set, an .npz file, a folder of images, or a CSV/Parquet table."""
    out: str
    """The folder for findings.json and report.html."""
    detector: Unset[str] = None
    """Use the VAE of this detector instead of training one."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: train)."""
    projection: Literal["auto", "pca", "tsne", "umap"] = "auto"
    """How more than two latent dimensions become a map."""
    training: OmitArgPrefixes[TrainOptions] = TrainOptions(latent=2, epochs=30)


def describe(words: list[str]) -> int:
    """Draw a low-dimensional map of a data set, with reconstructions and how well its classes separate."""
    options: DescribeOptions = parse(DescribeOptions, words, "describe", describe.__doc__)
    from holdfast.detect import tasks

    values = values_of(options)
    found = tasks.describe(values.pop("data"), values.pop("out"), **values, note=narrate)
    for finding in found:
        if finding.value is not None:
            say(f"{finding.name:<18}{finding.value:.3f}")
    say(f"report: {Path(options.out) / 'report.html'}")
    return 0
