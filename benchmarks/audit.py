"""Seconds that every check of an audit takes on a trained network.

    python benchmarks/audit.py --device cuda --root DATA [--out benchmarks/results/audit_gpu.json]   # CIFAR-10
    python benchmarks/audit.py [--out benchmarks/results/audit_cpu.json]                             # embedded digits
    python benchmarks/audit.py --device cuda --root DATA --only curvature --batch-size 256

On a GPU: ResNet-18 (CIFAR stem) after a short training, all 10,000 test images; FGSM, PGD-10 and both APGDs (100 steps)
on all of them at 8/255, Square (1,000 queries) on 1,000, transfer from a network trained on the spot; eight corruptions
at two strengths; the top five of the Hessian on 1,000 images. Nothing is warmed up: these are the seconds a user waits;
cpu_seconds are those that the process worked, which other processes of the machine disturb less.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from record import write_result

from holdfast.audits.measuring import measure
from holdfast.audits.subject import Subject
from holdfast.data import load
from holdfast.parts import CHECKS
from holdfast.train import fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--root")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--only", nargs="*", default=list(CHECKS), choices=list(CHECKS))
    parser.add_argument("--batch-size", type=int, help="1000 on a GPU, 256 on a CPU")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    data = load("cifar10", root=args.root) if cuda else load("digits")
    fast = {"precision": "bf16", "channels_last": True, "crop": 4, "flip": True} if cuda else {}
    net = "cifar-resnet18" if cuda else "convnet"
    how = fast | {"optimizer": "sgd", "lr": 0.05, "batch_size": 128, "eval_every": 0, "progress": False}
    model = fit(data, model=net, epochs=args.epochs, device=args.device, **how).model
    assert data.test is not None
    settings: dict[str, Any] = {"attacks": {"images": len(data.test), "radii": (8 / 255,)}} if cuda else {}
    subject = Subject(
        model,
        data,
        torch.device(args.device),
        batch_size=args.batch_size or (1000 if cuda else 256),
        precision=args.precision if cuda else "fp32",
    )
    figures: dict[str, Any] = {}
    began, worked = time.perf_counter(), time.process_time()
    for name in args.only:
        before = time.process_time()
        outcome = measure(name, subject, CHECKS[name].made(**settings.get(name, {})))
        cpu = time.process_time() - before
        figures[name] = {
            "seconds": outcome.seconds, "cpu_seconds": cpu, "state": outcome.state, "reason": outcome.reason,
        }  # fmt: skip
        if name == "curvature" and outcome.findings:
            figures[name]["products"] = outcome.findings[0].evidence["products"]
            figures[name]["eigenvalues"] = outcome.findings[0].evidence["eigenvalues"]
        print(f"{name:12} {outcome.seconds:8.2f} s   {outcome.state} {outcome.reason}", flush=True)
    figures["all"] = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
    print(f"{'all':12} {figures['all']['seconds']:8.2f} s")
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
