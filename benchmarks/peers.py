"""Beside the libraries that do a part of this: what they find, and how long they take, in one run.

    PYTHONPATH=PEERS python benchmarks/peers.py [--device cpu] [--out benchmarks/results/peers_cpu.json]
    PYTHONPATH=PEERS python benchmarks/peers.py --device cuda --root DATA [--out benchmarks/results/peers_gpu.json]

Attacks, optimisers and curvature are those of ``attacks.py``, ``optim_cpu.py`` and ``curvature.py``, which say what is
timed; detectors are compared here, on random features of four classes. A row has a number that says how far the two
agree, named by ``agreement``, and ``ratio``, the peer's time over ours. PEERS is a folder with the packages
(pip install --target PEERS --no-deps torchattacks foolbox eagerpy GitPython gitdb smmap pyautoattack pyhessian
hessian-eigenthings); pytorch_optimizer and pytorch-ood come with holdfast[dev].
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from optim_cpu import candidates, race, resnet18, small_net
from record import write_result
from scipy.stats import spearmanr
from torch import Tensor, nn

from holdfast.detect import KNN, Mahalanobis, ViM
from holdfast.detect.features import Features
from holdfast.detect.scores import energy, max_logit

HERE = Path(__file__).parent
Row = dict[str, Any]
PACKAGES = ("torchattacks", "foolbox", "pyautoattack", "pytorch_optimizer", "pyhessian", "hessian-eigenthings",
            "pytorch-ood")  # fmt: skip


def other(name: str, words: list[str]) -> dict[str, Any]:
    """The figures of another benchmark, run as a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "found.json"
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *words, "--out", str(out)], check=True)
        figures: dict[str, Any] = json.loads(out.read_bytes())["figures"]
    return figures


def attacks(args: argparse.Namespace) -> list[Row]:
    """Agreement: the error that ours finds more than the peer, in points."""
    words = ["--device", args.device]
    words += ["--data", str(Path(args.root) / "cifar10.npz"), "--images", "2000"] if args.device == "cuda" else []
    found, rows = other("attacks", words), []
    for kind, own in ((kind, found[kind]) for kind in ("pgd", "apgd") if kind in found):
        plain = "holdfast eager" if "holdfast eager" in own else next(n for n in own if n.startswith("holdfast"))
        best = min((n for n in own if n.startswith("holdfast") and "bf16" not in n), key=lambda n: own[n]["seconds"])
        for peer in (n for n in own if not n.startswith("holdfast") and "bf16" not in n and "seconds" in own[n]):
            for mine in dict.fromkeys((plain, best)):
                more = 100 * (own[mine]["error"] - own[peer]["error"])
                rows.append({
                    "part": kind.upper(), "peer": peer, "ours": mine, "agreement": "error found, points more",
                    "value": more, "ratio": own[peer]["seconds"] / own[mine]["seconds"],
                })  # fmt: skip
    return rows


def optimisers(args: argparse.Namespace) -> list[Row]:
    """Agreement: largest difference of a weight from a plain loop that follows the paper, over its largest move."""
    device, rows = torch.device(args.device), []
    peers = [name for name in candidates(device) if "pytorch_optimizer" in name]
    for net, make in {"small net": small_net, "ResNet-18": resnet18}.items():
        contenders = race(make(), device, warm_up=10, repeats=args.repeats)
        times = {name: statistics.median(one.times) for name, one in contenders.items()}
        for peer in peers:
            kind = peer.split(",")[0]
            rows += [
                {
                    "part": f"{kind}, {net}", "peer": peer.split(", ")[1].split()[0] if who != kind else who,
                    "ours": kind, "agreement": "distance from the paper's loop", "value": distance(who, kind),
                    "ratio": times[who] / times[kind],
                }
                for who in (kind, peer)
            ]  # fmt: skip
    return rows


def distance(name: str, kind: str, steps: int = 20) -> float:
    """After so many steps on a small problem in float64, from the plain loop of that kind, over how far that got."""
    ends = []
    for who in (name, f"{kind}, plain loop"):
        torch.manual_seed(0)
        net, data = small_net().double(), torch.Generator().manual_seed(1)
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        optimizer = candidates(torch.device("cpu"))[who](list(net.parameters()))
        for _ in range(steps):
            x, y = torch.randn(32, 64, generator=data, dtype=torch.float64), torch.randint(10, (32,), generator=data)
            for half in (optimizer.first_step, optimizer.second_step):
                net.zero_grad()
                F.cross_entropy(net(x), y).backward()
                half()
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]) - start)
    return float((ends[0] - ends[1]).abs().max() / ends[1].abs().max())


def curvature(args: argparse.Namespace) -> list[Row]:
    """Agreement: relative difference of the largest eigenvalue; ours runs until its residual is the peer's."""
    words = ["--device", args.device, "--repeats", "1" if args.device == "cuda" else "3"]
    found = other("curvature", words + (["--root", args.root] if args.device == "cuda" else []))
    return [
        {
            "part": "Hessian", "peer": peer, "ours": "at its residual", "agreement": "λ1, relative difference",
            "value": abs(own["peer_eigenvalues"][0] / own["ours_eigenvalues"][0] - 1), "ratio": own["ratio"],
        }
        for peer, own in found.items() if isinstance(own, dict) and "peer_s" in own
    ]  # fmt: skip


def detectors(args: argparse.Namespace) -> list[Row]:
    """Agreement: rank correlation of the scores."""
    from pytorch_ood import detector as theirs

    torch.manual_seed(0)
    device = torch.device(args.device)
    centres, labels = 3 * torch.randn(4, 64), torch.arange(8000) % 4
    bank = (centres[labels] + torch.randn(8000, 64)).to(device)
    x = torch.cat([centres[labels[:500]] + torch.randn(500, 64), 4 * torch.randn(500, 64)]).to(device)
    weight, bias = torch.randn(4, 64, device=device), torch.randn(4, device=device)
    seen, asked = (Features(features=f, logits=f @ weight.T + bias) for f in (bank, x))
    labels = labels.to(device)
    peers: dict[str, Any] = {
        "knn": theirs.KNN(nn.Identity(), k=50), "mahalanobis": theirs.Mahalanobis(nn.Identity()),
        "vim": theirs.ViM(nn.Identity(), d=32, w=weight, b=bias),
    }  # fmt: skip
    for peer in peers.values():
        peer.fit_features(bank, labels)
    fitted = {
        "knn": KNN(k=50).fit_features(bank),
        "mahalanobis": Mahalanobis(shrinkage=0.0).fit_features(bank, labels=labels),
        "vim": ViM(head=(weight, bias), dimension=32).fit_features(seen),
    }  # fmt: skip
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "max-logit": (lambda: max_logit(asked.logits), lambda: theirs.MaxLogit.score(asked.logits)),
        "energy": (lambda: energy(asked.logits), lambda: theirs.EnergyBased.score(asked.logits)),
        "knn": (lambda: fitted["knn"].score_features(x), lambda: peers["knn"].predict_features(x)),
        "mahalanobis": (
            lambda: fitted["mahalanobis"].score_features(x), lambda: peers["mahalanobis"].predict_features(x),
        ),
        "vim": (lambda: fitted["vim"].score_features(asked), lambda: peers["vim"].predict_features(x)),
    }  # fmt: skip
    rows = []
    for name, (ours, peer) in pairs.items():
        scores = [torch.as_tensor(call()).flatten().cpu() for call in (ours, peer)]
        took = [seconds(call, args.repeats, device) for call in (ours, peer)]
        rows.append({
            "part": f"scores, {name}", "peer": "pytorch-ood", "ours": name, "agreement": "rank correlation",
            "value": float(spearmanr(*scores).statistic), "ratio": took[1] / took[0],
        })  # fmt: skip
    return rows


def seconds(call: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Median of one call, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


PARTS = {"attacks": attacks, "optimisers": optimisers, "curvature": curvature, "detectors": detectors}


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def table(rows: list[Row]) -> str:
    """The rows as Markdown, as docs/results/peers.md has them.

    >>> row = {"part": "PGD", "peer": "foolbox", "ours": "holdfast eager", "agreement": "points", "value": 1 / 3}
    >>> print(table([row | {"ratio": 0.5}]).splitlines()[-1])
    | PGD, eager | foolbox | points: 0.33 | 0.50 |
    """
    lines = ["| what | peer | how far they agree | time, peer over ours |", "|---|---|---|---|"]
    for row in rows:
        if row["peer"] != row["ours"]:
            kind = row["ours"].partition("holdfast ")[2]
            what, own = f"{row['part']}, {kind}" if kind else row["part"], f"{row['value']:.2g}"
            lines.append(f"| {what} | {row['peer']} | {row['agreement']}: {own} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--root", help="folder of cifar10.npz, for a GPU")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.only:
        for row in PARTS[name](args):
            rows.append(row)
            agrees = f"{row['agreement']} {row['value']:.3g}"
            print(f"{row['part']:22} {row['peer']:38} {agrees:42} time {row['ratio']:.2f} of ours", flush=True)
    if args.out:
        write_result(args.out, {"versions": versions(), "rows": rows}, gpu=args.device == "cuda")


if __name__ == "__main__":
    main()
