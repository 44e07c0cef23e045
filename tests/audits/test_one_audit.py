"""``holdfast.audit`` and ``holdfast audit`` are one audit: same numbers, same warnings, same gates, from any model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.audits.run_audit import Audit
from holdfast.cli import main
from holdfast.data import load
from holdfast.errors import HoldfastError
from holdfast.reports.findings_file import read_findings
from holdfast.train import fit
from holdfast.types import Finding

NET = '''
import torch
from torch import nn

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
COLOURS = torch.tensor([[0.25] * 3, [0.4] * 3, [0.55] * 3])


class Nearest(nn.Module):
    """The nearest grey, for images that were normalised by ImageNet's mean and deviation before."""

    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter((COLOURS - MEAN) / STD)

    def forward(self, x):
        return -4 * (x.mean((2, 3))[:, None] - self.centre).square().sum(2)


def make():
    return Nearest().eval()
'''
CHECKS = ["accuracy", "groups", "slices", "corruptions"]


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the network's code and data that it is right about once its images are normalised."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colour_net.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    net = importlib.import_module("colour_net")
    draw = torch.Generator().manual_seed(0)
    arrays = {"classes": np.array(["dark", "middle", "light"])}
    for split, n in (("train", 60), ("test", 240)):
        labels = torch.arange(n) % 3
        noise = 0.1 * torch.randn(n, 3, 8, 8, generator=draw)
        images = (net.COLOURS[labels][:, :, None, None] + noise).clamp(0, 1).mul(255).round().to(torch.uint8)
        arrays |= {f"x_{split}": images.permute(0, 2, 3, 1).numpy(), f"y_{split}": labels.numpy()}
        arrays |= {f"group_{split}": (labels.numpy() + np.arange(n) // 3) % 2}
    np.savez(tmp_path / "colours.npz", **arrays)
    yield tmp_path
    sys.modules.pop("colour_net", None)


def plain(findings: tuple[Finding, ...]) -> list[tuple[object, ...]]:
    return [(f.check, f.name, f.value, f.low, f.high, f.n, dict(f.where)) for f in findings]


@pytest.mark.usefixtures("colours")
def test_a_model_that_needs_normalisation_is_warned_of_and_measured_as_by_the_command_line() -> None:
    words = ["audit", "python:colour_net:make", "--data", "colours.npz", "--checks", *CHECKS, "--class-map", "order"]
    words += ["--set", "corruptions.images=30", "--device", "cpu", "--workers", "0", "--out", "out"]
    assert main(words) == 0
    written = read_findings("out/findings.json")
    settings = {"corruptions": {"images": 30}}
    module = importlib.import_module("colour_net").make()
    common = {"checks": CHECKS, "settings": settings, "device": "cpu", "workers": 0}
    with pytest.warns(RuntimeWarning, match="preprocessing is probably wrong: imagenet"):
        made = holdfast.audit(module, "colours.npz", **common)
    assert plain(made.findings) == plain(written.findings)
    assert [str(note) for note in made.warnings] == list(written.model["warnings"])
    assert [note.code for note in made.warnings] == ["preprocessing"]
    assert made.warnings[0].remedy == "if so, give --preprocessing imagenet"
    with pytest.warns(RuntimeWarning, match="preprocessing is probably wrong: imagenet"):
        in_memory = holdfast.audit(module, load("colours.npz"), **common)
    assert plain(in_memory.findings) == plain(written.findings)
    fixed = holdfast.audit(module, "colours.npz", preprocessing="imagenet", checks=["accuracy"], device="cpu")
    assert fixed.warnings == ()
    assert fixed["accuracy"].value == 1.0
    assert (made["accuracy"].value or 0.0) < 0.7


@pytest.mark.usefixtures("colours")
def test_gates_comparison_and_budget_work_in_python_and_nothing_is_written() -> None:
    net = importlib.import_module("colour_net")
    before = sorted(Path().rglob("*"))
    common = {"checks": ["accuracy", "groups"], "device": "cpu", "workers": 0, "preprocessing": "imagenet"}
    made = holdfast.audit(
        net.make(),
        "colours.npz",
        against=[Worse(net.make())],
        fail_under={"worst_group_accuracy": 0.9, "accuracy": 0.5},
        max_drop={"accuracy": 0.0},
        budget="5m",
        **common,
    )
    assert sorted(p for p in Path().rglob("*") if "__pycache__" not in p.parts) == [
        p for p in before if "__pycache__" not in p.parts
    ]
    assert made.passed
    assert made.exit_code == 0
    assert [gate["passed"] for gate in made.gates] == [True, True, True]
    assert made["lead"].value == pytest.approx(1 / 3)
    assert [file.model["name"] for file in made.files] == ["Nearest", "Worse"]
    assert "Audit of Nearest on colours" in repr(made)
    assert "3 of 3 gates hold" in repr(made)
    assert made.report("page.html").read_text().startswith("<!doctype html>")
    failed = holdfast.audit(Worse(net.make()), "colours.npz", fail_under={"accuracy": 0.9}, **common)
    assert (failed.passed, failed.exit_code) == (False, 1)
    with pytest.raises(HoldfastError, match="unknown gate 'acuracy'; did you mean 'accuracy'"):
        holdfast.audit(net.make(), "colours.npz", fail_under={"acuracy": 0.9}, **common)
    with pytest.raises(HoldfastError, match="unknown setting 'attacks.imges'; did you mean 'attacks.images'"):
        holdfast.audit(net.make(), "colours.npz", settings={"attacks": {"imges": 3}}, **common)
    with pytest.raises(HoldfastError, match="unknown measure 'acuracy'; did you mean 'accuracy'"):
        made["acuracy"]


class Worse(nn.Module):
    """Takes every third class for the first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        return torch.cat([logits[:, :2], torch.full_like(logits[:, 2:], -1e3)], 1)


@pytest.mark.slow
def test_a_run_and_the_result_of_a_training_have_the_same_numbers(tmp_path: Path) -> None:
    named = {"optimizer": "sgd", "lr": 0.05, "batch_size": 128, "epochs": 1}
    result = fit("digits", model="convnet", device="cpu", progress=False, out=tmp_path / "run", **named)
    common = {"checks": ["accuracy"], "device": "cpu", "workers": 0}
    by_result = holdfast.audit(result, **common)
    by_folder = holdfast.audit(tmp_path / "run", "digits", **common)
    assert isinstance(by_result, Audit)
    assert by_result.warnings == ()
    assert plain(by_result.findings) == plain(by_folder.findings)
    assert next(iter(by_result)).name == "accuracy"
    assert len(by_result) == len(by_result.findings)


@pytest.mark.filterwarnings("ignore:the outputs seem to stand in another order")
def test_a_callable_is_a_model() -> None:
    data = load("digits")

    def first_ten(images: Tensor) -> Tensor:
        return 9 * images.flatten(1)[:, 20:30] - 4

    made = holdfast.audit(first_ten, data, checks=["accuracy", "saliency"], device="cpu", workers=0)
    assert made["accuracy"].n == len(data.test or ())
