"""What a user gets who gives no flag: bf16, channels-last, captured, compiled where that pays. Needs a CUDA device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from holdfast.audits.checks.curvature.eigenvalues import batches, spectrum
from holdfast.audits.run_audit import audit, measuring_precision
from holdfast.audits.subject import Subject
from holdfast.devices import tf32_as_asked
from holdfast.errors import Interrupted
from holdfast.settings import device_defaults, read_yaml
from holdfast.train import fit
from holdfast.train.training_facts import can_compile
from tests.conftest import Heard, SignalAt, flat_weights, make_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPEN: dict[str, Any] = {"device": "cuda", "epochs": 8, "batch_size": 16, "model": "convnet", "optimizer": "adamw"}
NEW = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def test_a_gpu_trains_fast_and_says_so(tmp_path: Path) -> None:
    shown = Heard()
    run = fit(make_data(96, channels=3), out=tmp_path / "run", progress=shown, **OPEN)  # type: ignore[arg-type]
    loop = run.settings.loop
    assert (loop.precision, loop.channels_last, loop.compile) == ("bf16" if NEW else "fp32", "on", "off")
    assert any(note.startswith("chosen for the GPU: ") for note in shown.notes)
    assert not any("cannot be captured" in note for note in shown.notes)
    assert read_yaml(tmp_path / "run" / "run.yaml")["precision"] == loop.precision
    assert next(run.model.parameters()).dtype == torch.float32
    assert run.history[-1]["train_loss"] < 0.6 * run.history[0]["train_loss"]


def test_a_long_training_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPILE_SECONDS", "COMPILE_SECONDS_PER_LAYER"):
        monkeypatch.setattr(device_defaults, name, 1e-9)  # as if it cost nothing
    if not can_compile():
        pytest.skip("no Triton or C compiler")
    run = fit(make_data(96, channels=3), **OPEN)
    assert run.settings.loop.compile == "on"
    assert run.history[-1]["train_loss"] < 0.6 * run.history[0]["train_loss"]


def test_defaults_resume_on_the_gpu_as_if_nothing_had_happened(tmp_path: Path) -> None:
    data = make_data(96, channels=3)
    how = OPEN | {"deterministic": True}
    whole = fit(data, **how)
    with pytest.raises(Interrupted):
        fit(data, out=tmp_path / "run", progress=SignalAt(21), **how)  # type: ignore[arg-type]
    resumed = fit(data, out=tmp_path / "run", resume=True, **how)
    assert resumed.settings == whole.settings
    torch.testing.assert_close(flat_weights(whole.model), flat_weights(resumed.model), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not NEW, reason="needs TF32")
@pytest.mark.parametrize(("precision", "rough"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_tf32_is_used_exactly_where_it_was_asked_for(precision: str, rough: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (8, 64, 16, 16), (64, 64, 3, 3), (256, 256), (256, 256)
    x, w, a, b = (torch.randn(shape, device="cuda", generator=generator) for shape in shapes)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with tf32_as_asked(precision):
        conv, product = F.conv2d(x, w, padding=1), a @ b
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before
    truth = F.conv2d(x.double(), w.double(), padding=1), a.double() @ b.double()
    for got, exact in zip((conv, product), truth, strict=True):
        error = float((got - exact).abs().max() / exact.abs().max())
        assert (error > 2e-5) == rough, error


def test_an_audit_says_in_which_precision_it_measured() -> None:
    data = make_data(96, channels=3)
    run = fit(data, **OPEN)
    found = audit(run, checks=["accuracy"], device="cuda")
    usual = measuring_precision("auto", torch.device("cuda"))
    assert found.files[0].run["precision"] == usual == ("tf32" if NEW else "fp32")
    assert found.files[0].run["batch_size"] == 256
    exact = audit(run, checks=["accuracy"], device="cuda", precision="fp32")
    assert exact.files[0].run["precision"] == "fp32"
    assert exact["accuracy"].value == pytest.approx(found["accuracy"].value, abs=0.05)


def test_curvature_is_that_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of one size, with the fastest kernels, though all else on the GPU may be rough."""
    data = make_data(100, channels=3)
    model = fit(data, **OPEN).model
    found = {}
    for name, size in (("cpu", 256), ("cuda", 12)):
        subject = Subject(model.to(name), data, torch.device(name), batch_size=size)
        found[name] = spectrum(subject, data.train, ggn=False).eigenvalues
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=2e-3, atol=1e-4)
    monkeypatch.setattr("holdfast.audits.checks.curvature.eigenvalues.PIXELS", 0)
    part = data.train.subset(torch.arange(60))
    assert [len(y) for _, y in batches(replace(subject, batch_size=25), part)] == [20, 20, 20]
