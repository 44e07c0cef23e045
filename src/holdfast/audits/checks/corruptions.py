"""Check ``corruptions``: how well the model does when images are noisy, blurred, turned, compressed or hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.audits.checks.severities import Key, by_severity, mean, official_set, share
from holdfast.audits.checks.verdicts import ANSWERS, RIGHT, WRONG, encode, pack
from holdfast.audits.subject import Subject
from holdfast.augment.basic import to_float
from holdfast.corruptions import SEVERITIES, corrupt, corruption_names, example_grid, to_bytes
from holdfast.devices import autocast, kernels
from holdfast.errors import require
from holdfast.metrics import bounded_mean, mcnemar
from holdfast.module_state import evaluating
from holdfast.parts import CORRUPTIONS
from holdfast.png import png
from holdfast.rng import derive
from holdfast.types import Finding

EIGHT: Final = tuple(CORRUPTIONS[name].label for name in corruption_names("imgaug"))
IMAGES: Final = {"cuda": 10_000, "cpu": 1000}
"""Test images to corrupt, by device."""
STRENGTHS: Final = (1.0, 2.0)
"""1 is the paper's setting."""
ALEXNET: Final[Mapping[str, float]] = {
    "gaussian-noise": 0.886428, "shot-noise": 0.894468, "impulse-noise": 0.922640, "defocus-blur": 0.819880,
    "glass-blur": 0.826268, "motion-blur": 0.785948, "zoom-blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic": 0.646056, "pixelate": 0.717840,
    "jpeg": 0.606500,
}  # fmt: skip
"""AlexNet's error on ImageNet-C, mean of the five severities: the unit of ImageNet-C's mean corruption error."""


def corruptions(
    subject: Subject,
    *,
    images: int | None = None,
    strengths: Sequence[float] = STRENGTHS,
    nineteen: bool = False,
    severities: Sequence[int] = SEVERITIES,
    official: str | Path | None = None,
    baseline: Mapping[str, float] | None = None,
    frost_folder: str | Path | None = None,
) -> tuple[Finding, ...]:
    """Accuracy under each of the eight corruptions of BiasAdv at several strengths, their mean, and what they cost.

    images: how many test images, drawn with the seed; None is at most 10,000 on a GPU and 1,000 on a CPU.
    nineteen: also the nineteen corruptions of CIFAR-10-C and ImageNet-C at ``severities``, with mean corruption error.
    official: a folder of CIFAR-10-C, CIFAR-100-C or ImageNet-C, measured as it is.
    baseline: another model's mean error under each corruption, such as ALEXNET; errors are then also relative to it.
    frost_folder: photographs for the corruption frost; by default textures are grown from noise.
    """
    channels = subject.data.shape[0]
    if channels not in (1, 3):
        reason = f"corruptions are made for grey and RGB images, and these have {channels} channels"
        return (Finding("corruptions", "corruption_accuracy", None, 0, evidence={"reason": reason}),)
    require(
        len(strengths) > 0 and all(0 < s < float("inf") for s in strengths),
        f"strengths must be finite numbers > 0, got {list(strengths)}",
    )
    bench = _Bench(subject, IMAGES[subject.device.type] if images is None else images)
    eight = {(name, f"{s:g}"): _by_strength(name, s) for name in EIGHT for s in strengths}
    right = bench.measure(eight)
    eight_found = _Eight(bench.correct, right, tuple(f"{s:g}" for s in strengths), bench.settings)
    found = [bench.with_answers(f, right) for f in eight_found.all()]
    if nineteen:
        many = {
            (name, str(s)): _by_severity(name, s, frost_folder)
            for name in corruption_names("imagenet-c")
            for s in sorted(set(severities))
        }
        found += by_severity(bench.measure(many), bench.settings, family="nineteen", baseline=baseline)
    if official is not None:
        found += official_set(subject, official, baseline=baseline)
    evidence = {
        "examples": examples(subject, bench.index),
        "verdicts": encode(bench.index, failures(bench.correct, right, f"{min(strengths):g}")),
    }
    found.append(Finding("corruptions", "examples", None, 0, evidence=evidence))
    return tuple(found)


Corruption = Callable[..., Tensor]


def _by_strength(name: str, strength: float) -> Corruption:
    return lambda x, generator: corrupt(x, name, strength=strength, generator=generator)


def _by_severity(name: str, severity: int, frost_folder: str | Path | None) -> Corruption:
    return lambda x, generator: corrupt(x, name, severity=severity, generator=generator, frost_folder=frost_folder)


class _Bench:
    """The test images under corruption."""

    def __init__(self, subject: Subject, images: int) -> None:
        require(images >= 1, f"images must be >= 1, got {images}")
        require(len(subject.split) > 0, f"{subject.data.name} has no test images to corrupt")
        generator = torch.Generator().manual_seed(derive(subject.seed, "corruptions/images"))
        self.subject = subject
        self.index = torch.randperm(len(subject.split), generator=generator)[:images].sort().values
        self.correct = subject.predictions.correct[self.index]
        self.settings: dict[str, Any] = {
            "images": len(self.index),
            "batch_size": subject.batch_size,
            "device": subject.device.type,
            "precision": subject.precision,
            "seed": subject.seed,
        }

    @torch.no_grad()
    def measure(self, made: Mapping[Key, Corruption]) -> dict[Key, Tensor]:
        """(N,) whether each image is still recognised under each corruption.

        A batch is read once and corrupted in all ways; every way has a generator of its own, seeded by the name of the
        corruption, so that its strengths share their draws. Nothing is read from the device before the end.
        """
        subject, device = self.subject, self.subject.device
        draws = {
            key: torch.Generator(device).manual_seed(derive(subject.seed, f"corruptions/{key[0]}")) for key in made
        }
        right: dict[Key, list[Tensor]] = {key: [] for key in made}
        with evaluating(subject.model):
            for batch in subject.loader.batches(self.index):
                x = to_float(batch.x)
                for key, change in made.items():
                    with exact(device):
                        moved = change(x, generator=draws[key])
                    with autocast(subject.precision, device):
                        logits = subject.model(moved)
                    right[key].append(logits.argmax(1) == batch.y)
        return {key: torch.cat(parts).cpu() for key, parts in right.items()}

    def with_answers(self, found: Finding, right: Mapping[Key, Tensor]) -> Finding:
        """An accuracy with which images it counts and which are right, so that models can be compared on them."""
        flags = right.get((found.where.get("corruption", ""), found.where.get("strength", "")))
        if found.name != "corruption_accuracy" or flags is None:
            return found
        return replace(found, evidence={**found.evidence, ANSWERS: pack(self.index, flags, len(self.subject.split))})


def exact(device: torch.device) -> AbstractContextManager[None]:
    """Full float32 while images are made: blurs and warps are matrix products, which TF32 would round."""
    return kernels("fp32", deterministic=False) if device.type == "cuda" else nullcontext()


def failures(clean: Tensor, right: Mapping[Key, Tensor], strength: str) -> list[str]:
    """Under which corruptions of a strength each image is lost; that it is wrong as it is, or right under all."""
    said = []
    for i, known in enumerate(clean.tolist()):
        lost = [name for (name, own), values in right.items() if own == strength and not values[i]]
        said.append(f"wrong under {', '.join(lost)}" if known and lost else RIGHT if known else WRONG)
    return said


@dataclass(frozen=True)
class _Eight:
    """The eight on the same images as clean: right (N,) by corruption and strength."""

    clean: Tensor
    right: Mapping[Key, Tensor]
    strengths: tuple[str, ...]
    settings: Mapping[str, Any]

    def all(self) -> Iterator[Finding]:
        yield share(self.clean, {"corruption": "none"}, self.settings)
        for (name, strength), right in self.right.items():
            where = {"corruption": name, "strength": strength}
            yield share(right, where, self.settings)
            yield self.drop("corruption_drop", right.double(), where, mcnemar(self.clean, right).p)
        for strength in self.strengths:
            every = torch.stack([right for key, right in self.right.items() if key[1] == strength]).double().mean(0)
            where = {"strength": strength}
            yield mean("mean_corruption_accuracy", every, where, self.settings)
            yield self.drop("mean_corruption_drop", every, where)

    def drop(self, name: str, right: Tensor, where: dict[str, str], p: float | None = None) -> Finding:
        """How much accuracy is lost, image by image on the same ones."""
        evidence = {} if p is None else {"mcnemar_p": p}
        found = bounded_mean(self.clean.double() - right, (-1.0, 1.0), extra=1)
        return Finding("corruptions", name, found.value, found.n, found.low, found.high, where, self.settings, evidence)


@torch.no_grad()
def examples(subject: Subject, index: Tensor) -> list[dict[str, Any]]:
    """One image under each of the eight, with what the model says: an image that it recognises, if there is one."""
    seen, classes, device = subject.predictions, subject.data.classes, subject.device
    known = index[seen.correct[index]]
    position = int(known[0] if len(known) else index[0])
    x = to_float(subject.split.read(torch.tensor([position]))).to(device)
    generator = torch.Generator(device).manual_seed(derive(subject.seed, "corruptions/examples"))
    with exact(device):
        grid = example_grid(x[0], generator=generator, strengths=STRENGTHS)
    pictures = torch.cat([x, grid.images.flatten(0, 1)])
    with evaluating(subject.model), autocast(subject.precision, device):
        confidence, prediction = subject.model(pictures).float().softmax(1).max(1)
    titles = [("none", "0"), *((name, f"{s:g}") for name in grid.names for s in grid.strengths)]
    drawn = to_bytes(pictures.cpu())
    return [
        {
            "png": png(image),
            "corruption": name,
            "strength": strength,
            "label": classes[int(seen.labels[position])],
            "prediction": classes[label],
            "confidence": sure,
        }
        for (name, strength), image, label, sure in zip(
            titles, drawn, prediction.tolist(), confidence.tolist(), strict=True
        )
    ]
