"""Where models look (figure 2, in numbers): Grad-CAM on digits before a background that gives the class away.

    python papers/biasadv/gradcam.py --out runs/gradcam

Trains each method on the embedded digits, shrunk and set on stripes whose colour and direction go with the class in 95
of 100 training images. OUT/gradcam.json has, for bias-conflicting test images, how many each method gets right and how
much of the map of its prediction lies on the background. OUT/gradcam.png has a column per image: the image, and below
it the map of each method, in the order of METHODS, in red.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.utils import make_grid, save_image

from holdfast.audits.checks.saliency.grad_cam import grad_cam
from holdfast.data import Dataset, load
from holdfast.data.biased import background
from holdfast.train import fit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from record import write_result

MAIN_TEXT = {"lam": 1.0, "radius": 0.7, "steps": 5, "beta": 1.5, "batch_norm": "auxiliary"}
METHODS: dict[str, dict[str, Any]] = {
    "erm": {"name": "erm"},
    "jtt": {"name": "jtt", "first_epochs": 2, "up": 20},
    "lff": {"name": "lff"},
    "lff+biasadv": {"name": "lff+biasadv", **MAIN_TEXT},
    "logit-correction": {"name": "logit-correction"},
}
SIDE, KEEP = 24, 2 / 3
"""Of the picture, and the share of it that the digit's square has."""
SHOWN, ENLARGED = 8, 3


def on_background(maps: Tensor) -> Tensor:
    """(N,) share of each map (N, SIDE, SIDE) outside the digit's square; of those with anything in them.

    >>> round(float(on_background(torch.ones(1, SIDE, SIDE))), 4)  # a flat map: the share of its area
    0.5556
    """
    inner = round(SIDE * KEEP)
    first = (SIDE - inner) // 2
    whole = maps.sum((1, 2))
    inside = maps[:, first : first + inner, first : first + inner].sum((1, 2))
    return 1 - inside[whole > 0] / whole[whole > 0]


def shaded(x: Tensor, maps: Tensor) -> Tensor:
    """Images (N, 3, H, W), grey, with their maps in red."""
    grey = x.mean(1, keepdim=True).expand(-1, 3, -1, -1) * 0.6
    red = torch.tensor([1.0, 0.1, 0.1])[:, None, None] * maps[:, None]
    return grey * (1 - maps[:, None]) + red


def train(data: Dataset, method: dict[str, Any], seed: int, epochs: int) -> nn.Module:
    """With the settings of the recipe erm/coloured-digits."""
    how = {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.0, "warmup": 0.0, "batch_size": 64, "eval_every": 0}
    return fit(
        data, method=method, model="convnet", epochs=epochs, seed=seed, device="cpu", progress=False, **how
    ).model.eval()


def look(seeds: int, epochs: int) -> tuple[dict[str, Any], Tensor]:
    """(Per method and seed: accuracy and share of the maps on the background; pictures of the first seed.)"""
    data = background(load("digits", image_size=SIDE), conflict=0.05, seed=0, keep=KEEP)
    conflicting = (data.test.groups != data.test.labels).nonzero().flatten()
    x, y = data.test.read(conflicting).float() / 255, data.test.labels[conflicting]
    shown = torch.stack([(y == label).nonzero()[0, 0] for label in range(SHOWN)])
    pictures = [x[shown]]
    found: dict[str, Any] = {}
    for name, method in METHODS.items():
        own: dict[str, list[float]] = {"accuracy": [], "map on the background": []}
        for seed in range(seeds):
            model = train(data, method, seed, epochs)
            maps = grad_cam(model, x)
            with torch.no_grad():
                own["accuracy"].append(float((model(x).argmax(1) == y).double().mean()))
            own["map on the background"].append(float(on_background(maps).mean()))
            if seed == 0:
                pictures.append(shaded(x[shown], maps[shown]))
        found[name] = own
        print(f"{name}: {json.dumps(own)}", flush=True)
    return {"n": len(y), "bias-conflicting": found}, torch.cat(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    figures, pictures = look(args.seeds, args.epochs)
    args.out.mkdir(parents=True, exist_ok=True)
    write_result(args.out / "gradcam.json", figures, gpu=False)
    grid = make_grid(pictures, nrow=SHOWN)
    save_image(grid.repeat_interleave(ENLARGED, 1).repeat_interleave(ENLARGED, 2), args.out / "gradcam.png")


if __name__ == "__main__":
    main()
