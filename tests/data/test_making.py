"""Sets made by one call: what is refused before any work, what is said, and that nothing is replaced unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli import main
from holdfast.data import load
from holdfast.data import making as module
from holdfast.data.making import make_data
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write


def ten_classes(folder: Path) -> Path:
    """A file of CIFAR-10's name and shape, with few images."""
    x = np.random.default_rng(0).integers(0, 256, (240, 32, 32, 3), dtype=np.uint8)
    y = np.arange(240) % 10
    np.savez(folder / "cifar10.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    return folder


@pytest.mark.parametrize(
    ("what", "out", "given", "message"),
    [
        ("coloured", "a.zip", {"data": "digits"}, "out must end in .npz, got .*a.zip"),
        ("coloured", "there.npz", {"data": "digits"}, "there.npz exists already; replace it with --overwrite"),
        ("corrupted-cifar10", "there.npz", {}, "there.npz exists already"),
        ("fashion-anomalies", "folder", {}, "fashion-anomalies.npz exists already"),
        ("watermark", "a.npz", {"data": "digits", "device": "cuda"}, "device cuda is for corrupted-cifar10, not for"),
        ("corrupted-cifar10", "a.npz", {"device": "cuda:99"}, "device 'cuda:99' is not there"),
        ("watermark", "a.npz", {}, "watermark is added to a set: name it with --data"),
        ("coloured", "a.npz", {"data": "digits", "strength": 0.5}, "strength 0.5 is for fashion-anomalies, not for"),
        ("coloured", "a.npz", {"data": "digits", "seed": -1}, "seed must be in 0..2\\*\\*63-1, got -1"),
    ],
)
def test_refused_before_any_work(
    what: str, out: str, given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("it had begun")

    for name in ("load", "make_fashion_anomalies"):
        monkeypatch.setattr(module, name, work)
    (tmp_path / "folder").mkdir()
    for name in ("there.npz", "folder/fashion-anomalies.npz"):
        (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(HoldfastError, match=message):
        make_data(what, tmp_path / out, **given)
    assert (tmp_path / "there.npz").read_bytes() == b"precious"


def test_overwrite_replaces(tmp_path: Path) -> None:
    (tmp_path / "there.npz").write_bytes(b"old")
    said = make_data("watermark", tmp_path / "there.npz", data="digits", conflict=0.1, overwrite=True)
    assert said.endswith("there.npz: 1198 training images, 120 of them bias-conflicting")
    train = load(tmp_path / "there.npz").train
    assert int((train.groups != train.labels).sum()) == 120


@pytest.mark.parametrize(("kind", "grown"), [(None, True), ("lff-0", True), ("lff-1", False)])
def test_it_is_said_that_frost_is_grown(kind: str | None, grown: bool, tmp_path: Path) -> None:
    heard: list[str] = []
    make_data("corrupted-cifar10", tmp_path / "a.npz", root=str(ten_classes(tmp_path)), kind=kind, note=heard.append)
    assert heard[0] == "corrupting 240 images"
    assert any("frost" in note and "--frost" in note for note in heard) == grown


def test_what_befalls_the_images_on_the_way_is_said_and_their_size_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, name in ((12, "a"), (20, "b")):
        for part in ("train", "test"):
            for i in range(4):
                write(tmp_path / "set" / part / name / f"{i}.png", noise(side, side, seed=side + i))
    words = ["data", "make", "watermark", "--data", str(tmp_path / "set"), "--conflict", "0.25"]
    assert main([*words, "--out", str(tmp_path / "usual.npz")]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "images differ in size (from 12x12 to 20x20 among 8 sampled); the short side is resized to 224" in told
    assert "and the centre cut out" in told
    assert load(tmp_path / "usual.npz").shape == (3, 224, 224)
    assert main([*words, "--image-size", "16", "--out", str(tmp_path / "small.npz")]) == 0
    assert "differ in size" not in capsys.readouterr().err
    assert load(tmp_path / "small.npz").shape == (3, 16, 16)
    assert main(["data", "make", "fashion-anomalies", "--image-size", "16", "--out", str(tmp_path / "f")]) == 2
    assert "image_size 16 is for coloured, watermark, background, not for" in " ".join(capsys.readouterr().err.split())
