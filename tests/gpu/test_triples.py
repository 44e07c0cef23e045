"""Every method with every ascent and optimiser: captured and eager training are the same. Needs a CUDA device."""

from __future__ import annotations

import pytest
import torch

from holdfast.parts import ASCENTS, METHODS
from holdfast.settings import TrainSettings, build
from holdfast.train import train
from tests.conftest import PLAIN, Heard, brisk, flat_weights, make_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COMMON = {"device": "cuda", "epochs": 3, "batch_size": 16, "crop": 1, "flip": True, "model": "convnet"}
COMMON |= PLAIN


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("ascent", sorted(ASCENTS))
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_captured_equals_eager(method: str, ascent: str, optimizer: str) -> None:
    """Ascents along the whole training set go over it batch by batch and stay eager: there, that it is said."""
    settings = {**COMMON, "method": brisk(method), "ascent": ascent, "optimizer": optimizer, "deterministic": True}
    data = make_data(80, channels=3, groups=2)
    graphs = not ASCENTS[ascent].made.reads_whole_set
    heard, chosen = Heard(), "on" if graphs else "auto"
    eager, captured = (
        train(build(TrainSettings, {**settings, "capture": c}), data=data, progress=heard) for c in ("off", chosen)
    )
    torch.testing.assert_close(flat_weights(eager.model), flat_weights(captured.model), rtol=1e-4, atol=1e-5)
    if not graphs:
        assert any("takes the gradient of all" in note for note in heard.notes)
