"""How far λ1, λ5 and λ1/λ5 of a sample are from those of all images, and whether intervals from it hold the truth.

    python benchmarks/curvature_sampling.py [--draws 60] [--out FILE]

Softmax regression on Gaussian classes: the Hessian of its loss is known in closed form, and as many samples can be
drawn as are wanted. ``sureness`` multiplies the logits: trained networks are sure of nearly all samples. The intervals
come from the spread of the samples' own curvature vᵀHᵢv along the eigenvector v (which is fitted to the sample: that is
their weakness): Student's t, and a gamma distribution with the same mean and spread, which has no negative end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from record import write_result
from scipy import special, stats
from scipy.sparse.linalg import LinearOperator, eigsh

CLASSES = 6
TRUTH = 40_000
"""Samples that stand for all."""
CASES = ((8, 1.0), (8, 16.0), (128, 1.0), (128, 8.0))
"""(features, sureness)."""
SIZES = (250, 1000)
Array = np.ndarray[Any, np.dtype[np.float64]]


class Population:
    """Classes as Gaussians; the model knows their centres."""

    def __init__(self, features: int, sureness: float) -> None:
        self.random = np.random.default_rng(0)
        self.centres = self.random.standard_normal((CLASSES, features)) * np.sqrt(8 / features)
        self.weights = sureness * self.centres
        self.offsets = -0.5 * sureness * (self.centres**2).sum(1)

    def draw(self, n: int) -> tuple[Array, Array]:
        """(inputs with a constant 1, class probabilities)."""
        x = self.centres[self.random.integers(0, CLASSES, n)] + self.random.standard_normal((n, self.centres.shape[1]))
        return np.c_[x, np.ones(n)], special.softmax(x @ self.weights.T + self.offsets, 1)


def spectrum(x: Array, p: Array) -> tuple[Array, Array]:
    """(the five largest eigenvalues, (5, n) every sample's own curvature along their eigenvectors)."""
    n, features = x.shape

    def product(v: Array) -> Array:
        moved = p * (x @ v.reshape(CLASSES, features).T)
        return np.asarray((moved - p * moved.sum(1, keepdims=True)).T @ x / n).ravel()

    size = CLASSES * features
    start = np.random.default_rng(1).standard_normal(size)
    values, vectors = eigsh(
        LinearOperator((size, size), matvec=product, dtype=float), k=5, which="LA", v0=start, tol=1e-4
    )
    order = np.argsort(-values)
    moved = np.einsum("nf,kcf->knc", x, vectors.T[order].reshape(5, CLASSES, features))
    return values[order], (p * moved**2).sum(2) - (p * moved).sum(2) ** 2


def intervals(own: Array, mean: float) -> dict[str, tuple[float, float]]:
    """95 % intervals of a mean from its terms."""
    error = own.std(ddof=1) / np.sqrt(len(own))
    reach, shape = stats.t.ppf(0.975, len(own) - 1) * error, (mean / error) ** 2
    gamma = [mean * special.gammaincinv(shape + more, q) / shape for more, q in ((0, 0.025), (1, 0.975))]
    return {"t": (mean - reach, mean + reach), "gamma": (gamma[0], gamma[1])}


def measure(features: int, sureness: float, n: int, draws: int) -> dict[str, Any]:
    population = Population(features, sureness)
    truth, _ = spectrum(*population.draw(TRUTH))
    found, held = [], {"λ1, t": 0, "λ1, gamma": 0, "λ5, t": 0, "λ5, gamma": 0, "λ1/λ5, log": 0}
    for _ in range(draws):
        values, own = spectrum(*population.draw(n))
        found.append(values)
        for name, i in (("λ1", 0), ("λ5", 4)):
            for kind, (low, high) in intervals(own[i], values[i]).items():
                held[f"{name}, {kind}"] += low <= truth[i] <= high
        ratio = np.log(values[0] / values[4])
        spread = (own[0] / values[0] - own[4] / values[4]).std(ddof=1) / np.sqrt(n)
        held["λ1/λ5, log"] += abs(ratio - np.log(truth[0] / truth[4])) <= stats.t.ppf(0.975, n - 1) * spread
    mean = np.mean(found, 0)
    return {
        "parameters": CLASSES * (features + 1),
        "sureness": sureness,
        "samples": n,
        "draws": draws,
        "λ1": {"all": truth[0], "sample, mean": mean[0], "too large by": mean[0] / truth[0]},
        "λ5": {"all": truth[4], "sample, mean": mean[4], "too large by": mean[4] / truth[4]},
        "coverage": {name: count / draws for name, count in held.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for features, sureness in CASES:
        for n in SIZES:
            row = measure(features, sureness, n, args.draws)
            rows.append(row)
            far = {name: f"{row[name]['too large by']:.2f} × the truth" for name in ("λ1", "λ5")}
            print(row["parameters"], "parameters, sureness", sureness, n, "samples", far, row["coverage"], flush=True)
    if args.out is not None:
        write_result(args.out, {"rows": rows}, gpu=False)


if __name__ == "__main__":
    main()
