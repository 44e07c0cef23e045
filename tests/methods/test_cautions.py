"""Methods against a shortcut say that they need one, wherever nothing shows that there is one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast import find_shortcuts, fit
from tests.methods.made import make_method

LABELS = torch.tensor([0, 1, 2, 0])


def nobody(model: nn.Module) -> Tensor:
    raise AssertionError("no prediction is needed")


@pytest.mark.parametrize("name", ["lff", "logit-correction", "lff+biasadv"])
def test_where_no_groups_are_known(name: str) -> None:
    method, state = make_method(LABELS, name=name)
    said = method.begin(state, nobody)
    assert said is not None
    assert said.startswith(f"{name} is for data with a shortcut and lowers accuracy where there is none")
    assert said.endswith("look with holdfast shortcuts --data DATA")


@pytest.mark.parametrize(
    ("name", "groups"), [("lff", [0, 1, 0, 1]), ("logit-correction", [-1, -1, 0, -1]), ("erm", [-1] * 4)]
)
def test_not_where_they_are_nor_of_other_methods(name: str, groups: list[int]) -> None:
    method, state = make_method(LABELS, torch.tensor(groups), name=name)
    assert method.begin(state, nobody) is None


def test_a_user_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = []
    for data in ("digits", "coloured-digits"):
        fit(data, method="logit-correction", epochs=1, device="cpu", batch_size=512, progress=True)
        words.append(" ".join(capsys.readouterr().err.split()))
    assert "logit-correction is for data with a shortcut" in words[0]
    assert "is for data with a shortcut" not in words[1]


def test_not_while_a_shortcut_is_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    find_shortcuts("digits", epochs=1, seeds=1, device="cpu", progress=True)
    assert "is for data with a shortcut" not in " ".join(capsys.readouterr().err.split())
