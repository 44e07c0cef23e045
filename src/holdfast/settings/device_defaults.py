"""Precision, memory layout and compilation where nobody says them: one pure function, from settings and what is known
of the device and the network. Open this file to change when a GPU trains in bf16, or when compiling is worth its time.

==================  ===========================================================================================
setting             ``auto`` is
==================  ===========================================================================================
``precision``       bf16 on a GPU that has it, else fp32
``channels_last``   on for a convolutional network on a GPU, else off
``compile``         on where all steps together save more time than compiling takes (:func:`break_even_steps`)
==================  ===========================================================================================

Why, and what was measured: docs/how-to/fast-by-default.md and docs/decisions/0015-fast-by-default.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from holdfast.settings.fields import build, flatten
from holdfast.settings.training import TrainSettings

DEVICE_KEYS = ("precision", "channels_last", "compile")
"""The settings that follow from the device where they are ``auto``."""

SAVED_PER_LAYER = 10e-6
SAVED_PER_ACTIVATION = 5.3e-13
"""Seconds that a compiled and captured bf16 step saves for each layer with weights, and for each number that such a
layer puts out. Compiling fuses what follows a layer: fewer kernels, and fewer passes over memory. Measured on one H200
with batch 128 (benchmarks/gpu_step.py --defaults): ResNet-18 with the CIFAR stem, 41 layers and 1.23 million numbers
per image, saves 0.49 of 2.97 ms; with the ImageNet stem and 0.10 million 0.42 of 1.61; the small convnet, 7 layers,
0.16 of 0.59, of which these two explain half."""
COMPILE_SECONDS = 4.0
COMPILE_SECONDS_PER_LAYER = 0.24
"""Seconds that compiling takes at all, and for each layer with weights and each size of batch: 23, 21 and 8 for the
same three networks with two sizes, on 16 cores."""


@dataclass(frozen=True)
class DeviceFacts:
    """What is known of the device, and of the network on it.

    bf16: whether the device computes in it. compiler: whether torch can compile for it here. convolutions: how many
    the network has. layers: its layers with weights. activations: numbers that these put out for one image.
    passes: forward and backward passes per step, which an ascent doubles. images: in the training split.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    bf16: bool = False
    compiler: bool = False
    convolutions: int = 0
    layers: int = 0
    activations: int = 0
    passes: float = 1.0
    images: int = 0


def open_on_device(settings: TrainSettings) -> list[str]:
    """Which settings are left to :func:`choose_for_device`.

    >>> open_on_device(build(TrainSettings, {"precision": "fp32"}))
    ['channels_last', 'compile']
    """
    flat = flatten(settings)
    return [key for key in DEVICE_KEYS if flat[key] == "auto"]


def break_even_steps(facts: DeviceFacts, batch_size: int) -> float:
    """After how many steps a compiled training is ahead: seconds to compile ÷ seconds saved per step.

    >>> resnet18 = DeviceFacts("cuda", bf16=True, compiler=True, layers=41, activations=1_230_000)
    >>> round(break_even_steps(resnet18, 128), -3)
    28000.0
    """
    if not facts.activations:  # nothing is known of the network
        return math.inf
    saved = SAVED_PER_LAYER * facts.layers + SAVED_PER_ACTIVATION * facts.activations * batch_size
    sizes = 1 + (facts.images % batch_size > 1)  # a smaller last batch is compiled by itself
    return (COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * facts.layers * sizes) / (saved * facts.passes)


def choose_for_device(settings: TrainSettings, facts: DeviceFacts) -> tuple[TrainSettings, dict[str, str]]:
    """(Settings in which nothing is ``auto`` that follows from the device, why each is what it is).

    Epochs and batch size have to be known.

    >>> given = build(TrainSettings, {"epochs": 30, "batch_size": 128})
    >>> gpu = DeviceFacts("cuda", bf16=True, compiler=True, convolutions=20, layers=41, activations=10**6, images=9)
    >>> chosen, _ = choose_for_device(given, gpu)
    >>> chosen.loop.precision, chosen.loop.channels_last, chosen.loop.compile
    ('bf16', 'on', 'off')
    >>> choose_for_device(given, DeviceFacts())[0].loop.precision
    'fp32'
    """
    left, flat, loop = open_on_device(settings), flatten(settings), settings.loop
    found = {
        "precision": _precision(facts),
        "channels_last": _layout(facts),
        "compile": _compile(facts, loop.epochs, loop.batch_size),
    }
    flat |= {key: found[key][0] for key in left}
    said = left if facts.device == "cuda" else [key for key in left if key == "precision"]
    return build(TrainSettings, flat), {key: found[key][1] for key in said}


def _precision(facts: DeviceFacts) -> tuple[str, str]:
    if facts.device == "cpu":
        return "fp32", "on a CPU"
    return ("bf16", "this GPU computes in it") if facts.bf16 else ("fp32", "this GPU does not compute in bf16")


def _layout(facts: DeviceFacts) -> tuple[str, str]:
    if facts.device == "cpu":
        return "off", "on a CPU"
    if facts.convolutions > 1:  # a transformer has one, which cuts the image into patches
        return "on", "a convolutional network on a GPU"
    return "off", "hardly any convolutions"


def _compile(facts: DeviceFacts, epochs: int, batch_size: int) -> tuple[str, str]:
    if facts.device == "cpu":
        return "off", "on a CPU"
    if not facts.compiler:
        return "off", "torch cannot compile this training here"
    steps, needed = epochs * math.ceil(facts.images / batch_size), break_even_steps(facts, batch_size)
    pays = steps > needed
    compared = f"{steps:,} steps are {'more' if pays else 'fewer'} than the {needed:,.0f} after which it pays"
    return ("on" if pays else "off"), compared if facts.activations else "what it would save is not known"
