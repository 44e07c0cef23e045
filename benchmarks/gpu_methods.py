"""What a step of each method costs on a GPU, over plain training: captured, batch 128, real CIFAR-10.

    python benchmarks/gpu_methods.py --root DATA [--family vicinal bias] [--precision bf16] [--out FILE]

vicinal: PreActResNet-18 (CIFAR stem), as in the paper on ALPS. bias: torchvision's ResNet-18, as in the paper on
BiasAdv, with its settings for CIFAR-10C. DATA holds cifar10.npz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from gpu_step import make_trainer, step_time
from record import write_result

from holdfast.data import Dataset, load

FAMILIES: dict[str, tuple[str, dict[str, dict[str, object]]]] = {
    "vicinal": (
        "cifar-preactresnet18",
        {
            name: {"name": name}
            for name in ("erm", "label-smoothing", "dropout", "gaussian", "mixup", "cutmix", "manifold-mixup", "alps")
        }
        | {"vat": {"name": "vat"}, "adversarial": {"name": "adversarial"}},
    ),
    "bias": (
        "torchvision:resnet18",
        {
            "erm": {"name": "erm"},
            "lff": {"name": "lff"},
            "erm+biasadv": {"name": "erm+biasadv"},
            "lff+biasadv": {"name": "lff+biasadv"},
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--family", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = load("cifar10", root=args.root)
    data = Dataset(data.name, data.classes, data.train.subset(torch.arange(4096)), None, data.test)
    figures: dict[str, dict[str, float]] = {}
    for family in args.family:
        net, methods = FAMILIES[family]
        plain = None
        for name, method in methods.items():
            if args.only and name not in ("erm", *args.only):
                continue
            values = {
                "method": method,
                "precision": args.precision,
                "channels_last": True,
                "compile": not args.no_compile,
            }
            if family == "bias":
                values |= {"optimizer": "adam", "weight_decay": 1e-4}
            trainer = make_trainer(data, net, values, epochs=1)
            trainer.run()
            step = step_time(trainer, repeats=100)
            plain = plain or step
            figures[f"{family}/{name}"] = {"step_ms": step, "over_erm": step / plain}
            print(f"{family:8} {name:16} {step:8.3f} ms   x{step / plain:.3f}", flush=True)
            del trainer
            torch.cuda.empty_cache()
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
