"""What BiasAdv's attack does to images: accuracy of both models before and after it, and pictures.

    python papers/biasadv/look.py --root DATA --device cuda --epochs 40 --out runs/look
    python papers/biasadv/look.py --data coloured-digits --model convnet --epochs 5 --out runs/look-digits

Trains LfF+BiasAdv, then perturbs training images by BiasAdv's attack and by its two controls, noise of the same size
and an attack on the model itself (AdvProp). OUT/look.json has, of bias-aligned and of bias-conflicting images, how many
each model gets right, and how many the biased model alone gets wrong, which is what the attack is for. OUT/look.png has
a column per image: the image, what the attack made of it, and their difference ten times enlarged.
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

from holdfast.attacks import bias_adversarial, noise
from holdfast.train import fit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from record import write_result

PART = 500
"""Images per pass."""
ENLARGED = 3
"""Pixels of the picture per pixel of an image."""


def moved(x: Tensor, y: Tensor, f: nn.Module, g: nn.Module, args: argparse.Namespace) -> dict[str, Tensor]:
    """The images as they are, and perturbed in each way."""
    ball: dict[str, Any] = {"radius": args.radius, "norm": args.norm}
    attack = {**ball, "steps": args.steps}
    generator = torch.Generator(x.device).manual_seed(0)
    return {
        "as they are": x,
        "BiasAdv": bias_adversarial(x, y, f, g, lam=args.lam, **attack),
        "BiasAdv, λ 0": bias_adversarial(x, y, f, g, lam=0.0, **attack),
        "AdvProp": bias_adversarial(x, y, f, f, lam=0.0, **attack),
        "noise": noise(x, generator=generator, **ball),
    }


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x).argmax(1) == y


def look(run: Any, args: argparse.Namespace) -> tuple[dict[str, Any], Tensor]:
    """(Shares of images by perturbation and bias, pictures.)"""
    f, g, split = run.model.eval(), run.state.biased.eval(), run.data.train
    device = next(f.parameters()).device
    aligned = split.groups == split.labels
    generator = torch.Generator().manual_seed(0)
    figures: dict[str, Any] = {}
    pictures: list[Tensor] = []
    for bias, which in (("bias-aligned", aligned), ("bias-conflicting", ~aligned)):
        own = which.nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)[: args.images]]
        counted: dict[str, list[Tensor]] = {}
        for index in own.split(PART):
            x, y = split.read(index).to(device).float() / 255, split.labels[index].to(device)
            ways = moved(x, y, f, g, args)
            for way, images in ways.items():
                of_f, of_g = right(f, images, y), right(g, images, y)
                length = (images - x).flatten(1).norm(dim=1)
                counted.setdefault(way, []).append(torch.stack([of_f, of_g, of_f & ~of_g, length]).cpu())
            if len(pictures) < 2:
                shown = ways["BiasAdv"][:8]
                pictures.append(torch.cat([x[:8], shown, ((shown - x[:8]) * 10 + 0.5).clamp(0, 1)]).cpu())
        names = ("model right", "biased model right", "only the biased model wrong", "mean length of the perturbation")
        figures[bias] = {"n": len(own)} | {
            way: dict(zip(names, torch.cat(parts, 1).double().mean(1).tolist(), strict=True))
            for way, parts in counted.items()
        }
    return figures, torch.cat(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="corrupted-cifar10-dfa")
    parser.add_argument("--conflict", type=float, help="share of bias-conflicting images (default: 0.05)")
    parser.add_argument("--root", help="folder of cifar10.npz")
    parser.add_argument("--model", default="torchvision:resnet18")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--images", type=int, default=2000, help="of each kind")
    parser.add_argument("--radius", type=float, default=0.7)
    parser.add_argument("--norm", default="l2")
    parser.add_argument("--lam", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--beta", type=float, default=1.5)
    parser.add_argument("--batch-norm", default="auxiliary")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    attack = {"radius": args.radius, "norm": args.norm, "lam": args.lam, "steps": args.steps, "beta": args.beta}
    fast = {"precision": "bf16", "channels_last": True} if args.device != "cpu" else {}
    coloured: dict[str, Any] = {"crop": 4, "flip": True} if args.data != "coloured-digits" else {}
    run = fit(
        args.data,
        method={"name": "lff+biasadv", "batch_norm": args.batch_norm, **attack},
        model=args.model,
        root=args.root,
        conflict=args.conflict,
        optimizer="adam",
        lr=1e-3,
        weight_decay=1e-4,
        schedule="step",
        step_size=max(1, args.epochs // 5),
        gamma=0.5,
        epochs=args.epochs,
        batch_size=128,
        eval_every=0,
        seed=args.seed,
        device=args.device,
        progress=False,
        **fast,
        **coloured,
    )
    figures, pictures = look(run, args)
    args.out.mkdir(parents=True, exist_ok=True)
    write_result(args.out / "look.json", figures, gpu=args.device != "cpu")
    grid = make_grid(pictures, nrow=8)
    save_image(grid.repeat_interleave(ENLARGED, 1).repeat_interleave(ENLARGED, 2), args.out / "look.png")
    print(json.dumps(figures, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
