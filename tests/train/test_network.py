"""Modules that callers bring along: looked at before training, and trained as they are."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.models import load_model
from holdfast.settings import TrainSettings, build
from holdfast.train import fit, train
from tests.conftest import Heard, make_data, same_weights
from tests.train.plain import PLAIN, Linear


class Answers(Linear):
    """Logits inside of something else, as libraries of transformers give them."""

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=super().forward(x))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (5, "model must be a name such as 'convnet', a run, a module, or a class or function that makes one, got 5"),
        (None, "that makes one, got None"),
        (["convnet"], r"that makes one, got \['convnet'\]"),
        (lambda x: x, r"<lambda>\(\) failed: TypeError: .*; it must make a torch module from num_classes"),
        ("", "unknown model ''"),
        (
            Linear(classes=4),
            r"this Linear must give logits of shape \(2, 3\) for 2 images of 3 classes, and gives \(2, 4\)",
        ),
        (Linear(inputs=9), r"this Linear cannot take images of shape \(1, 8, 8\) \(C, H, W\): .*mat1 and mat2"),
        (Pair(), "and gives tuple; change its last layer"),
        (Answers(), "and gives SimpleNamespace; wrap it so that it returns .logits"),
        (nn.Sequential(nn.AdaptiveAvgPool2d((1, 3)), nn.Flatten()), "this Sequential has no parameter to train"),
    ],
)
def test_what_is_no_model_for_the_data_is_refused(model: object, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        fit(make_data(), model=model, **PLAIN)  # type: ignore[arg-type]


def test_a_module_is_looked_at_without_changing_what_it_becomes() -> None:
    torch.manual_seed(0)
    lazy, plain = nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), Linear()
    before = copy.deepcopy(plain)
    assert fit(make_data(), model=lazy, **PLAIN).model is lazy
    assert fit(make_data(), model=plain, lr=0.0, **PLAIN).model is plain
    assert same_weights(before, plain)


def test_a_module_is_looked_at_in_the_precision_it_is_trained_in() -> None:
    fit(make_data(), model=Linear().bfloat16(), precision="bf16", **PLAIN)


class Complex(Linear):
    """A filter in the frequency domain before the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.ones(8, 8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.fft.ifft2(torch.fft.fft2(x) * self.filter).real)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_complex_weights_are_trained(optimizer: str) -> None:
    model = Complex()
    fit(make_data(), model=model, optimizer=optimizer, lr=0.01, **PLAIN)
    assert not torch.equal(model.filter, torch.ones_like(model.filter))
    assert bool(model.filter.isfinite().all())


def told(model: nn.Module, out: Path | None = None, **given: object) -> tuple[nn.Module, list[str]]:
    """A module's own method after training, and what was said."""
    heard = Heard()
    settings = build(TrainSettings, {**PLAIN, **given})
    return train(settings, data=make_data(), model=model, out=out, progress=heard).state, heard.notes


def test_the_weights_that_were_kept_can_be_loaded_again(tmp_path: Path) -> None:
    model, out = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), tmp_path / "own"
    _, notes = told(model, out, ema=0.9)  # what is kept are averages, and not what training goes on from
    again = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    again.load_state_dict(load_file(out / "model.safetensors"))
    assert same_weights(again, model)
    (note,) = [note for note in notes if "model.safetensors" in note]
    assert re.search("weights of this Sequential.*what builds it is not stored", note)


@pytest.mark.parametrize("command", ["predict", "audit"])
def test_a_run_of_a_module_of_ones_own_says_how_to_use_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own"
    told(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), out)
    assert main([command, str(out), "--data", "digits", "--out", str(tmp_path / "out.csv"), "--device", "cpu"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{out} was trained with a module of its own, Sequential, which only your code can build" in said
    assert "model.safetensors" in said
    assert "finished run" not in said
    with pytest.raises(HoldfastError, match="no model in .*; give the folder of a finished run"):
        load_model(tmp_path)


class Remembers(Linear):
    """A state that is no tensor."""

    def get_extra_state(self) -> str:
        return "calibrated"

    def set_extra_state(self, state: str) -> None:
        assert state == "calibrated"


def test_what_is_more_than_weights_stays_in_the_checkpoint(tmp_path: Path) -> None:
    _, notes = told(Remembers(), tmp_path / "own")
    assert not (tmp_path / "own" / "model.safetensors").exists()
    assert [note for note in notes if "this Remembers holds more than plain tensors; keep the model" in note]
    with pytest.raises(HoldfastError, match="only your code can build; load its weights .*checkpoint"):
        load_model(tmp_path / "own")


@pytest.mark.parametrize("method", ["lff", "jtt", "erm+biasadv"])
def test_an_auxiliary_network_is_a_copy_of_the_module(method: str) -> None:
    model = Linear()
    before = copy.deepcopy(model)
    trained, notes = told(model, method=method, lr=0.0, weight_decay=0.0)
    biased = trained.biased
    assert isinstance(biased, Linear)
    assert biased.layer.weight is not model.layer.weight
    assert same_weights(biased, before)
    assert [note for note in notes if "copy of this Linear" in note]
    trained, _ = told(model, method=method, lr=0.1)
    assert not same_weights(trained.biased, before)  # type: ignore[arg-type]


def test_a_module_that_is_not_whole_yet_is_copied_when_it_is() -> None:
    trained, _ = told(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), method="lff")
    assert isinstance(trained.biased, nn.Sequential)


def test_a_module_that_cannot_be_copied_is_refused_where_a_copy_is_needed() -> None:
    model = Linear()
    model.layer.scale = model.layer.weight.norm()  # part of a graph, as some libraries leave it
    told(model)
    with pytest.raises(HoldfastError, match="needs a second network, and this Linear cannot be copied: .*; "):
        told(model, method="lff")
