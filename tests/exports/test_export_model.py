"""Exported files give the outputs of the run they were made of, in the runtimes that people use, at any batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.audits.run_audit import audit
from holdfast.cli import main
from holdfast.data import Dataset, load
from holdfast.errors import HoldfastError
from holdfast.exports import export, export_files, export_model
from holdfast.models import load_model, open_model
from holdfast.train import fit
from tests.conftest import make_data

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]  # torch.jit's
KINDS = (
    "torchscript",
    pytest.param("pt2", marks=pytest.mark.slow),
    pytest.param("onnx", marks=[pytest.mark.slow, pytest.mark.dev]),
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="module")
def run(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    fit("digits", epochs=2, lr=0.1, device="cpu", out=folder)
    return folder


def images(data: Dataset, n: int) -> Tensor:
    return data.train.read(torch.arange(n)).float() / 255


def outputs(path: Path, x: Tensor, sizes: list[int]) -> Tensor:
    """What a file gives in its own runtime, without anything of holdfast."""
    parts = torch.split(x, sizes)
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        found = [torch.from_numpy(session.run(None, {"images": part.numpy()})[0]) for part in parts]
    elif path.suffix == ".pt2":
        program = torch.export.load(str(path)).module()
        found = [program(part) for part in parts]
    else:
        traced: Any = torch.jit.load(str(path))
        found = [traced(part) for part in parts]
    return torch.cat(found).detach()


@pytest.mark.parametrize("to", KINDS)
def test_a_file_agrees_with_the_run_on_1000_images_at_other_batch_sizes(
    run: Path, digits: Dataset, tmp_path: Path, to: Any
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxscript")
    x = images(digits, 1000)
    made = export(run, to=to, out=tmp_path / f"m.{to}", data=digits.train)
    assert made.images == 1000
    assert made.difference <= 1e-4
    assert made.same_class == 1.0
    with torch.no_grad():
        wanted = load_model(run)[0](x)
    assert wanted.abs().max() > 1, "untrained outputs agree too easily"
    assert torch.allclose(outputs(made.path, x, [1, 3, 996]), wanted, rtol=0, atol=1e-4)
    # an audit opens it with the run's classes and without guessing at preprocessing
    opened = open_model(str(made.path), shape=digits.shape)
    assert opened.classes == digits.classes
    assert opened.preprocessing is not None
    assert torch.allclose(opened.model(x[:9]), wanted[:9], atol=1e-4)


def test_probabilities_of_a_training_in_memory_can_be_exported(tmp_path: Path) -> None:
    data = make_data()
    result = fit(data, epochs=1, batch_size=16, device="cpu")
    made = holdfast.export(result, to="torchscript", out=tmp_path / "m.torchscript", output="probabilities")
    x = images(data, 20)
    with torch.no_grad():
        wanted = result.model(x).softmax(1)
    assert torch.allclose(outputs(made.path, x, [20]), wanted, atol=1e-5)
    assert made.compared_on == f"{len(data.test or [])} images of the test split of {data.name}"


def test_a_module_is_exported_with_the_data_it_belongs_to_and_left_alone(digits: Dataset, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 10)).train()
    made = export(module, to="torchscript", out=tmp_path / "m.torchscript", data=digits)
    assert module.training
    x = images(digits, 8)
    assert torch.allclose(outputs(made.path, x, [8]), module.eval()(x), atol=1e-5)
    with pytest.raises(HoldfastError, match="says neither its classes nor its image size; give"):
        export(module, to="torchscript", out=tmp_path / "n.torchscript")


class Counted(nn.Module):
    """Divides by the number of images it is traced with: right for that number alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1)) / len(x)
        return out


def test_a_file_that_differs_is_not_kept(digits: Dataset, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def wrong(net: nn.Module, x: Tensor, path: Path, says: Any) -> None:
        class Off(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, images: Tensor) -> Tensor:
                return self.net(images) + 0.01 * images.mean()

        export_files.write_torchscript(Off(), x, path, says)

    monkeypatch.setitem(export_model.WRITERS, "torchscript", wrong)
    with pytest.raises(HoldfastError, match="does not agree with the run: outputs differ by up to 0.00.*nothing was"):
        export(run, to="torchscript", out=tmp_path / "new" / "m.torchscript")
    assert not (tmp_path / "new").exists()
    made = export(run, to="torchscript", out=tmp_path / "new" / "m.torchscript", tolerance=0.1)
    assert made.difference == pytest.approx(0.01 * float(images(digits, 1000).mean()), rel=0.5)


def test_a_batch_size_that_is_traced_in_is_found(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="does not agree|cannot be exported"):
        export(Counted(), to="torchscript", out=tmp_path / "m.torchscript", data=digits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_writes_into_the_run_with_a_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", "pt2"]) == 0
    told = capsys.readouterr()
    assert "outputs differ from the run's by at most" in told.out
    assert "599 images of the test split of digits" in told.out
    path = run / "export" / "model.pt2"
    assert path.is_file()
    card = Path(f"{path}.md").read_text(encoding="utf-8")
    for part in (
        "pipeline_tag: image-classification",
        "1,198 train, 599 test images of 10 classes",
        "lr: 0.1",
        "| 9 | 9 |",
        "as for training: the short side is resized to 16 and the centre cut out",
    ):
        assert part in card
    before = path.read_bytes()
    assert main(["export", str(run), "--to", "pt2"]) == 2
    assert "exists; replace it with --overwrite" in " ".join(capsys.readouterr().err.split())
    assert path.read_bytes() == before


BAD = {
    "no run": (["nowhere"], "no model in nowhere"),
    "wrong end": (["RUN", "--to", "pt2", "--out", "m.onnx"], "must end in .pt2"),
    "opset": (["RUN", "--to", "pt2", "--opset", "18"], "opset 18 is for ONNX"),
    "old opset": (["RUN", "--opset", "9"], "opset must be in 18..30, got 9"),
    "tolerance": (["RUN", "--tolerance", "0"], "tolerance must be"),
    "data": (["RUN", "--data", "digts"], "did you mean 'digits'"),
    "audit": (["RUN", "--to", "pt2", "--out", "m.pt2", "--audits", "nothing"], "nothing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = BAD[name]
    assert main(["export", *(str(run) if word == "RUN" else word for word in words)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_extra_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_files, "find_spec", lambda name: None)
    with pytest.raises(HoldfastError, match=r"needs onnx, onnxscript, onnxruntime; run: .*holdfast\[onnx\]"):
        export(run, out=tmp_path / "m.onnx")


def test_without_its_data_a_run_is_compared_on_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x[:8], y_test=np.arange(8) % 2)
    fit(tmp_path / "mine.npz", epochs=1, device="cpu", out=tmp_path / "run")
    (tmp_path / "mine.npz").unlink()
    told: list[str] = []
    made = export(tmp_path / "run", to="torchscript", images=30, note=told.append)
    assert made.compared_on == "30 images of noise"
    assert any("cannot be read" in line and "--data names images" in line for line in told)
    assert made.path == tmp_path / "run" / "export" / "model.torchscript"


@pytest.mark.slow
def test_the_card_has_the_audit_and_refuses_that_of_another_model(run: Path, tmp_path: Path) -> None:
    done = audit(
        str(run), "digits", checks=["accuracy"], device="cpu", out=tmp_path / "audit", fail_under={"accuracy": 0.05}
    )
    made = export(run, to="torchscript", out=tmp_path / "m.torchscript", audits=[tmp_path / "audit"], redact_paths=True)
    card = made.card.read_text(encoding="utf-8")
    value = done["accuracy"].value
    assert value is not None
    assert f"{100 * value:.1f}" in card
    assert "passed" in card
    assert str(run.parent) not in card
    assert "Not measured: " in card
    fit(make_data(), epochs=1, batch_size=16, device="cpu", out=tmp_path / "other")
    with pytest.raises(HoldfastError, match="is of other weights"):
        export(tmp_path / "other", to="torchscript", audits=[tmp_path / "audit"])


def test_the_card_of_a_training_in_memory_names_its_own_data(tmp_path: Path) -> None:
    result = fit(make_data(), epochs=1, batch_size=16, device="cpu")
    made = export(result, to="torchscript", out=tmp_path / "m.torchscript")
    card = made.card.read_text(encoding="utf-8")
    assert "data: bars\n" in card
    assert "bars: 96 train, 48 test images of 3 classes." in card
