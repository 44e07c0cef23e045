"""The optimiser's part of a SAM step (everything but the two passes) against a plain loop and a public package.

    python benchmarks/optim_cpu.py [--device cpu] [--repeats 60] [--out benchmarks/results/optim_cpu.json]

Timed: first_step and second_step with the gradients already there, around SGD with momentum and weight decay. The
plain loop goes parameter by parameter, as the authors of F-SAM do; pytorch_optimizer is measured where it is
installed. All take turns, step by step, so that a change in the machine's speed meets all alike. On a GPU the time is
taken between CUDA events, and the memory is what a step leaves behind (EMA, saved weights, momentum) and its peak.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from record import write_result
from torch import Tensor, nn
from torch.optim import SGD

from holdfast.models import build_model
from holdfast.optim import SAM, FriendlySAM

DESCENT = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


class PlainLoop:
    """SAM, and F-SAM with sigma = 1, one parameter after the other."""

    def __init__(self, params: list[Tensor], *, rho: float, friendly: bool, lmbda: float = 0.9) -> None:
        self.params, self.rho, self.friendly, self.lmbda = params, rho, friendly, lmbda
        self.base = SGD(params, **DESCENT)
        self.state: dict[Tensor, dict[str, Tensor]] = {p: {} for p in params}

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.params if self.friendly else ():
            state, gradient = self.state[p], p.grad.clone()
            if "mean" in state:
                p.grad -= state["mean"]
                state["mean"] = self.lmbda * state["mean"] + (1 - self.lmbda) * gradient
            else:
                state["mean"] = gradient
        norm = torch.stack([p.grad.norm(p=2) for p in self.params]).norm(p=2)
        scale = self.rho / (norm + 1e-12)
        for p in self.params:
            self.state[p]["old"] = p.data.clone()
            p += p.grad * scale

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.params:
            p.data = self.state[p]["old"]
        self.base.step()


class Peer:
    """pytorch_optimizer's, as its documentation calls it."""

    def __init__(self, params: list[Tensor], *, friendly: bool) -> None:
        import pytorch_optimizer

        kind = pytorch_optimizer.FriendlySAM if friendly else pytorch_optimizer.SAM
        self.optimizer = kind(params, SGD, rho=0.1, **DESCENT)
        self.first_step, self.second_step = self.optimizer.first_step, self.optimizer.second_step


class Ours:
    """As ``step(closure)`` calls it: the first gradient is given up after the climb."""

    def __init__(self, optimizer: SAM) -> None:
        self.first_step = partial(optimizer.first_step, zero_grad=True)
        self.second_step = optimizer.second_step


class Descent:
    """The base optimiser alone."""

    def __init__(self, params: list[Tensor]) -> None:
        self.second_step = SGD(params, fused=True, **DESCENT).step

    def first_step(self) -> None:
        pass


def candidates(device: torch.device) -> dict[str, Callable[[list[Tensor]], Any]]:
    ours = {"rho": 0.1, "fused": True, **DESCENT}
    made: dict[str, Callable[[list[Tensor]], Any]] = {
        "SGD alone, fused": Descent,
        "SAM": lambda p: Ours(SAM(p, SGD, **ours)),
        "SAM, unchecked": lambda p: Ours(SAM(p, SGD, skip_nonfinite=False, **ours)),
        "SAM, plain loop": lambda p: PlainLoop(p, rho=0.1, friendly=False),
        "F-SAM": lambda p: Ours(FriendlySAM(p, SGD, **ours)),
        "F-SAM, unchecked": lambda p: Ours(FriendlySAM(p, SGD, skip_nonfinite=False, **ours)),
        "F-SAM, plain loop": lambda p: PlainLoop(p, rho=0.1, friendly=True),
    }
    if device.type == "cuda":
        captured = {**ours, "capture": True}
        made["SAM, captured"] = lambda p: Ours(SAM(p, SGD, **captured))
        made["SAM, unchecked, captured"] = lambda p: Ours(SAM(p, SGD, skip_nonfinite=False, **captured))
        made["F-SAM, captured"] = lambda p: Ours(FriendlySAM(p, SGD, **captured))
        made["F-SAM, unchecked, captured"] = lambda p: Ours(FriendlySAM(p, SGD, skip_nonfinite=False, **captured))
    if find_spec("pytorch_optimizer"):
        name = f"pytorch_optimizer {version('pytorch_optimizer')}"
        made[f"SAM, {name}"] = lambda p: Peer(p, friendly=False)
        made[f"F-SAM, {name}"] = lambda p: Peer(p, friendly=True)
    return made


def small_net() -> nn.Module:
    """Three layers of a table's width: the time is all in the calls."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def resnet18() -> nn.Module:
    return build_model("cifar-resnet18", num_classes=10, mean=(0.5,) * 3, std=(0.25,) * 3).model


class Contender:
    """One optimiser with weights and gradients of its own, and its times in milliseconds."""

    def __init__(self, make: Callable[[list[Tensor]], Any], model: nn.Module, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [nn.Parameter(p.detach().to(device, copy=True)) for p in model.parameters()]
        self.gradients = [1e-2 * torch.randn(p.shape, generator=generator).to(device) for p in self.params]
        self.places = [torch.empty_like(g) for g in self.gradients]
        before = allocated(device)
        self.optimizer = make(self.params)
        self.times: list[float] = []
        self.step(device)
        for p in self.params:
            p.grad = None
        self.kept = allocated(device) - before

    def lay_out_gradients(self) -> None:
        """As a pass would leave them, and where the last one left them: a warm allocator hands out the same places."""
        for p, g, place in zip(self.params, self.gradients, self.places, strict=True):
            p.grad = place.copy_(g)

    def step(self, device: torch.device) -> float:
        """Time of both halves, each with fresh gradients in place (some optimisers change them)."""
        took = 0.0
        for half in (self.optimizer.first_step, self.optimizer.second_step):
            self.lay_out_gradients()
            took += clock(half, device)
        return took

    def peak(self, device: torch.device) -> int:
        """Bytes beyond weights and gradients at the worst moment of a step."""
        before = 0
        for half in (self.optimizer.first_step, self.optimizer.second_step):
            self.lay_out_gradients()
            if not before:
                torch.cuda.reset_peak_memory_stats(device)
                before = allocated(device)
            half()
        over = torch.cuda.max_memory_allocated(device) - before
        for p in self.params:
            p.grad = None
        return self.kept + over


def clock(call: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds."""
    if device.type == "cpu":
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def race(model: nn.Module, device: torch.device, *, warm_up: int, repeats: int) -> dict[str, Contender]:
    contenders = {name: Contender(make, model, device) for name, make in candidates(device).items()}
    for turn in range(warm_up + repeats):
        for contender in contenders.values():
            took = contender.step(device)
            if turn >= warm_up:
                contender.times.append(took)
    return contenders


def report(contenders: dict[str, Contender], device: torch.device) -> dict[str, dict[str, float]]:
    """Printed beside each time: how many times as long as ours of the same kind, and as SGD alone."""
    medians = {name: statistics.median(c.times) for name, c in contenders.items()}
    figures = {}
    for name, median in medians.items():
        kind = name.split(",")[0]
        row = {"ms": median, "over_ours": median / medians.get(kind, median)}
        line = f"  {name:32} {median:9.3f} ms   x{row['over_ours']:6.2f}"
        if device.type == "cuda":
            size = sum(p.numel() * p.element_size() for p in contenders[name].params)
            row["kept_over_parameters"] = contenders[name].kept / size
            row["peak_over_parameters"] = contenders[name].peak(device) / size
            line += f"   memory x{row['kept_over_parameters']:.2f}, at its peak x{row['peak_over_parameters']:.2f}"
        print(line, flush=True)
        figures[name] = row
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    figures = {}
    for name, make in {"small net": small_net, "ResNet-18": resnet18}.items():
        model = make()
        tensors = sum(1 for _ in model.parameters())
        size = sum(p.numel() for p in model.parameters())
        print(f"{name}: {tensors} tensors, {size / 1e6:.2f} million weights, {device}", flush=True)
        figures[name] = report(race(model, device, warm_up=args.warm_up, repeats=args.repeats), device)
    if args.out:
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
