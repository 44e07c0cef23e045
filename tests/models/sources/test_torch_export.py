"""torch.export archives: the same numbers, any batch, and nothing unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.models import open_model
from tests.models.sources.small import Small

X = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def net() -> Small:
    torch.manual_seed(0)
    return Small(3, 3, 16).eval()


@pytest.fixture(scope="module")
def archive(net: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "m.pt2"
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3, 16, 16),)), path)
    return path


def test_a_fixed_batch_is_padded(net: Small, archive: Path) -> None:
    found = open_model(str(archive), shape=(3, 16, 16))
    assert torch.allclose(found.model(X), net(X), atol=1e-6)
    assert (found.source, found.size, found.channels, found.gradients) == ("exported", (16, 16), 3, True)
    assert any("batches of exactly 2" in note for note in found.notes)


def test_images_of_another_size_are_resized(archive: Path) -> None:
    found = open_model(str(archive), shape=(1, 20, 20))
    assert found.model(torch.rand(3, 1, 20, 20)).shape == (3, 3)


def test_an_archive_that_would_be_unpickled_is_refused(archive: Path, tmp_path: Path) -> None:
    """torch falls back to a loader that runs code: the file must not get that far."""
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (ran,)

    torch.save(Evil(), tmp_path / "evil.pt")
    bad = tmp_path / "bad.pt2"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(bad, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            evil = "sample_inputs" in name
            new.writestr(name, (tmp_path / "evil.pt").read_bytes() if evil else old.read(name))
    with pytest.raises(HoldfastError, match="holds pickled objects.*python:module:function"):
        open_model(str(bad), shape=(3, 16, 16))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m/data/constants/custom_obj_0", b"", "holds pickled objects"),
        ("m/data/weights/model_weights_config.json", b'{"config": {"w": {"use_pickle": true}}}', "pickled objects"),
    ],
)
def test_members_that_hold_objects_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as new:
        new.writestr("m/archive_format", "pt2")
        new.writestr(name, content)
    with pytest.raises(HoldfastError, match=message):
        open_model(str(tmp_path / "m.pt2"), shape=(3, 16, 16))


def test_damaged_archives(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="damaged, or not a .pt2 file"):
        open_model(str(tmp_path / "m.pt2"), shape=(3, 16, 16))
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as new:
        new.writestr("other", "x")
    with pytest.raises(HoldfastError, match="of an older torch"):
        open_model(str(tmp_path / "m.pt2"), shape=(3, 16, 16))
