"""PGD-10 and APGD against torchattacks, foolbox and AutoAttack: seconds and error found, same model, same images.

    PYTHONPATH=PEERS python benchmarks/attacks.py [--out benchmarks/results/attacks_cpu.json]
    PYTHONPATH=PEERS python benchmarks/attacks.py --device cuda --data cifar10.npz [--weights RUN/model.safetensors]
        [--compile-mode max-autotune-no-cudagraphs] [--out benchmarks/results/attacks_gpu.json]

On a CPU the small convnet on the embedded digits; on a GPU ResNet-18 (CIFAR stem) on the CIFAR-10 test set, float32
with TF32 for everybody, and bf16 for ours and, under autocast, for the peers. Speed-ups are over the fastest peer of
the same precision. Without --weights the net is trained for a few epochs first. Radius 8/255 (--radius), step
radius/4, 10 steps, no random start; APGD with --apgd-steps steps, cross-entropy, one run. All get images on the device
in batches of --batch. No parameter asks for a gradient, which is the peers' best case. Errors are counted by one
forward pass over what each returned, in TF32 whatever it was computed in. Time: the median of --repeats passes over all
images, taken in turns, after a warm-up pass that compiles and captures; making the attack object is not counted for
anybody.

PEERS is a folder with the peers' packages (pip install --target PEERS --no-deps torchattacks foolbox eagerpy GitPython
gitdb smmap pyautoattack); one that cannot be imported is named as missing.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from record import write_result
from torch import Tensor, nn

from holdfast.attacks import CapturedAttack, QueuedPgd, apgd, pgd
from holdfast.data import Dataset, load
from holdfast.devices import kernels
from holdfast.models import load_model
from holdfast.train import fit

Attack = Callable[[Tensor, Tensor], Tensor]
STEPS = 10
BEYOND = 0.5
"""Logits by which a queue in bf16 passes the label, so that rounding does not decide."""


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    radius: float
    apgd_steps: int

    @property
    def device(self) -> torch.device:
        return self.batches[0][0].device


def torchattacks_pgd(p: Problem) -> Attack:
    module = import_module("torchattacks")
    attack: Attack = module.PGD(p.model, eps=p.radius, alpha=p.radius / 4, steps=STEPS, random_start=False)
    return attack


def foolbox_pgd(p: Problem) -> Attack:
    module = import_module("foolbox")
    attack = module.attacks.LinfPGD(abs_stepsize=p.radius / 4, steps=STEPS, random_start=False)
    wrapped = module.PyTorchModel(p.model, bounds=(0, 1), device=p.device)

    def run(x: Tensor, y: Tensor) -> Tensor:
        moved: Tensor = attack(wrapped, x, y, epsilons=p.radius)[1]
        return moved

    return run


def autoattack_apgd(p: Problem) -> Attack:
    module = import_module("pyautoattack.autopgd_base")
    attack = module.APGDAttack(
        p.model, n_iter=p.apgd_steps, norm="Linf", eps=p.radius, loss="ce", device=p.device, seed=0
    )
    perturb: Attack = attack.perturb
    return perturb


def torchattacks_apgd(p: Problem) -> Attack:
    module = import_module("torchattacks")
    attack: Attack = module.APGD(p.model, eps=p.radius, steps=p.apgd_steps, n_restarts=1, loss="ce", seed=0)
    return attack


PEERS: dict[str, dict[str, Callable[[Problem], Attack]]] = {
    "pgd": {"torchattacks": torchattacks_pgd, "foolbox": foolbox_pgd},
    "apgd": {"autoattack": autoattack_apgd, "torchattacks": torchattacks_apgd},
}


def ours(p: Problem, kind: str, **changes: Any) -> Attack:
    if kind == "pgd":
        settings: dict[str, Any] = {"attack": pgd, "steps": STEPS, "step_size": p.radius / 4}
    else:
        settings = {"attack": apgd, "steps": p.apgd_steps, "generator": torch.Generator(p.device).manual_seed(0)}
    model = p.model
    if changes.get("channels_last"):  # a copy: the model of the others stays as it lies
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if changes.pop("eager", False):
        attack = settings.pop("attack")
        return lambda x, y: attack(model, x, y, radius=p.radius, **settings, **changes)
    return CapturedAttack(model, radius=p.radius, **settings, **changes)


def queue(p: Problem, batch: int, **changes: Any) -> Attack:
    model = copy.deepcopy(p.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fast = {"compile": p.device.type == "cuda", "channels_last": True, "batch": batch}
    return QueuedPgd(model, radius=p.radius, steps=STEPS, step_size=p.radius / 4, **fast, **changes)


def rows(p: Problem, kind: str, args: argparse.Namespace) -> dict[str, tuple[Attack, torch.dtype | None]]:
    """What is measured: our variants by name, each with the type it computes in."""
    made: dict[str, tuple[Attack, torch.dtype | None]] = {
        "holdfast eager": (ours(p, kind, eager=True), None),
        "holdfast early stop": (ours(p, kind, eager=True, early_stop=True), None),
    }
    if p.device.type == "cpu":
        return {**made, "holdfast queue": (queue(p, args.batch), None)} if kind == "pgd" else made
    fast: dict[str, Any] = {"compile": True, "compile_mode": args.compile_mode, "channels_last": True}
    bf16 = torch.bfloat16
    if kind == "pgd":  # the batches of an early stop come in every size, and each makes cuDNN search for kernels
        del made["holdfast early stop"]
    made["holdfast captured"] = ours(p, kind), None
    made["holdfast compiled, captured"] = ours(p, kind, **fast), None
    made["holdfast bf16 captured"] = ours(p, kind, autocast=bf16, channels_last=True), None
    made["holdfast bf16 compiled, captured"] = ours(p, kind, autocast=bf16, **fast), None
    if kind == "apgd":
        made["holdfast bf16 early stop"] = ours(p, kind, eager=True, early_stop=True), bf16
    else:
        made["holdfast queue, compiled"] = queue(p, args.batch), None
        made["holdfast bf16 queue, compiled"] = queue(p, args.batch, autocast=bf16, beyond=BEYOND), None
    return made


@dataclass
class Runner:
    """One attack, the seconds of its passes over all images, and the error it found."""

    attack: Attack
    dtype: torch.dtype | None
    seconds: list[float]
    error: float = 0.0

    def once(self, p: Problem) -> list[Tensor]:
        _wait(p.device)
        started = time.perf_counter()
        with torch.autocast(p.device.type, dtype=self.dtype) if self.dtype else nullcontext():
            if isinstance(self.attack, QueuedPgd):
                x, y = (torch.cat(parts) for parts in zip(*p.batches, strict=True))
                moved = list(self.attack(x, y).split([len(part) for part, _ in p.batches]))
            else:
                moved = [self.attack(x, y) for x, y in p.batches]
        _wait(p.device)
        self.seconds.append(time.perf_counter() - started)
        return moved

    def warm_up(self, p: Problem) -> None:
        """Compile, capture, choose kernels; and count the errors."""
        moved, wrong = self.once(p), 0
        self.seconds.clear()
        for adversarial, (x, y) in zip(moved, p.batches, strict=True):
            assert float((adversarial.detach() - x).abs().max()) <= p.radius + 1e-6
            with torch.no_grad():
                wrong += int((p.model(adversarial).argmax(1) != y).sum())
        self.error = wrong / sum(len(y) for _, y in p.batches)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def compare(p: Problem, kind: str, args: argparse.Namespace) -> dict[str, Any]:
    print(f"\n{kind}: radius {p.radius * 255:.3g}/255", flush=True)
    figures: dict[str, Any] = {}
    peers: dict[str, tuple[Attack, torch.dtype | None]] = {}
    for name, make in PEERS[kind].items():
        try:
            peers[name] = make(p), None
            if p.device.type == "cuda":
                peers[f"{name} bf16"] = make(p), torch.bfloat16
        except ImportError as error:
            figures[name] = {"missing": str(error)}
            print(f"{name:36} missing: {error}", flush=True)
    runners: dict[str, Runner] = {}
    for name, (attack, dtype) in {**peers, **rows(p, kind, args)}.items():
        runner = Runner(attack, dtype, [])
        started = time.perf_counter()
        try:
            runner.warm_up(p)
            runners[name] = runner
            print(f"{name:36} warm after {time.perf_counter() - started:.1f} s", flush=True)
        except Exception as problem:  # one variant must not take the table with it
            figures[name] = {"failed": repr(problem)}
            print(f"{name:36} failed: {problem!r}", flush=True)
    for _ in range(args.repeats):  # in turns, so that a slow moment of the machine falls on all
        for runner in runners.values():
            runner.once(p)
    medians = {name: statistics.median(runner.seconds) for name, runner in runners.items()}
    fastest = {
        half: min((medians[n] for n in peers if n in medians and n.endswith(" bf16") == half), default=None)
        for half in (False, True)
    }
    for name, runner in runners.items():
        figures[name] = {"seconds": medians[name], "error": runner.error}
        text = ""
        peer = fastest["bf16" in name]
        if peer is not None and name.startswith("holdfast"):
            figures[name]["speedup_over_fastest_peer"] = peer / medians[name]
            text = f"x{peer / medians[name]:.2f}"
        print(f"{name:36} {medians[name]:8.3f} s   error {runner.error:7.2%}   {text}", flush=True)
    return figures


def make_problem(args: argparse.Namespace) -> Problem:
    data, name = make_data(args)
    if args.weights:
        model: nn.Module = load_model(args.weights.parent if args.weights.is_file() else args.weights)[0]
    else:
        print(f"training {name} on {data.name} for {args.epochs} epochs", flush=True)
        fast = {"precision": "bf16", "channels_last": True, "crop": 4, "flip": True} if args.device == "cuda" else {}
        how = fast | {"optimizer": "sgd", "lr": 0.05, "batch_size": 128, "eval_every": 0, "progress": False}
        model = fit(data, model=name, epochs=args.epochs, device=args.device, **how).model
    device = torch.device(args.device)
    model = model.to(device).eval().requires_grad_(False)
    assert data.test is not None
    index = torch.arange(min(args.images or len(data.test), len(data.test)))
    batches = [
        (data.test.read(part).to(device).float() / 255, data.test.labels[part].to(device))
        for part in index.split(args.batch)
    ]
    return Problem(model, batches, args.radius, args.apgd_steps)


def make_data(args: argparse.Namespace) -> tuple[Dataset, str]:
    if args.data:
        return load(args.data), args.model or ("cifar-resnet18" if args.device == "cuda" else "convnet")
    return load("digits"), args.model or "convnet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data", help="an .npz of CIFAR-10, or any set that holdfast loads")
    parser.add_argument("--weights", type=Path, help="model.safetensors of a finished run, or its folder")
    parser.add_argument("--model")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int)
    parser.add_argument("--batch", type=int, help="1000 on a GPU, 100 on a CPU")
    parser.add_argument("--radius", type=float, default=8 / 255)
    parser.add_argument("--apgd-steps", type=int, help="100 on a GPU, 20 on a CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--compile-mode")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cuda = args.device == "cuda"
    args.batch = args.batch or (1000 if cuda else 100)
    args.apgd_steps = args.apgd_steps or (100 if cuda else 20)
    args.images = args.images or (None if cuda else 300)
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    problem = make_problem(args)
    figures: dict[str, Any] = {}
    with kernels("tf32", deterministic=False):
        problem.model(problem.batches[0][0])  # choose kernels before anyone is timed
        with torch.no_grad():
            wrong = sum(int((problem.model(x).argmax(1) != y).sum()) for x, y in problem.batches)
        n = sum(len(y) for _, y in problem.batches)
        print(f"{n} images, clean error {wrong / n:.2%}")
        figures["clean error"] = wrong / n
        for kind in args.only:
            figures[kind] = compare(problem, kind, args)
    if args.out:
        figures["settings"] = {k: str(v) for k, v in vars(args).items() if k in SHOWN}
        write_result(args.out, figures, commit=args.commit)


SHOWN = ("device", "model", "epochs", "batch", "radius", "apgd_steps", "repeats", "compile_mode", "images")

if __name__ == "__main__":
    main()
