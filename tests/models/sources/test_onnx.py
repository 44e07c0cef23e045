"""ONNX graphs give the numbers of the same arithmetic in torch; their layout is read, not asked for."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.models import open_model
from holdfast.models.sources.onnx import read_input
from tests.models.sources.small import Small

X = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def graph(path: Path, shape: list[Any], *, last: bool = False, outputs: int = 1) -> None:
    """Means over space and, as a second output, twice that."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    axes = [1, 2] if last else [2, 3]
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["y0"], keepdims=0),
        helper.make_node("Add", ["y0", "y0"], ["y1"]),
    ][:outputs]
    made = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(f"y{i}", kind, [shape[0], 3]) for i in range(outputs)],
        [helper.make_tensor("axes", onnx.TensorProto.INT64, [2], axes)],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))


@pytest.mark.parametrize(
    ("shape", "last", "note"),
    [
        (["batch", 3, 6, 6], False, None),
        ([2, 3, 6, 6], False, "batches of exactly 2"),
        (["batch", 6, 6, 3], True, "channels last"),
        (["n", 3, "h", "w"], False, None),
    ],
)
def test_a_graph_in_any_layout(tmp_path: Path, shape: list[Any], last: bool, note: str | None) -> None:
    pytest.importorskip("onnxruntime")
    graph(tmp_path / "m.onnx", shape, last=last)
    found = open_model(str(tmp_path / "m.onnx"), shape=(3, 6, 6))
    assert torch.allclose(found.model(X), X.mean((2, 3)), atol=1e-6)
    assert not found.gradients
    assert found.size == (None if "h" in shape else (6, 6))
    assert note is None or any(note in text for text in found.notes)


def test_several_outputs_and_damaged_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph(tmp_path / "m.onnx", ["n", 3, 6, 6], outputs=2)
    with pytest.raises(HoldfastError, match=r"with 2 tensors \(y0 \(2, 3\), y1 \(2, 3\)\)"):
        open_model(str(tmp_path / "m.onnx"), shape=(3, 6, 6))
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="cannot read .*bad.onnx as ONNX"):
        open_model(str(tmp_path / "bad.onnx"), shape=(3, 6, 6))


def test_without_onnxruntime_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(HoldfastError, match=r"needs onnxruntime; run: pip install 'holdfast\[onnx\]'"):
        open_model(str(tmp_path / "m.onnx"), shape=(3, 6, 6))


def given(shape: list[Any], kind: str = "tensor(float)") -> list[SimpleNamespace]:
    return [SimpleNamespace(name="x", type=kind, shape=shape)]


def test_layouts_without_the_runtime() -> None:
    found = read_input(given([None, "c", 8, 9], "tensor(float16)"), "m")
    assert (found.batch, found.channels, found.size, found.dtype) == (None, None, (8, 9), torch.float16)
    assert read_input(given([4, 8, 9, 1]), "m").size == (8, 9)
    with pytest.raises(HoldfastError, match="m takes x tensor.int64. .1, 5.; one batch of float images"):
        read_input(given([1, 5], "tensor(int64)"), "m")
    with pytest.raises(HoldfastError, match="m takes nothing"):
        read_input([], "m")


@pytest.mark.slow
def test_a_network_exported_by_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    net = Small(3, 4, 6).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(net, (torch.zeros(2, 3, 6, 6),), tmp_path / "m.onnx", verbose=False)
    found = open_model(str(tmp_path / "m.onnx"), shape=(3, 6, 6))
    assert torch.allclose(found.model(X), net(X), atol=1e-5)
    assert any("batches of exactly 2" in text for text in found.notes)
