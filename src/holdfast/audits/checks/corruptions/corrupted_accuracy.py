"""Accuracy under corruptions: those of BiasAdv by strength, ImageNet-C's and published sets by severity.

Open this file to change what the check ``corruptions`` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from holdfast.audits.checks.accuracy.clean_accuracy import accuracy
from holdfast.audits.sample_passes import ANSWERS, RIGHT, WRONG, Rows, SamplePass, block_seed, encode, pack
from holdfast.audits.subject import Subject, draw
from holdfast.augment.basic import to_float
from holdfast.corruptions import corrupt, corruption_names, example_grid, find_corruption, to_bytes
from holdfast.data.corruption_sets import open_corrupted
from holdfast.data.images import png
from holdfast.data.loaders import make_loader
from holdfast.data.splits import Split
from holdfast.devices import autocast, exact
from holdfast.errors import HoldfastError, require
from holdfast.metrics import bounded_mean, mcnemar
from holdfast.module_state import evaluating
from holdfast.parts import CORRUPTIONS
from holdfast.rng import derive
from holdfast.train.evaluate import predict
from holdfast.types import Batch, Finding

if TYPE_CHECKING:
    from holdfast.audits.checks.corruptions import Corruptions

EIGHT: Final = tuple(CORRUPTIONS[name].label for name in corruption_names("imgaug"))
SHOWN: Final = (1.0, 2.0)
ALEXNET: Final[Mapping[str, float]] = {
    "gaussian-noise": 0.886428, "shot-noise": 0.894468, "impulse-noise": 0.922640, "defocus-blur": 0.819880,
    "glass-blur": 0.826268, "motion-blur": 0.785948, "zoom-blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic": 0.646056, "pixelate": 0.717840,
    "jpeg": 0.606500,
}  # fmt: skip
"""AlexNet's error on ImageNet-C, mean of the five severities: the unit of ImageNet-C's mean corruption error."""


share = partial(accuracy, check="corruptions", name="corruption_accuracy")


def corrupted_accuracy(subject: Subject, told: Corruptions) -> tuple[Finding, ...]:
    channels = subject.data.shape[0]
    if channels not in (1, 3):
        reason = f"corruptions are made for grey and RGB images, and these have {channels} channels"
        return (Finding("corruptions", "corruption_accuracy", None, 0, evidence={"reason": reason}),)
    strengths = told.strengths
    bench = _Bench(subject, told)
    right = bench.measure(EIGHT_PASS)
    found = list(_by_strength(bench, right, [f"{s:g}" for s in strengths]))
    if told.imagenet_c:
        found += by_severity(bench.measure("imagenet-c"), bench.settings, family=GENERATED, baseline=told.baseline)
    for (name, at), own in bench.measure("strength").items():
        found.append(share(own, {"corruption": name, "strength": at}, settings=bench.settings))
    if further := bench.measure("severity"):
        found += by_severity(further, bench.settings, family=CHOSEN, baseline=None)
    if told.official is not None:
        found += official_set(subject, told.official, baseline=told.baseline)
    evidence = {
        "examples": examples(subject, bench.index),
        "verdicts": encode(bench.index, failures(bench.correct, right, f"{min(strengths):g}")),
    }
    found.append(Finding("corruptions", "examples", None, 0, evidence=evidence))
    return tuple(found)


EIGHT_PASS: Final = "eight"
TOGETHER: Final = 4
"""Batches of a block, which share their generators: it takes so many for shards to divide them."""


def ways(told: Corruptions) -> dict[str, dict[Key, dict[str, Any]]]:
    """What :func:`corrupt` is told of each corruption, by the part of the check that measures it."""
    severities = sorted(set(told.severities))
    made: dict[str, dict[Key, dict[str, Any]]] = {
        EIGHT_PASS: {(name, f"{s:g}"): {"strength": s} for name in EIGHT for s in told.strengths},
        "imagenet-c": {
            (name, str(s)): {"severity": s, "frost_folder": told.frost_folder}
            for name in corruption_names("imagenet-c")
            for s in severities
            if told.imagenet_c
        },
        "strength": {},
        "severity": {},
    }
    for part in map(find_corruption, told.kinds):  # as each declares
        levels = told.strengths if part.scale == "strength" else severities
        made[part.scale] |= {(part.name, f"{level:g}"): {part.scale: level} for level in levels}
    return made


def sample_passes(subject: Subject, told: Corruptions) -> list[SamplePass]:
    """All but published sets: these are other images, of which there are as many again for every corruption."""
    if subject.data.shape[0] not in (1, 3):
        return []
    bench = _Bench(subject, told)
    return [bench.sample_pass(part) for part, own in bench.ways.items() if own]


class _Bench:
    def __init__(self, subject: Subject, told: Corruptions) -> None:
        require(len(subject.split) > 0, f"{subject.data.name} has no test images to corrupt")
        images = told.images or told.usual_images(subject.device.type)
        self.subject, self.ways = subject, ways(told)
        self.index = draw(len(subject.split), images, subject.seed, "corruptions/images")
        self.settings: dict[str, Any] = {"images": len(self.index), "batch_size": subject.batch_size}
        self.settings |= {"device": subject.device.type, "precision": subject.precision, "seed": subject.seed}

    @cached_property
    def correct(self) -> Tensor:
        return self.subject.predictions.correct[self.index]

    def measure(self, part: str) -> dict[Key, Tensor]:
        """(N,) whether each image is still recognised under each corruption of a part."""
        if not self.ways[part]:
            return {}
        rows = self.subject.rows(self.sample_pass(part))
        return {key: rows[" ".join(key)] for key in self.ways[part]}

    def sample_pass(self, part: str) -> SamplePass:
        """A batch is read once and corrupted in all ways of a part.

        In a block every way has a generator of its own, seeded by the name of the corruption, so that its strengths
        share their draws. Nothing is read from the device before the end.
        """
        subject, made, device = self.subject, self.ways[part], self.subject.device

        @torch.no_grad()
        def compute(blocks: Sequence[int]) -> Iterator[Rows]:
            batches = subject.loader.batches(one.order(blocks))
            for block in blocks:
                seeds = {key: block_seed(subject.seed, f"corruptions/{key[0]}", block) for key in made}
                draws = {key: torch.Generator(device).manual_seed(seed) for key, seed in seeds.items()}
                own = islice(batches, -(-len(one.of(block)) // subject.batch_size))
                parts = [self._right(batch, made, draws) for batch in own]
                yield {" ".join(key): torch.cat([part[key] for part in parts]) for key in made}

        about = {"ways": [[*key, level] for key, level in made.items()]}
        size = TOGETHER * subject.batch_size
        one = SamplePass(f"corruptions-{part}", self.index, size, compute, 3.0 * len(made), about)
        return one

    def _right(
        self, batch: Batch, made: Mapping[Key, Mapping[str, Any]], draws: Mapping[Key, torch.Generator]
    ) -> dict[Key, Tensor]:
        """(B,) whether each image of a batch is still recognised, by corruption."""
        subject, device, right = self.subject, self.subject.device, {}
        x = to_float(batch.x)
        with evaluating(subject.model):
            for key, level in made.items():
                with exact(device, search=True):  # blurs and warps are matrix products, which TF32 would round
                    moved = corrupt(x, key[0], generator=draws[key], **level)
                with autocast(subject.precision, device):
                    right[key] = subject.model(moved).argmax(1) == batch.y
        return right


def failures(clean: Tensor, right: Mapping[Key, Tensor], strength: str) -> list[str]:
    """Under which corruptions of a strength each image is lost; that it is wrong as it is, or right under all."""
    said = []
    for i, known in enumerate(clean.tolist()):
        lost = [name for (name, own), values in right.items() if own == strength and not values[i]]
        said.append(f"wrong under {', '.join(lost)}" if known and lost else RIGHT if known else WRONG)
    return said


def _by_strength(bench: _Bench, right: Mapping[Key, Tensor], strengths: Sequence[str]) -> Iterator[Finding]:
    """Accuracy and what it loses, under each of the eight and in the mean; right: (N,) on the same images as clean.

    Each accuracy keeps which images it counts and which are right, so that models can be compared on them.
    """

    def drop(name: str, right: Tensor, where: dict[str, str], evidence: Mapping[str, Any]) -> Finding:
        lost = bounded_mean(bench.correct.double() - right, (-1.0, 1.0), extra=1)
        return Finding("corruptions", name, lost.value, lost.n, lost.low, lost.high, where, bench.settings, evidence)

    yield share(bench.correct, {"corruption": "none"}, settings=bench.settings)
    for (name, strength), own in right.items():
        where = {"corruption": name, "strength": strength}
        answers = pack(bench.index, own, len(bench.subject.split))
        yield share(own, where, settings=bench.settings, evidence={ANSWERS: answers})
        yield drop("corruption_drop", own.double(), where, {"mcnemar_p": mcnemar(bench.correct, own).p})
    for strength in strengths:
        every = torch.stack([own for key, own in right.items() if key[1] == strength]).double().mean(0)
        yield mean("mean_corruption_accuracy", every, {"strength": strength}, bench.settings)
        yield drop("mean_corruption_drop", every, {"strength": strength}, {})


@torch.no_grad()
def examples(subject: Subject, index: Tensor) -> list[dict[str, Any]]:
    """One image under each of the eight, with what the model says: an image that it recognises, if there is one."""
    seen, classes, device = subject.predictions, subject.data.classes, subject.device
    known = index[seen.correct[index]]
    position = int(known[0] if len(known) else index[0])
    x = to_float(subject.split.read(torch.tensor([position]))).to(device)
    generator = torch.Generator(device).manual_seed(derive(subject.seed, "corruptions/examples"))
    with exact(device, search=True):
        grid = example_grid(x[0], generator=generator, strengths=SHOWN)
    pictures = torch.cat([x, grid.images.flatten(0, 1)])
    with evaluating(subject.model), autocast(subject.precision, device):
        confidence, prediction = subject.model(pictures).float().softmax(1).max(1)
    titles = [("none", "0"), *((name, f"{s:g}") for name in grid.names for s in grid.strengths)]
    answers = zip(titles, to_bytes(pictures.cpu()), prediction.tolist(), confidence.tolist(), strict=True)
    truth = classes[int(seen.labels[position])]
    return [
        {"png": png(image), "corruption": name, "strength": strength, "label": truth}
        | {"prediction": classes[label], "confidence": sure}
        for (name, strength), image, label, sure in answers
    ]


GENERATED: Final = "imagenet-c"
"""The family of ImageNet-C's corruptions as made here, unlike the published sets."""
CHOSEN: Final = "chosen"
KEPT: Final = corruption_names("imagenet-c", extra=False)
"""The fifteen that published means are taken over."""

Key = tuple[str, str]
"""A corruption, and its strength or severity as text."""


def by_severity(
    right: Mapping[Key, Tensor], settings: Mapping[str, Any], *, family: str, baseline: Mapping[str, float] | None
) -> list[Finding]:
    """Accuracy of each corruption at each severity, its error over the severities, and means over corruptions.

    The images are the same in all of them, so a mean's interval is taken over images and not over answers.
    """
    made = [
        share(own, {"family": family, "corruption": name, "severity": severity}, settings=settings)
        for (name, severity), own in right.items()
    ]
    errors: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for name, _ in right):
        errors[name] = 1 - torch.stack([own for key, own in right.items() if key[0] == name]).double().mean(0)
        made.append(mean("corruption_error", errors[name], {"family": family, "corruption": name}, settings))
    made.append(_mean_error(errors, {"family": family}, settings))
    fifteen = {name: own for name, own in errors.items() if spelled(name) in KEPT}
    if 0 < len(fifteen) < len(errors):
        made.append(_mean_error(fifteen, {"family": family, "over": "without the extra four"}, settings))
    if baseline is not None:
        units = {name: baseline[spelled(name)] for name in errors if spelled(name) in baseline}
        known = ", ".join(map(spelled, errors))
        require(bool(units), f"the baseline has none of the corruptions measured: {known}; got {list(baseline)}")
        relative = {name: errors[name] / unit for name, unit in units.items()}
        most = sum(1 / unit for unit in units.values()) / len(units)
        made.append(_mean_error(relative, {"family": family, "relative to": "baseline"}, settings, most))
    return made


def _mean_error(
    errors: Mapping[str, Tensor], where: dict[str, str], settings: Mapping[str, Any], most: float = 1.0
) -> Finding:
    """Mean over corruptions; of sets that differ in size there is no pairing, and no interval."""
    parts, evidence = list(errors.values()), {"over": [spelled(name) for name in errors]}
    if len({len(part) for part in parts}) == 1:
        return replace(mean("mce", torch.stack(parts).mean(0), where, settings, most), evidence=evidence)
    value, n = sum(float(part.mean()) for part in parts) / len(parts), min(len(part) for part in parts)
    return Finding("corruptions", "mce", value, n, None, None, where, settings, evidence)


def official_set(subject: Subject, folder: str | Path, *, baseline: Mapping[str, float] | None = None) -> list[Finding]:
    opened = open_corrupted(folder, classes=subject.data.classes)
    right = {
        (spelled(name), str(severity)): _right(subject, opened.split(name, severity), opened.name)
        for name in opened.corruptions
        for severity in opened.severities
    }
    settings = {"set": opened.name, "images": max(map(len, right.values())), "precision": subject.precision}
    return by_severity(right, settings, family=opened.name, baseline=baseline)


def _right(subject: Subject, split: Split, name: str) -> Tensor:
    """(N,) whether the model is right on the images of a split of the same size and classes."""
    require(
        split.shape == subject.data.shape,
        f"{name} has images of {split.shape} (channels, height, width), and {subject.data.name} of "
        f"{subject.data.shape}; give the set that belongs to the data",
    )
    most = int(split.labels.max())
    require(
        most < subject.data.num_classes,
        f"{name} has label {most}, and {subject.data.name} {subject.data.num_classes} classes; "
        "give the set that belongs to the data",
    )
    loader = make_loader(split, batch_size=subject.batch_size, device=subject.device, workers=subject.workers)
    return predict(subject.model, split, loader, device=subject.device, precision=subject.precision).correct.cpu()


def mean(name: str, values: Tensor, where: dict[str, str], settings: Mapping[str, Any], most: float = 1.0) -> Finding:
    """A mean over images of numbers from 0 to ``most``."""
    found = bounded_mean(values, (0.0, most))
    return Finding("corruptions", name, found.value, found.n, found.low, found.high, where, settings)


def spelled(name: str) -> str:
    """A published file's name as this package spells it.

    >>> spelled("gaussian_noise"), spelled("elastic_transform")
    ('gaussian-noise', 'elastic')
    """
    try:
        return find_corruption(name, scale="severity").name
    except HoldfastError:  # a set may hold corruptions that nobody registered
        return name.replace("_", "-")
