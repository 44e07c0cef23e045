"""Which source a specification belongs to, and what is said where it belongs to none or to two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.models import build_model, model_names
from holdfast.models.resolution import find_source, resolve, unambiguous


def kind_of(spec: str) -> tuple[str, str]:
    part, rest = find_source(spec)
    return part.name, rest


@pytest.mark.parametrize(
    ("spec", "kind", "rest"),
    [
        ("timm:resnet18.a1_in1k", "timm", "resnet18.a1_in1k"),
        ("hf-hub:timm/resnet18.a1_in1k", "timm", "hf-hub:timm/resnet18.a1_in1k"),
        ("torchvision:resnet18:IMAGENET1K_V1", "torchvision", "resnet18:IMAGENET1K_V1"),
        ("python:mine.models:make", "python", "mine.models:make"),
        ("vit_tiny_patch16_224", "timm", "vit_tiny_patch16_224"),
    ],
)
def test_prefixes_and_names_that_are_clear(spec: str, kind: str, rest: str) -> None:
    assert kind_of(spec) == (kind, rest)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("m.onnx", "onnx"), ("m.pt2", "exported"), ("m.torchscript", "torchscript"), ("m.safetensors", "weights")],
)
def test_files_are_told_by_their_suffix(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert kind_of(str(tmp_path / name)) == (kind, str(tmp_path / name))


def test_a_pt_file_is_told_by_its_content(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.warns((FutureWarning, DeprecationWarning)):
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), tmp_path / "program.pt")  # type: ignore[no-untyped-call]
    assert kind_of(str(tmp_path / "weights.pt"))[0] == "weights"
    assert kind_of(str(tmp_path / "program.pt"))[0] == "torchscript"
    (tmp_path / "old.pth").write_bytes(b"no archive")
    assert kind_of(str(tmp_path / "old.pth"))[0] == "weights"


def test_a_folder_is_a_run_even_under_a_models_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resnet18").mkdir()
    monkeypatch.chdir(tmp_path)
    assert kind_of("resnet18") == ("run", "resnet18")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet18", "exists in timm and torchvision; say timm:resnet18 or torchvision:resnet18"),
        ("convnet", "an architecture of holdfast's own, without weights; give the folder of a run"),
        ("tim:resnet18", "did you mean timm:resnet18?"),
        ("timm:", "names nothing after the colon"),
        ("vit_tiny_patch16_22", "did you mean 'vit_tiny_patch16_224'"),
        ("  ", "no model was given; give a run folder"),
        ("no-such-folder/model.onnx", "there is no folder no-such-folder"),
    ],
)
def test_what_is_unclear_is_refused_with_a_hint(spec: str, message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        kind_of(spec)
    assert message in str(caught.value)


def test_a_mistyped_file_is_pointed_to_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(HoldfastError, match=r"mdoel.onnx does not exist \(did you mean .*model.onnx\?\)"):
        kind_of(str(tmp_path / "mdoel.onnx"))
    (tmp_path / "model.h5").write_bytes(b"x")
    with pytest.raises(HoldfastError, match=r"is of no known kind \(.h5\)"):
        kind_of(str(tmp_path / "model.h5"))


def test_an_architecture_of_two_libraries_needs_its_prefix() -> None:
    assert unambiguous("timm:resnet18") == "timm:resnet18"
    assert unambiguous("convnet") == "convnet"
    with pytest.raises(HoldfastError, match="exists in timm and torchvision"):
        unambiguous("resnet18")


def test_names_are_grouped_by_source() -> None:
    names = model_names()
    assert list(names) == ["holdfast", "timm", "torchvision"]
    assert names["holdfast"][0] == "convnet"
    assert "vit_tiny_patch16_224" in names["timm"]
    assert "vit_b_16" in names["torchvision"]
    assert "fasterrcnn_resnet50_fpn" not in names["torchvision"]


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("cifar-resnet18", ("holdfast", "cifar-resnet18")),
        ("resnet18", ("timm", "resnet18")),
        ("resnet18.tv_in1k", ("timm", "resnet18.tv_in1k")),
        ("timm:resnet18", ("timm", "resnet18")),
        ("torchvision:resnet18", ("torchvision", "resnet18")),
        ("vit_b_16", ("torchvision", "vit_b_16")),
    ],
)
def test_a_bare_name_is_looked_up_in_order(name: str, resolved: tuple[str, str]) -> None:
    part, inner = resolve(name)
    assert (part.name, inner) == resolved


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("convnett", "unknown model 'convnett'; did you mean 'convnet'"),
        ("cifar-resnt18", "did you mean 'cifar-resnet18'"),
        ("resnt18", "did you mean 'resnet18'"),
        ("torchvision:resnt18", "did you mean 'torchvision:resnet18'"),
        ("timm:convnet", "unknown model 'timm:convnet'"),
        ("timm:", "unknown model 'timm:'"),
        ("tim:resnet18", "unknown model 'tim:resnet18'"),
        ("", "unknown model ''"),
        ("resnet18.tv_in2k", "unknown timm weights 'resnet18.tv_in2k'; did you mean 'resnet18.tv_in1k'"),
        ("torchvision:fasterrcnn_resnet50_fpn", "not a plain image classifier"),
        ("deeplabv3_resnet50", "not a plain image classifier"),
        ("torchvision:quantized_resnet18", "not a plain image classifier"),
    ],
)
def test_unknown_names_get_a_hint(name: str, message: str) -> None:
    with pytest.raises(HoldfastError, match=re.escape(message)):
        build_model(name, num_classes=2)
