"""What is done at once on a GPU, compiled or cast beforehand gives what one thing after the other gives."""

from __future__ import annotations

import pytest
import torch

from holdfast.attacks import bias_adversarial
from holdfast.attacks.bias_attack import objective
from holdfast.models import build_model
from holdfast.train import fit
from holdfast.train.step import Step
from tests.conftest import PLAIN, brisk, flat_weights, make_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("method", ["lff", "erm+biasadv", "lff+biasadv"])
@pytest.mark.parametrize("ascent", ["none", "fsam"])
@pytest.mark.parametrize("capture", ["off", "on"])
def test_both_networks_at_once(monkeypatch, method: str, ascent: str, capture: str) -> None:
    settings = {
        "device": "cuda", "epochs": 4, "batch_size": 16, "model": "convnet", "method": brisk(method), "ascent": ascent,
        "deterministic": True, "capture": capture, **PLAIN,
    }  # fmt: skip
    data = make_data(96, channels=3)
    at_once = fit(data, **settings)
    monkeypatch.setattr(Step, "_may_part", lambda self, device: False)
    in_turn = fit(data, **settings)
    torch.testing.assert_close(flat_weights(at_once.model), flat_weights(in_turn.model), rtol=1e-5, atol=1e-6)
    biased = [flat_weights(run.state.biased) for run in (at_once, in_turn)]
    torch.testing.assert_close(*biased, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_compiled_search_finds_what_the_plain_one_finds(norm: str) -> None:
    made = [build_model("convnet", num_classes=4, mean=(0.5,) * 3, std=(0.25,) * 3).model.cuda() for _ in range(2)]
    x = torch.rand(32, 3, 16, 16, device="cuda")
    y = torch.randint(4, (32,), device="cuda")
    radius = 0.03 if norm == "linf" else 0.5
    plain, compiled = (
        bias_adversarial(x, y, *made, radius=radius, lam=0.5, norm=norm, compile=c) for c in (False, True)
    )
    moved = (compiled.double() - x.double()).flatten(1)
    size = moved.abs().amax(1) if norm == "linf" else moved.norm(dim=1)
    assert float(size.max()) <= radius
    assert float(compiled.min()) >= 0
    assert float(compiled.max()) <= 1
    for m in made:
        m.eval()
    gains = [objective(found, y, *made, lam=0.5) for found in (plain, compiled)]
    torch.testing.assert_close(gains[0], gains[1], rtol=1e-3, atol=1e-4)
