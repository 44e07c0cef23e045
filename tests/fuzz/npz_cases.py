"""Files of arrays: zip archives and headers that lie, encrypted members, types and shapes that no image has."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from holdfast.audits.audit_data import columns_of
from holdfast.data import load
from holdfast.data.anomalies import FILE, SETS
from holdfast.data.unlabelled_images import open_unlabelled
from tests.fuzz.mutations import NAMES, damaged, value

TYPES = (
    "u1", "i1", "<i8", ">i8", "<u8", "<f2", "<f4", ">f8", "<f8", "<g", "?", "<c8", "S3", "S0", "<U2", "<U0", ">U2",
    "|V3", "|V0",
    "<M8[s]", "<m8", "O", "u1,u1", "<f4,O", "(2,2)u1", "nonsense", "", "|u9", "<i8" * 50,
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    (), (0,), (1,), (4,), (5,), (4, 1), (1, 4), (4, 2, 2), (4, 2, 2, 1), (4, 2, 2, 3), (4, 3, 2, 2), (4, 2, 2, 2), (4,
    2, 2, 1, 1),
    (True,), (True, False), (4, True), (-1,), (-1, 4), (2**31,), (2**62, 4), (10**30,), (10**9, 10**9), (4.0,),
    ("4",), (None,),
    [4], 4, None, (4, 2**40), (1,) * 40, (0,) * 5, (2**63, 0),
)  # fmt: skip
KEYS = (
    "x_train",
    "y_train",
    "x_test",
    "y_test",
    "x_val",
    "y_val",
    "group_train",
    "group_test",
    "classes",
    "group_names",
)
PLAIN: dict[str, Any] = {
    "x_train": np.arange(64, dtype=np.uint8).reshape(4, 4, 4),
    "y_train": np.array([0, 1, 0, 1]),
    "x_test": np.arange(32, dtype=np.uint8).reshape(2, 4, 4),
    "y_test": np.array([0, 1]),
    "group_train": np.array([0, 1, -1, 0]),
    "classes": np.array(["cat", "dog"]),
    "site_test": np.array(["a", "b"]),
}


def fuzz(random: Random, folder: Path) -> None:
    path = folder / random.choice(("case.npz", "case.npz", "case.npz", FILE, "case.npy"))
    path.write_bytes(_content(random))
    if random.random() < 0.3:
        images = open_unlabelled(path)
        images.read(torch.arange(min(2, len(images))))
        return
    data = load(path, image_size=random.choice((None, None, 3)), training=random.random() < 0.5)
    data.train.read(torch.arange(min(2, len(data.train))))
    if random.random() < 0.5:
        columns_of(str(path), ["site"], data, data, again=lambda _: data)


def _content(random: Random) -> bytes:
    kind = random.random()
    if kind < 0.15:
        return damaged(random, _saved(random.random() < 0.5))
    if kind < 0.3:
        return damaged(random, _pickled(random.choice((0, 2, 4, 5))))
    if kind < 0.4:
        return damaged(random, _anomalies(random.random() < 0.5))
    return _archive(random)


@cache
def _saved(compressed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **PLAIN)
    return file.getvalue()


def _set() -> dict[str, Any]:
    images = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    hot = np.eye(3, dtype=np.float32)[:, :2]
    hot[2, 0] = 1
    sets = {name: {"data": images, "labels": np.eye(3, dtype=np.float32)} for name in SETS}
    return {"unlabeled_data": images, "labeled_data": {"data": images, "labels": hot}, **sets}


@cache
def _pickled(protocol: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    return file.getvalue() + pickle.dumps(np.array(_set(), dtype=object), protocol=protocol)


@cache
def _anomalies(named: bool) -> bytes:
    file, flat = io.BytesIO(), {}
    for name, own in _set().items():
        flat |= {f"{name}/{key}": array for key, array in own.items()} if isinstance(own, dict) else {name: own}
    if named:
        flat |= {
            "classes": np.array(["a", "b"]),
            "kinds": np.array(["noise"]),
            f"{SETS[0]}/kinds": np.array([-1, -1, 0]),
        }
    np.savez(file, **flat)
    return file.getvalue()


def _archive(random: Random) -> bytes:
    """An archive of members that are each sound, of another type or shape, of a header that lies, or no arrays."""
    file = io.BytesIO()
    names = [name for name in PLAIN if random.random() < 0.93]
    changed = random.sample(names, k=min(len(names), random.choice((0, 1, 1, 2))))
    method = random.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in names:
            array = PLAIN[name]
            member = _member(random, array) if name in changed else _npy(array.dtype.str, array.shape, array.tobytes())
            archive.writestr(name + random.choice((".npy", ".npy", ".npy", "")), member)
        if random.random() < 0.1:
            odd = random.choice((*KEYS, *NAMES)).replace("\x00", "_").encode("utf-8", "replace").decode()
            archive.writestr((odd or "_") + random.choice((".npy", "")), _member(random, PLAIN["y_train"]))
    content = bytearray(file.getvalue())
    if random.random() < 0.1:  # say of every member that it is encrypted, or packed in a way nobody knows
        field, new = random.choice(((6, 1), (6, 0x2041), (8, 99), (8, 14), (8, 12), (4, 255)))
        for magic, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
            at = content.find(magic)
            while at >= 0:
                struct.pack_into("<H", content, at + field + shift, new)
                at = content.find(magic, at + 4)
    return damaged(random, bytes(content)) if random.random() < 0.15 else bytes(content)


def _member(random: Random, array: Any) -> bytes:
    kind = random.randrange(8)
    if kind == 0:
        return random.choice(
            (b"", b"a note from a colleague", b"\x93NUMPY", b"\x93NUMPY\x01\x00", random.randbytes(50))
        )
    if kind == 1:
        return damaged(random, _npy(array.dtype.str, array.shape, array.tobytes()))
    if kind == 2:
        return _npy(random.choice(TYPES), array.shape, array.tobytes())
    if kind == 3:
        return _npy(array.dtype.str, random.choice(SHAPES), array.tobytes())
    if kind == 4:
        return _npy(random.choice(TYPES), random.choice(SHAPES), random.randbytes(random.randrange(300)))
    if kind == 5:  # sound, and of another type
        chosen = random.choice(("u1", "i1", ">i4", "<f2", "<f4", "<f8", "?", "<u8", "S4", "<U4"))
        with np.errstate(all="ignore"):
            other = (
                array.astype(chosen) if array.dtype.kind != "U" or chosen[1:2] in "SU" or chosen[0] in "S" else array
            )
        return _npy(other.dtype.str, other.shape, other.tobytes())
    if kind == 6:  # numbers as they come: NaN, infinity, labels out of range, characters that are none
        return _npy(array.dtype.str, array.shape, random.randbytes(array.nbytes))
    header = random.choice(
        (value(random), {"descr": "|u1"}, {"shape": (1,), "descr": value(random), "fortran_order": value(random)})
    )
    return _head(
        random.choice((repr(header), "{" * 200, "(" * 5000, "{'descr': 1L}", "lambda: 0", "1" * 9000, "{[]: 1}", "'"))
    )


def _npy(kind: Any, shape: Any, content: bytes) -> bytes:
    return _head(repr({"descr": kind, "fortran_order": False, "shape": shape})) + content


def _head(text: str) -> bytes:
    header = text.encode("latin-1", "replace") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(len(header), 65535)) + header
