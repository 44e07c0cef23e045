"""Files of arrays that are damaged, that lie, or that promise more than there is: each is refused in one sentence."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli import main
from holdfast.data import load
from holdfast.data.array_files import machine_memory, open_npz
from holdfast.errors import HoldfastError

X, Y = np.arange(64, dtype=np.uint8).reshape(4, 4, 4), np.array([0, 1, 0, 1])


def npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def described(kind: Any = "|u1", shape: Any = (4, 4, 4)) -> str:
    return repr({"descr": kind, "fortran_order": False, "shape": shape})


def whole(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write(path: Path, method: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    content = {"x_train": whole(X), "y_train": whole(Y), "x_test": whole(X), "y_test": whole(Y)} | members
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(f"{name}.npy", data)
    return path


MEMBERS = {
    "a token that never ends": (npy("{'descr': '|u1', 'shape': (4,4,4"), "cannot read x_train of .*set.npz: "),
    "no header at all": (npy("lambda: 0"), "cannot read x_train of .*set.npz: "),
    "a key that cannot be one": (npy("{[]: 1}"), "cannot read x_train of .*set.npz: "),
    "brackets": (npy("(" * 5000), "cannot read x_train of .*set.npz: "),
    "a type that is none": (npy(described("nonsense")), "cannot read x_train of .*set.npz: "),
    "a boolean shape": (npy(described(shape=(True, 64)), X.tobytes()), r"shape \(True, 64\) of type uint8 is not that"),
    "a negative shape": (npy(described(shape=(-1, 4, 4)), X.tobytes()), r"shape \(-1, 4, 4\) of type uint8 is not"),
    "a shape of text": (npy(described(shape=("4",)), X.tobytes()), "cannot read x_train of .*set.npz: "),
    "a shape beyond any machine": (npy(described(shape=(10**30,))), "x_train of .*set.npz promises .* GiB, and"),
    "a type without a byte": (npy(described("|V0", (10**12,))), "is not that of an array"),
    "more than it has": (npy(described(), X.tobytes()[:-1]), "it promises 64 bytes and has 63; write the file again"),
    "less than it has": (npy(described(shape=(3, 4, 4)), X.tobytes()), "it has more bytes than the 48 of its shape"),
    "half a header": (b"\x93NUMPY\x01\x00\xff", "cannot read x_train of .*set.npz: "),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMBERS)
def test_members_that_lie(tmp_path: Path, case: str) -> None:
    content, message = MEMBERS[case]
    with pytest.raises(HoldfastError, match=message) as caught:
        load(write(tmp_path / "set.npz", x_train=content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (np.array([b"caf\xe9", b"tea"]), "cannot read .*set.npz: classes: 'utf-8' codec can't decode"),
        (np.array([0xFFFFFFFF, 0x41], "<u4").view("<U1"), "cannot read .*set.npz: classes: "),
    ],
)
def test_names_that_cannot_be_decoded(tmp_path: Path, classes: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        load(write(tmp_path / "set.npz", classes=whole(classes)))


def test_names_in_bytes_are_utf8(tmp_path: Path) -> None:
    data = load(write(tmp_path / "set.npz", classes=whole(np.array(["café".encode(), b"tea"]))))
    assert data.classes == ("café", "tea")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_any_packing_is_read_and_damage_to_it_refused(tmp_path: Path, method: int) -> None:
    path = write(tmp_path / "set.npz", method)
    assert len(load(path).train) == 4
    content = bytearray(path.read_bytes())
    content[60:80] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(HoldfastError, match=r"cannot read x_train of .*set.npz: .*; write the file again"):
        load(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (6, 1, "x_train of .*set.npz is encrypted; write the file again without a password"),
        (8, 99, "cannot read x_train of .*set.npz: That compression method is not supported; write the file again"),
        (4, 255, "cannot read .*set.npz: zip file version 25.5; write the file again"),
    ],
)
def test_members_that_nobody_can_open(tmp_path: Path, field: int, value: int, message: str) -> None:
    path = write(tmp_path / "set.npz")
    content = bytearray(path.read_bytes())
    for magic, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        struct.pack_into("<H", content, content.find(magic) + shift + field, value)
    path.write_bytes(content)
    with pytest.raises(HoldfastError, match=message):
        load(path)


def test_a_long_name_is_cut_off_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("1" * 5000 + ".npy", b"no array")
    with open_npz(path) as file, pytest.raises(HoldfastError, match=r"^cannot read 1{300}\.\.\. of .*set\.npz: "):
        file.read(file.names[0])


def test_a_name_that_two_arrays_have(tmp_path: Path) -> None:
    path = write(tmp_path / "set.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train", whole(X))
    with pytest.raises(HoldfastError, match="set.npz has two arrays of one name"):
        load(path)


def test_a_header_that_promises_more_than_there_is_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.data.array_files.machine_memory", lambda: 100)
    path = write(tmp_path / "set.npz")
    with open_npz(path) as file, pytest.raises(HoldfastError, match=r"beside .* of other arrays, and this machine has"):
        [file.read(name) for name in ("x_train", "x_train")]


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("123456\n")
    monkeypatch.setattr("holdfast.data.array_files.ROOM", (tmp_path / "max", tmp_path / "gone"))
    alone = machine_memory()
    assert alone > 2**20
    monkeypatch.setattr("holdfast.data.array_files.ROOM", (tmp_path / "max", tmp_path / "limit"))
    assert machine_memory() == 123456


def test_the_command_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "set.npz", x_train=npy("{'descr': '|u1', 'shape': (4,4,4"))
    assert main(["data", "check", str(path)]) == 2
    assert "cannot read x_train of" in capsys.readouterr().out
