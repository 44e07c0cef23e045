"""A small set with anomalies, made of stand-ins for Fashion-MNIST and MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.data.anomalies import AnomalySet
from holdfast.data.making import make_fashion_anomalies

SMALL: dict[str, Any] = {"unlabeled": 60, "labeled": 20, "normal": 15, "anomalous": 8}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for the two sets: each image tells its set, class and number by its pixels."""
    folder = tmp_path_factory.mktemp("sets")
    for name, base in (("fashion_mnist", 100), ("mnist", 200)):
        arrays = {}
        for split, n in (("train", 250), ("test", 200)):
            x = np.zeros((n, 28, 28), dtype=np.uint8)
            x[:, 4:24, 4:24] = base + np.arange(n)[:, None, None] % 10
            x[:, 0, 0], x[:, 0, 1] = np.arange(n) % 256, 1 if split == "train" else 2
            arrays |= {f"x_{split}": x, f"y_{split}": (np.arange(n) % 10).astype(np.uint8)}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def made(root: Path) -> AnomalySet:
    return make_fashion_anomalies(root=root, **SMALL)
