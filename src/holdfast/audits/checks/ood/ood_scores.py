"""What the check ``ood`` measures: out-of-distribution images, and how well scores tell them from test images."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from holdfast.audits.alignment.classes import simple
from holdfast.audits.sample_passes import RANKS, Rows, SamplePass, pack_ranks
from holdfast.audits.subject import Subject, draw, halves
from holdfast.data.images import png, resize
from holdfast.data.loaders import Images, float_batches
from holdfast.data.splits import Dataset
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.detect.detectors import Detector, make_detector
from holdfast.detect.evaluation import Evaluation, Threshold, evaluate_scores, findings_of, score_evidence
from holdfast.detect.features import ClassifierExtractor, Features, LogitExtractor, extract
from holdfast.errors import HoldfastError, require
from holdfast.models.heads import find_head
from holdfast.parts import named_data
from holdfast.rng import derive
from holdfast.types import Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.ood import OutOfDistribution

MOST_TRAIN: Final = 5000
FALSE_ALARMS: Final = 0.05
BATCH: Final = 256
PICTURES: Final = 12


def ood_scores(subject: Subject, told: OutOfDistribution) -> tuple[Finding, ...]:
    seed, images, data = subject.seed, told.images, told.sets or told.data
    extractor = extractor_of(subject)
    share = 1.0 if images is None else min(1.0, images / max(1, len(subject.split)))
    known = min(MOST_TRAIN, len(subject.data.train))
    settings = {"false_alarm_rate": FALSE_ALARMS, "seed": seed, "train_images": cut(known, share)}
    try:
        shown = subject.data.train.subset(draw(len(subject.data.train), cut(known, share), seed, "unknown/sample"))
        train = extract(extractor, shown, workers=subject.workers) if len(shown) else None
        seen_of = test_pass(subject, images)
        of_test, rows = seen_of.positions, subject.rows(seen_of)
        require(bool(rows), "there are no test images to tell others from")
        test = Features(**rows, labels=subject.split.labels[of_test])
    except HoldfastError as error:
        return (Finding("ood", "ood_auroc", None, 0, settings=settings, evidence={"reason": str(error)}),)
    level, judged = halves(len(test), seed, "unknown/halves")
    kinds = {NOISE: "x".join(map(str, subject.data.shape))} if data is None else {}
    sets, drawn = {}, {}
    for name, own in ood_images(subject, data).items():
        few = draw(len(own), cut(len(own), share), seed, "unknown/few")
        sets[name], drawn[name] = own[few], (few, len(own), kinds.get(name, ""))
    seen = {name: extract(extractor, images) for name, images in sets.items()}
    found: list[Finding] = []
    for score in told.gate_parts():
        try:
            detector = _fitted(score, extractor, train)
        except HoldfastError as error:
            reason, of = {"reason": str(error)}, {"score": score}
            found.append(Finding("ood", "ood_auroc", None, 0, where=of, settings=settings, evidence=reason))
            continue
        normal = detector.score_features(test)
        threshold = _threshold(normal[level])
        scored = {name: detector.score_features(own) for name, own in seen.items()}
        for name, own in scored.items():
            result = evaluate_scores(*_joined(normal[judged], own), threshold=threshold, seed=seed)
            found += _findings(result, {"score": score, "ood": name}, settings)
        scores, truth = _joined(normal[judged], *scored.values())
        ranks = pack_ranks(scores, of_test[judged], len(subject.split), drawn)
        result = evaluate_scores(scores, truth, threshold=threshold, seed=seed)
        evidence = score_evidence(scores, truth, threshold, of="ood", points=60)
        found += _findings(result, {"score": score}, settings, {**evidence, RANKS: ranks})
    found.append(_misses(seen, sets, subject, settings))
    return tuple(found)


def test_pass(subject: Subject, images: int | None) -> SamplePass:
    """What the scores are computed from, of the test images, or of so many that are drawn."""

    def compute(blocks: Sequence[int]) -> Iterator[Rows]:
        extractor, own = extractor_of(subject), subject.split.subset(made.order(blocks))
        for x in float_batches(own, extractor.device, batch_size=BATCH, workers=subject.workers):
            yield dict(extractor.extract(x).to("cpu").items())

    drawn = draw(len(subject.split), images or len(subject.split), subject.seed, "unknown/sample")
    made = SamplePass("ood-features", drawn, BATCH, compute)
    return made


def extractor_of(subject: Subject) -> ClassifierExtractor | LogitExtractor:
    """All of what the model sees, or what it says where its last layer is not to be found."""
    try:
        find_head(subject.model)
    except HoldfastError:
        return LogitExtractor(subject.model, subject.device, subject.precision)
    return ClassifierExtractor(subject.model, subject.precision)


def _joined(normal: Tensor, *ood: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of test and then OOD images, and (N,) which are OOD."""
    scores = torch.cat([normal, *ood])
    return scores, torch.arange(len(scores)) >= len(normal)


def _findings(
    result: Evaluation, where: Mapping[str, str], settings: Mapping[str, Any], evidence: Mapping[str, Any] | None = None
) -> list[Finding]:
    return [replace(f, name=f"ood_{f.name}") for f in findings_of(result, "ood", where, settings, evidence)]


def _fitted(name: str, extractor: ClassifierExtractor | LogitExtractor, train: Features | None) -> Detector:
    """The detector; refused where there are too few classes or features, or nothing to learn from."""
    detector = make_detector(name, extractor, **({"k": min(5, len(train))} if name == "knn" and train else {}))
    if train is not None:
        return detector.fit_features(train)
    require(not detector.learns, f"{name} learns from training images, and there are none")
    return detector


def _threshold(scores: Tensor) -> Threshold | None:
    """From held-out test images; none where they are too few for the rate."""
    try:
        return Threshold.from_normal(scores, false_alarm_rate=FALSE_ALARMS)
    except HoldfastError:
        return None


def _misses(
    seen: Mapping[str, Features], sets: Mapping[str, Tensor], subject: Subject, settings: dict[str, Any]
) -> Finding:
    rows = []
    for name, own in seen.items():
        assert own.logits is not None
        confidence, prediction = own.logits.softmax(1).max(1)
        for i in confidence.argsort(descending=True)[:PICTURES].tolist():
            rows.append((float(confidence[i]), name, int(prediction[i]), sets[name][i]))
    rows.sort(key=lambda row: -row[0])
    said = dict(enumerate(subject.data.classes))
    pictures = [
        {"png": png(image), "label": name, "prediction": said.get(label, str(label)), "confidence": sure}
        for sure, name, label, image in rows[:PICTURES]
    ]
    return Finding("ood", "misses", None, 0, settings=settings, evidence={"misses": pictures})


NOISE: Final = "noise"
"""Drawn in the size of the data's images, unlike those that are read: in another size it is other images."""
MOST_OOD: Final = 1000
OF_DIGITS: Final = ("digits", "coloured-digits", "mnist", "coloured-mnist", "svhn")
DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FEWEST: Final = 16
"""Images of a kind that are left when there is little time."""


def ood_images(subject: Subject, given: Mapping[str, str | Dataset | Images] | None) -> dict[str, Tensor]:
    """Images of no known class, in the model's size and colours."""
    shape, seed = subject.data.shape, subject.seed
    if given is None:
        generator = torch.Generator().manual_seed(derive(seed, "unknown/noise"))
        noise = torch.randint(0, 256, (256, *shape), generator=generator).to(torch.uint8)
        given = {NOISE: noise} | ({} if knows_digits(subject.data) else {"digits": "digits"})
    return {name: _given(images, shape, seed) for name, images in given.items()}


def knows_digits(data: Dataset) -> bool:
    """Whether digits are, or may be, classes of the data: by the published set it is named after, else by its classes.

    Classes without names are numbered: ten of them may be digits, and what a model knows is not out of distribution.
    """
    named = simple(Path(data.name).stem)
    for known in sorted(named_data(), key=len, reverse=True):  # fashion-mnist before mnist
        if re.search(rf"\b{re.escape(simple(known))}\b", named):
            return known in OF_DIGITS
    words = {word for name in data.classes for word in simple(name).split()}
    return all(words & {str(digit), word} for digit, word in enumerate(DIGITS))


def cut(count: int, share: float) -> int:
    """A share of a number, but not so few that nothing can be said of them."""
    return min(count, max(FEWEST, math.ceil(share * count)))


def _given(images: str | Dataset | Images, shape: tuple[int, int, int], seed: int) -> Tensor:
    if isinstance(images, str):
        images = open_unlabelled(images, usual="test")
    if isinstance(images, Dataset):
        images = images.test if images.test is not None else images.train
    if not isinstance(images, Tensor):
        images = images.read(draw(len(images), MOST_OOD, seed, "unknown/sample"))
    if images.dtype != torch.uint8:
        images = images.mul(255).round().to(torch.uint8)
    if tuple(images.shape[2:]) != shape[1:]:  # the centre of a square that covers the size
        side = max(shape[1:])
        top, left = (side - shape[1]) // 2, (side - shape[2]) // 2
        images = resize(images, side)[:, :, top : top + shape[1], left : left + shape[2]]
    if images.shape[1] == 1 and shape[0] == 3:
        images = images.expand(-1, 3, -1, -1)
    elif images.shape[1] == 3 and shape[0] == 1:
        images = images.float().mean(1, keepdim=True).round().to(torch.uint8)
    return images.contiguous()
