"""Models nobody prepared for us go through every check: timm's, and twenty lines of somebody's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.cli import main
from holdfast.data import load
from holdfast.parts import CHECKS
from holdfast.reports import read_findings

OWN = """
import torch
from torch import nn


class Net(nn.Module):
    classes = list("0123456789")
    mean, std = [0.5] * 3, [0.25] * 3

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.features(x).relu().mean((2, 3)))


def make():
    torch.manual_seed(0)
    return Net()
"""


@pytest.fixture
def few(folder: Path) -> str:
    """Few of the coloured digits, with their colours as groups."""
    data = load("coloured-digits")
    assert data.test is not None
    arrays = {"classes": np.array(data.classes), "group_names": np.array(data.group_names)}
    for name, split, n in (("train", data.train, 20), ("test", data.test, 20)):
        order = torch.cat([(split.labels == c).nonzero().flatten()[: n // 10] for c in range(10)])
        arrays |= {f"x_{name}": split.read(order).numpy(), f"y_{name}": split.labels[order].numpy()}
        arrays[f"group_{name}"] = split.groups[order].numpy()
    np.savez(folder / "few.npz", **arrays)
    return "few.npz"


@pytest.mark.slow
@pytest.mark.parametrize("source", ["timm", "python"])
def test_every_check_is_measured(source: str, few: str, folder: Path) -> None:
    if source == "timm":
        timm = pytest.importorskip("timm")
        torch.manual_seed(0)
        net = timm.create_model("test_efficientnet", num_classes=10)
        torch.save(net.state_dict(), "net.pth")
        model = ["net.pth", "--model", "timm:test_efficientnet"]
    else:
        assert len(OWN.strip().splitlines()) <= 20
        Path("own.py").write_text(OWN)
        model = ["python:own:make"]
    words = ["audit", *model, "--data", few, "--device", "cpu", "--workers", "0", "--quiet", "--out", "out"]
    assert main(words) == 0
    read = read_findings("out/findings.json")
    assert {r.name: r.state for r in read.checks} == dict.fromkeys(CHECKS, "measured"), read.checks
    for name in CHECKS:
        numbers = [f for f in read.findings if f.check == name and f.value is not None]
        assert numbers, name
        assert all(f.n > 0 for f in numbers)
