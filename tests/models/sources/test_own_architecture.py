"""Networks of the user's own code: trained by name, filled with a file's weights, made by a class or function."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import squeezenet1_1

import holdfast
from holdfast.cli import main
from holdfast.errors import HoldfastError

CODE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10, in_channels=3):
        super().__init__()
        self.body = nn.Conv2d(in_channels, 6, 3)
        self.head = nn.Linear(6, num_classes)

    def forward(self, x):
        return self.head(self.body(x).relu().mean((2, 3)))

class Needs(Net):
    def __init__(self, width):
        super().__init__()

def text():
    return "no module"
"""
QUICK: dict[str, Any] = {"epochs": 1, "device": "cpu", "workers": 0, "progress": False}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_nets", raising=False)
    return tmp_path


class Small(nn.Module):
    def __init__(self, num_classes: int, in_channels: int = 1) -> None:
        super().__init__()
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def data() -> tuple[Tensor, Tensor]:
    return torch.rand(40, 3, 40, 40, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4


@pytest.mark.parametrize(
    "make", [Small, lambda: Small(4, 3), partial(squeezenet1_1, weights=None), partial(Small, in_channels=3)]
)
def test_a_class_or_function_makes_a_network_for_the_classes_of_the_data(make: Any) -> None:
    run = holdfast.fit(data(), model=make, method="lff", **QUICK)
    assert run.model(torch.rand(2, 3, 40, 40)).shape == (2, 4)


def test_what_makes_no_network_is_refused(here: Path) -> None:
    import my_nets  # type: ignore[import-not-found]

    with pytest.raises(HoldfastError, match=r"Needs\(\) failed: TypeError: .* must make a torch module"):
        holdfast.fit(data(), model=my_nets.Needs, **QUICK)
    with pytest.raises(HoldfastError, match=r"text returned a str; it must return a torch module"):
        holdfast.fit(data(), model=my_nets.text, **QUICK)
    with pytest.raises(HoldfastError, match="model must be a name such as 'convnet', a run, a module, or a class or"):
        holdfast.fit(data(), model=3, **QUICK)  # type: ignore[arg-type]


def test_an_audit_calls_a_class_or_function_without_arguments() -> None:
    torch.manual_seed(0)  # some initial weights put all outputs in [0, 1], of which an audit warns
    kept = Small(4, 3)
    found = holdfast.audit(lambda: kept, {"test": data()}, checks=["accuracy"], device="cpu")
    assert (
        found["accuracy"].value
        == holdfast.audit(kept, {"test": data()}, checks=["accuracy"], device="cpu")["accuracy"].value
    )
    by_images = holdfast.audit(lambda x: kept(x), {"test": data()}, checks=["accuracy"], device="cpu")
    assert by_images["accuracy"].value == found["accuracy"].value


def test_a_weight_file_is_audited_in_the_users_own_architecture(here: Path) -> None:
    import my_nets

    net = my_nets.Net(num_classes=4)
    torch.save(net.state_dict(), here / "own.pt")
    expected = holdfast.audit(net, {"test": data()}, checks=["accuracy"], device="cpu")["accuracy"]
    for architecture in ("python:my_nets:Net", my_nets.Net, net):
        found = holdfast.audit(
            "own.pt", {"test": data()}, architecture=architecture, class_map="order", checks=["accuracy"], device="cpu"
        )
        assert found["accuracy"].value == expected.value
    with pytest.raises(HoldfastError, match="unknown function of my_nets 'Nett'; did you mean 'Net'"):
        holdfast.audit("own.pt", {"test": data()}, architecture="python:my_nets:Nett", device="cpu")


@pytest.mark.slow
def test_the_command_line_trains_own_code_audits_its_weights_and_continues_from_a_run(here: Path) -> None:
    same = ["--data", "digits", "--device", "cpu"]
    train = [*same, "--epochs", "1", "--quiet", "--out"]
    assert main(["train", "--model", "python:my_nets:Net", *train, "run"]) == 0
    model, card = holdfast.load_model("run")
    assert card.name == "python:my_nets:Net"
    torch.save(model.net.state_dict(), "own.pt")
    audit = [*same, "--checks", "accuracy", "--class-map", "order"]
    assert main(["audit", "own.pt", "--model", "python:my_nets:Net", *audit, "--out", "a"]) == 0
    assert main(["train", "--model", "run", *train, "second"]) == 0
    again = holdfast.fit("digits", model="run", **QUICK)
    assert all(
        torch.equal(v, again.model.state_dict()[k]) for k, v in holdfast.load_model("second")[0].state_dict().items()
    )
    first = holdfast.fit("digits", **QUICK)
    before = {k: v.clone() for k, v in first.model.state_dict().items()}
    third = holdfast.fit("digits", model=first, **QUICK)
    assert third.history[-1]["train_loss"] < first.history[-1]["train_loss"]
    assert all(torch.equal(v, first.model.state_dict()[k]) for k, v in before.items())
