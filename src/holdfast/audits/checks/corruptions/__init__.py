"""Check ``corruptions``: its declaration. The numbers are made in corrupted_accuracy.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.parts import PYTHON_ONLY, check
from holdfast.settings.fields import Bounded, Within
from holdfast.types import Finding, Measure, Needs, Unit

if TYPE_CHECKING:
    from holdfast.audits.sample_passes import SamplePass
    from holdfast.audits.subject import Subject

STRENGTHS: Final = (1.0, 2.0)
"""1 is the paper's setting."""
SEVERITIES: Final = (1, 2, 3, 4, 5)


@check(
    "corruptions",
    title="Corruptions",
    about="Accuracy when images are noisy, blurred, turned, compressed or partly hidden.",
    needs=Needs.IMAGES | Needs.MODEL,
    measures=(
        Measure(
            "mean_corruption_accuracy",
            "accuracy under corruptions",
            gate=True,
            headline=True,
            headline_where={"strength": "1"},
            drop="mean_corruption_drop",
            part="strength",
            usual_part="1",
            about="Accuracy on the same test images with noise, blur, rotation and the like, averaged over the kinds.",
            changed_images=True,
            remedies=("holdfast train --data DATA --auto-augment trivialaugment # trains on randomly changed images",),
        ),
        Measure(
            "mean_corruption_drop",
            "drop under corruptions",
            Unit.POINTS,
            "lower",
            about="How many points of clean accuracy corruptions cost on average, image by image.",
        ),
        Measure(
            "corruption_accuracy",
            "accuracy under one corruption",
            about="Accuracy on the same test images under one corruption.",
        ),
        Measure(
            "corruption_drop",
            "drop under one corruption",
            Unit.POINTS,
            "lower",
            about="How many points of clean accuracy one corruption costs.",
        ),
        Measure(
            "corruption_error",
            "error under one corruption",
            better="lower",
            about="The share of images that is wrong under one corruption, averaged over its severities.",
        ),
        Measure(
            "mce",
            "mean corruption error",
            better="lower",
            headline=True,
            about="The error under corruptions, averaged over the kinds.",
        ),
    ),
    share=0.25,
    order=40,
)
@dataclass(frozen=True)
class Corruptions(Bounded):
    """Accuracy under each of the eight corruptions of BiasAdv at several strengths, their mean, and what they cost.

    images: how many test images, drawn with the seed; None is at most 10,000 on a GPU and 1,000 on a CPU.
    imagenet_c: also the nineteen corruptions of CIFAR-10-C and ImageNet-C at ``severities``, with their mean error.
    kinds: further corruptions by name, as ``holdfast list corruptions`` shows them, at ``severities`` or ``strengths``.
    official: a folder of CIFAR-10-C, CIFAR-100-C or ImageNet-C, read as published.
    baseline: another model's mean error under each corruption, such as ALEXNET; errors are then also relative to it.
    frost_folder: photographs for the corruption frost; by default textures are grown from noise.
    """

    images: Annotated[int | None, Within(1)] = None
    strengths: Annotated[tuple[float, ...], Within(0, ends="()")] = STRENGTHS
    kinds: tuple[str, ...] = ()
    imagenet_c: bool = False
    severities: Annotated[tuple[int, ...], Within(1, 5, "..")] = SEVERITIES
    official: str | None = None
    frost_folder: str | None = None
    baseline: Mapping[str, float] | None = field(default=None, metadata=PYTHON_ONLY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds:
            from holdfast.corruptions import find_corruption

            for name in self.kinds:
                find_corruption(name)

    def gate_parts(self) -> tuple[str, ...]:
        return tuple(f"{strength:g}" for strength in self.strengths)

    def passes(self, device: str) -> float:
        ways = (8 + len(self.kinds)) * len(self.strengths) + 19 * len(self.severities) * self.imagenet_c
        return 3.0 * ways  # making a corrupted image takes about as long as two forward passes

    def usual_images(self, device: str) -> int:
        return 10_000 if device == "cuda" else 1000

    def sample_passes(self, subject: Subject) -> list[SamplePass]:
        from holdfast.audits.checks.corruptions.corrupted_accuracy import sample_passes

        return sample_passes(subject, self)

    def run(self, subject: Subject) -> tuple[Finding, ...]:
        from holdfast.audits.checks.corruptions.corrupted_accuracy import corrupted_accuracy

        return corrupted_accuracy(subject, self)
