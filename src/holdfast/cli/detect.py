"""``holdfast detect``, ``predict`` and ``describe``: options, and the calls of ``holdfast.detect`` that they become."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli.common import narrate, parse, say
from holdfast.errors import require
from holdfast.settings.detect_settings import DESCRIBE_TRAINING, FitSettings, ReadSettings, VAETrainingSettings
from holdfast.settings.fields import LARGEST_SEED, Bounded, Unset, Within, flatten

Split = Literal["train", "val", "test", "labeled"]
"""``labeled``: of a set with anomalies, its labelled part."""


@dataclass(frozen=True)
class NormalImages:
    """What is normal."""

    data: str
    """Normal images: a set by name, hf:NAME_OR_PATH, an .npz file, a folder of images, or a CSV/Parquet table."""


@dataclass(frozen=True)
class FitOptions(FitSettings, NormalImages):
    """What is normal, and how to learn it."""


def detect_fit(words: list[str]) -> int:
    """Fit an out-of-distribution detector on normal images, and set its threshold."""
    options: FitOptions = parse(FitOptions, words, "detect fit", detect_fit.__doc__)
    from holdfast.detect.detectors import check_scores

    check_scores(options.scores)
    require(bool(options.out or options.run), "no place for the detector; give --out, or the --run it belongs to")
    from holdfast.detect import fit

    values = flatten(options)
    fitted = fit(values.pop("data"), **values, note=narrate)
    where = options.out or f"{options.run}/detector"
    say(f"{where}: flags scores above {fitted.threshold.value:.4g} ({options.false_alarm_rate:.1%} of held-out images)")
    return 0


@dataclass(frozen=True)
class ScoreOptions:
    """What to score, with which detector."""

    detector: Annotated[Positional[str], arg(metavar="DETECTOR")]
    """The detector's folder."""
    data: str
    """The images: a set, a file, or a folder of any size, with or without classes."""
    out: str
    """The CSV file to write: one row per image, with score, flag and reason."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: train); data without parts is taken whole."""
    reading: OmitArgPrefixes[ReadSettings] = field(default_factory=ReadSettings)


def detect_score(words: list[str]) -> int:
    """Score images: how anomalous each is, whether it is flagged, and why."""
    options: ScoreOptions = parse(ScoreOptions, words, "detect score", detect_score.__doc__)
    from holdfast.detect import score

    values = flatten(options)
    found = score(values.pop("detector"), values.pop("data"), **values, note=narrate)
    say(f"{options.out}: {found.flagged} of {len(found)} images flagged")
    return 0


@dataclass(frozen=True)
class EvaluateOptions(Bounded):
    """Images that are known to be normal or anomalous."""

    detector: Annotated[Positional[str], arg(metavar="DETECTOR")]
    """The detector's folder."""
    normal: str
    """Normal images; or, alone, a set made by 'holdfast data make fashion-anomalies'."""
    anomalous: Unset[str] = None
    """Images that should be flagged."""
    out: Unset[str] = None
    """A folder for findings.json and report.html."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: test); data without parts is taken whole."""
    resamples: Annotated[int, Within(1)] = 1000
    """Bootstrap samples behind the interval of average precision."""
    seed: Annotated[int, Within(0, LARGEST_SEED, "..")] = 0
    """Seed of those samples."""
    reading: OmitArgPrefixes[ReadSettings] = field(default_factory=ReadSettings)


def detect_evaluate(words: list[str]) -> int:
    """Evaluate a detector: AUROC, AP, FPR95, precision and recall at its threshold, with intervals."""
    options: EvaluateOptions = parse(EvaluateOptions, words, "detect evaluate", detect_evaluate.__doc__)
    from holdfast.detect import evaluate
    from holdfast.detect.scoring import summary_text

    values = flatten(options)
    found = evaluate(values.pop("detector"), values.pop("normal"), values.pop("anomalous"), **values, note=narrate)
    say(summary_text(found))
    if options.out:
        say(f"report: {Path(options.out) / 'report.html'}")
    return 0


@dataclass(frozen=True)
class PredictOptions(Bounded):
    """What to classify, with which run."""

    run: Annotated[Positional[str], arg(metavar="RUN")]
    """The run folder of a trained classifier."""
    data: str
    """The images: a set, a file, or a folder of any size, with or without classes."""
    out: str
    """The CSV file to write: one row per image, with path, predicted class, confidence and, where there is a detector,
    OOD score and flag; 'holdfast audit --predictions' reads it."""
    probabilities: bool = False
    """Add one column per class with its probability."""
    detector: Unset[str] = None
    """A detector's folder (default: the one in the run, if any)."""
    abstain_below: Annotated[Unset[float], Within(0, 1)] = None
    """Confidence below which not to answer: adds a column 'abstain' (default: what 'holdfast repair' found for the run,
    if anything)."""
    split: Unset[Split] = None
    """Which part of data that has parts (default: test); data without parts is taken whole."""
    reading: OmitArgPrefixes[ReadSettings] = field(default_factory=ReadSettings)


def predict_(words: list[str]) -> int:
    """Classify images, and flag those that are out-of-distribution."""
    options: PredictOptions = parse(PredictOptions, words, "predict", predict_.__doc__)
    from holdfast.detect import predict

    values = flatten(options)
    found = predict(values.pop("run"), values.pop("data"), **values, note=narrate)
    ood = found.ood
    flagged = "not checked for out-of-distribution inputs" if ood is None else f"{ood.flagged} flagged as ood"
    unsure = "" if found.abstain is None else f", {int(found.abstain.sum())} below the confidence to answer"
    say(f"{options.out}: {len(found)} images, {flagged}{unsure}")
    if ood is None:
        command = f"holdfast detect fit --run {shlex.quote(options.run)} --data NORMAL"
        narrate(f"{options.run} has no detector; fit one: {command}")
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
    """Which part of data that has parts (default: train); a VAE is never trained on val or test."""
    projection: Literal["auto", "pca", "tsne", "umap"] = "auto"
    """How more than two latent dimensions become a map."""
    training: OmitArgPrefixes[VAETrainingSettings] = DESCRIBE_TRAINING


def describe_(words: list[str]) -> int:
    """Draw a low-dimensional map of a data set, with reconstructions and how well its classes separate."""
    options: DescribeOptions = parse(DescribeOptions, words, "describe", describe_.__doc__)
    from holdfast.detect import describe

    values = flatten(options)
    for finding in describe(values.pop("data"), **values, note=narrate):
        if finding.value is not None:
            say(f"{finding.name:<18}{finding.value:.3f}")
    say(f"report: {Path(options.out) / 'report.html'}")
    return 0
