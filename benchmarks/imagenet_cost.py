"""What trainings of ImageNet's size cost: 1,281,167 images, 90 epochs, ResNet-50 at 224 px, plain and with SAM.

    python benchmarks/imagenet_cost.py [--out benchmarks/results/imagenet_cost.json]
    python benchmarks/imagenet_cost.py --measure [--out benchmarks/results/imagenet_cost_gpu.json]      on a GPU

Without --measure: from the step times of a ResNet-18 at 32 px that gpu_step.json has, and the arithmetic of both
networks, as if a GPU did as many operations per second on either. That is the least it can cost: pictures of 224 px
read and write more memory per operation. With --measure: the step itself, on noise that lies on the GPU; so without
reading and decoding files, which must keep up.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from record import ROOT, write_result
from torch.utils.flop_counter import FlopCounterMode

from holdfast.models import build_model

IMAGES, EPOCHS, BATCH = 1_281_167, 90, 256
NET, SMALL_NET = "torchvision:resnet50", "cifar-resnet18"
SMALL_BATCH = 128
"""Of gpu_step.py."""
STEPS = {
    "plain": {"precision": "bf16", "channels_last": True, "compile": True},
    "SAM": {"precision": "bf16", "channels_last": True, "compile": True, "ascent": "sam"},
}
SMALL_STEPS = {"plain": "bf16 compiled, captured", "SAM": "bf16 compiled, captured, SAM"}


def operations(net: str, size: int, classes: int) -> float:
    """Floating-point operations of one image's forward pass."""
    model = build_model(net, num_classes=classes, mean=(0.5,) * 3, std=(0.5,) * 3).model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        model(torch.zeros(1, 3, size, size))
    return float(counted.get_total_flops())


def cost(speed: float) -> dict[str, float]:
    """Of a training at so many images per second, on one GPU."""
    hours = IMAGES * EPOCHS / speed / 3600
    return {"images_per_second": speed, "hours_per_epoch": hours / EPOCHS, "hours": hours}


def derived() -> dict[str, Any]:
    measured = json.loads((ROOT / "benchmarks/results/gpu_step.json").read_text())
    small, large = operations(SMALL_NET, 32, 10), operations(NET, 224, 1000)
    made: dict[str, Any] = {"from": "gpu_step.json", "measured_on": measured["hardware"], "operations": large / small}
    for name, key in SMALL_STEPS.items():
        speed = SMALL_BATCH / measured["figures"][key]["step_ms"] * 1e3
        made[name] = {"small_images_per_second": speed, **cost(speed * small / large)}
    return made


def measured() -> dict[str, Any]:
    from gpu_step import make_trainer, step_time

    from holdfast.data import ArraySplit, Dataset

    images = torch.randint(0, 256, (2 * BATCH, 3, 224, 224), dtype=torch.uint8)
    labels = torch.arange(2 * BATCH) % 10  # of make_trainer; a head for 1,000 classes is 0.05 % of the operations
    data = Dataset("noise", tuple("0123456789"), ArraySplit(images, labels, torch.full_like(labels, -1)))
    made: dict[str, Any] = {}
    for name, changes in STEPS.items():
        trainer = make_trainer(data, NET, {**changes, "batch_size": BATCH}, epochs=8)
        trainer.run()
        made[name] = cost(BATCH / step_time(trainer, repeats=40) * 1e3)
        print(name, made[name], flush=True)
        del trainer
        torch.cuda.empty_cache()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures = measured() if args.measure else derived()
    print(json.dumps(figures, indent=1))
    if args.out is not None:
        write_result(args.out, figures, gpu=args.measure)


if __name__ == "__main__":
    main()
