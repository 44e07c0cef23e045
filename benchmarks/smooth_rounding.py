"""Does smooth rounding of the input mask gradients? Attacks with its gradient, and with the identity's (BPDA).

    python benchmarks/smooth_rounding.py [--out FILE]

A small network on the 8 × 8 digits, behind roundings of its input. An attack that takes the identity for the rounding
in the backward pass knows where the model rounds; ``averaged`` is the mean gradient over random shifts of the image, as
the check ``attacks`` measures it (pgd-averaged), and knows nothing. Where both find more than plain attacks, gradients
are masked.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import write_result
from torch import Tensor, nn

from holdfast.attacks import apgd, pgd
from holdfast.data import load
from holdfast.train import fit

IMAGES = 200
RADII = (16, 32)
"""In 1/255."""


def sine(levels: int) -> Callable[[Tensor], Tensor]:
    turns = 2 * math.pi * levels
    return lambda x: x - torch.sin(turns * x) / turns


def tanh(levels: int, steepness: float) -> Callable[[Tensor], Tensor]:
    def rounded(x: Tensor) -> Tensor:
        low = torch.floor(levels * x)
        step = torch.tanh(steepness * (levels * x - low - 0.5)) / (2 * math.tanh(steepness / 2))
        return (low + 0.5 + step) / levels

    return rounded


ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sine, 16 levels": sine(16),
    "tanh, 16 levels, steepness 10": tanh(16, 10),
    "tanh, 16 levels, steepness 30": tanh(16, 30),
    "hard, 16 levels": lambda x: torch.round(16 * x) / 16,
}


class RoundedModel(nn.Module):
    def __init__(self, net: nn.Module, rounding: Callable[[Tensor], Tensor], *, through: bool = False) -> None:
        super().__init__()
        self.net, self.rounding, self.through = net, rounding, through

    def forward(self, x: Tensor) -> Tensor:
        moved = self.rounding(x)
        return self.net(x + (moved - x).detach() if self.through else moved)  # type: ignore[no-any-return]


class Averaged(nn.Module):
    """Mean logits over random shifts of the pixel values by up to the radius."""

    def __init__(self, model: nn.Module, radius: float, copies: int = 8) -> None:
        super().__init__()
        self.model, self.radius, self.copies = model, radius, copies

    def forward(self, x: Tensor) -> Tensor:
        many = x.repeat(self.copies, 1, 1, 1)
        shifted = (many + self.radius * (2 * torch.rand(many.shape) - 1)).clamp(0, 1)
        return self.model(shifted).view(self.copies, len(x), -1).mean(0)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    digits = load("digits", image_size=8)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    how: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "batch_size": 128, "eval_every": 0, "progress": False}
    model = fit(digits, model=net, epochs=25, device="cpu", **how).model.eval()
    assert digits.test is not None
    x, y = digits.test.read(torch.arange(IMAGES)).float() / 255, digits.test.labels[:IMAGES]
    figures: dict[str, Any] = {}
    for name, rounding in ROUNDINGS.items():
        honest, through = (RoundedModel(model, rounding, through=way) for way in (False, True))

        def wrong(images: Tensor, honest: nn.Module = honest) -> Tensor:
            with torch.no_grad():
                return honest(images).argmax(1) != y

        figures[name] = {"clean": float(wrong(x).double().mean())}
        for radius in RADII:
            r = radius / 255
            either = {
                way: wrong(pgd(via, x, y, radius=r))
                | wrong(apgd(via, x, y, radius=r, steps=20, generator=torch.Generator().manual_seed(0)))
                for way, via in (("plain", honest), ("identity", through))
            }
            found = {**either, "averaged": wrong(pgd(Averaged(honest, r), x, y, radius=r, keep="last"))}
            figures[name][f"{radius}/255"] = {way: float(errors.double().mean()) for way, errors in found.items()}
        print(name, figures[name], flush=True)
    if args.out is not None:
        write_result(args.out, figures, gpu=False)


if __name__ == "__main__":
    main()
