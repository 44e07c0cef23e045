"""Top-5 eigenvalues of a Hessian against PyHessian and hessian-eigenthings, at equal residual.

    python benchmarks/curvature.py [--images 250] [--repeats 3] [--out benchmarks/results/curvature_cpu.json]
    python benchmarks/curvature.py --device cuda --root DATA [--out benchmarks/results/curvature_gpu.json]

On a CPU the small convnet on the embedded digits; on a GPU ResNet-18 (CIFAR stem) on 1,000 CIFAR-10 images (DATA
holds cifar10.npz; without --root, the embedded coloured digits at 32 pixels). The net is trained for a few epochs
first. All get the same weights, the same images in one batch, float32 without TF32, and the fastest kernels.

Each peer runs with its defaults (and hessian-eigenthings also with more steps, as its default stops early); its time
includes making its operator. The true residuals ‖Hv − λv‖/|λ| of its five vectors are then computed, untimed, with λ
the Rayleigh quotient, which favours the peer. holdfast runs until its largest residual is no more than the peer's
largest. Printed: medians over seeds. A peer that cannot be imported is named as missing; both are plain Python, so a
folder on PYTHONPATH is enough.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import write_result
from torch import Tensor, nn

from holdfast.curvature import Operator, hessian_operator, lanczos, rayleigh
from holdfast.data import Dataset, load
from holdfast.devices import kernels
from holdfast.losses import cross_entropy
from holdfast.train import fit

TOP = 5


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    x: Tensor
    y: Tensor

    @property
    def device(self) -> torch.device:
        return self.x.device

    def operator(self) -> Operator:
        return hessian_operator(self.model, [(self.x, self.y)], cross_entropy)

    def fresh(self) -> Problem:
        """With a model of its own: peers leave gradients behind."""
        return replace(self, model=copy.deepcopy(self.model).eval())


Solver = Callable[[Problem, int], Tensor]
"""A problem and a seed to five vectors (5, n)."""


def pyhessian(problem: Problem, seed: int) -> Tensor:
    """Power iteration with deflation; given one batch it keeps the graph of the gradient."""
    module = import_module("pyhessian")
    torch.manual_seed(seed)
    data, cuda = (problem.x, problem.y), problem.device.type == "cuda"
    made = module.hessian(problem.model, nn.CrossEntropyLoss(), data=data, cuda=cuda)
    _, vectors = made.eigenvalues(top_n=TOP)
    return torch.stack([torch.cat([part.flatten() for part in vector]) for vector in vectors])


def eigenthings(algorithm: str, **settings: Any) -> Solver:
    def solve(problem: Problem, seed: int) -> Tensor:
        module = import_module("hessian_eigenthings")
        losses = import_module("hessian_eigenthings.loss_fns")
        loss = losses.supervised_loss(F.cross_entropy)
        operator = module.HessianOperator(problem.model, [(problem.x, problem.y)], loss)
        run = getattr(import_module("hessian_eigenthings.algorithms"), algorithm)
        found: Tensor = run(operator, k=TOP, seed=seed, **settings).eigenvectors
        return found

    return solve


PEERS: dict[str, tuple[str, Solver]] = {
    "PyHessian": ("pyhessian", pyhessian),
    "hessian-eigenthings, Lanczos": ("hessian_eigenthings", eigenthings("lanczos")),
    "hessian-eigenthings, Lanczos, 40 steps": ("hessian_eigenthings", eigenthings("lanczos", max_iter=40)),
    "hessian-eigenthings, power iteration": ("hessian_eigenthings", eigenthings("deflated_power_iteration")),
}


def ours(tolerance: float, **settings: Any) -> Solver:
    def solve(problem: Problem, seed: int) -> Tensor:
        operator = problem.operator()
        generator = torch.Generator(problem.device).manual_seed(seed)
        start = torch.randn(operator.size, generator=generator, device=problem.device)
        return lanczos(operator, start, top=TOP, tolerance=tolerance, **settings).vectors

    return solve


def timed(solve: Solver, problem: Problem, seed: int) -> tuple[float, Tensor]:
    problem = problem.fresh()
    if problem.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    started = time.perf_counter()
    vectors = solve(problem, seed)
    if problem.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, F.normalize(vectors.detach(), dim=1)


def judged(operator: Operator, vectors: Tensor) -> tuple[list[float], float]:
    """Rayleigh quotients, largest first, and the largest relative residual."""
    values, residuals = rayleigh(operator, vectors)
    return values.sort(descending=True).values.tolist(), float((residuals / values.abs()).max())


def make_problem(args: argparse.Namespace) -> Problem:
    data, model = make_data(args)
    print(f"training {model} on {data.name} for {args.epochs} epochs", flush=True)
    how: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "batch_size": 128, "eval_every": 0, "progress": False}
    trained = fit(data, model=model, epochs=args.epochs, device=args.device, **how).model
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[: args.images]
    device = torch.device(args.device)
    x = data.train.read(order).to(device).float() / 255
    return Problem(trained.eval(), x, data.train.labels[order].to(device))


def make_data(args: argparse.Namespace) -> tuple[Dataset, str]:
    if args.device == "cpu":
        return load("digits"), args.model or "convnet"
    data = load("cifar10", root=args.root) if args.root else load("coloured-digits", image_size=32)
    return data, args.model or "cifar-resnet18"


def compare(problem: Problem, name: str, repeats: int) -> dict[str, Any]:
    """One peer against ours, seed by seed."""
    package, peer = PEERS[name]
    try:
        import_module(package)
    except ImportError as error:
        print(f"{name:40} missing: {error}", flush=True)
        return {"missing": str(error)}
    peer_seconds, our_seconds, peer_residuals, our_residuals = [], [], [], []
    for seed in range(repeats):
        seconds, vectors = timed(peer, problem, seed)
        operator = problem.operator()
        values, residual = judged(operator, vectors)
        del operator, vectors
        peer_seconds.append(seconds)
        peer_residuals.append(residual)
        # peers look for no second copies and report no residuals of their own, so neither does this
        seconds, vectors = timed(ours(residual, risk=1, exact=False), problem, seed)
        operator = problem.operator()
        our_values, residual = judged(operator, vectors)
        del operator, vectors
        our_seconds.append(seconds)
        our_residuals.append(residual)
    result = {
        "peer_s": statistics.median(peer_seconds),
        "ours_s": statistics.median(our_seconds),
        "ratio": statistics.median(p / o for p, o in zip(peer_seconds, our_seconds, strict=True)),
        "peer_residual": statistics.median(peer_residuals),
        "ours_residual": statistics.median(our_residuals),
        "peer_eigenvalues": values,
        "ours_eigenvalues": our_values,
    }
    print(
        f"{name:40} {result['peer_s']:9.3f} s at {result['peer_residual']:.1e}   "
        f"holdfast {result['ours_s']:8.3f} s at {result['ours_residual']:.1e}   x{result['ratio']:.1f}",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--root")
    parser.add_argument("--model")
    parser.add_argument("--images", type=int, help="1000 on a GPU, 250 on a CPU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.images = args.images or (1000 if args.device == "cuda" else 250)
    warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
    problem = make_problem(args)
    figures: dict[str, Any] = {}
    with kernels("fp32", deterministic=False):
        operator = problem.operator()
        operator(torch.ones(operator.size, device=problem.device))  # choose kernels before anyone is timed
        print(f"{operator.size:,} parameters, {len(problem.y)} images", flush=True)
        del operator
        for name in args.only:
            figures[name] = compare(problem, name, args.repeats)
        alone = [timed(ours(1e-3), problem, seed) for seed in range(args.repeats)]
        operator = problem.operator()
        seconds = statistics.median(seconds for seconds, _ in alone)
        values, residual = judged(operator, alone[0][1])
    figures["holdfast, searched, exact residuals"] = {"ours_s": seconds, "ours_residual": residual}
    print(f"holdfast to 1e-3, with its search for missed copies: {seconds:.3f} s at {residual:.1e}")
    print("eigenvalues: " + ", ".join(f"{value:.4g}" for value in values))
    if args.out:
        figures["settings"] = {k: str(v) for k, v in vars(args).items() if k not in ("out", "commit", "root")}
        write_result(args.out, figures, commit=args.commit)


if __name__ == "__main__":
    main()
