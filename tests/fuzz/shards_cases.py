"""Tar shards and their index: any member, any name, any label, any bytes."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image

from holdfast.data import load
from holdfast.data.shard_index import INDEX
from tests.fuzz.mutations import NAMES, damaged, value

ENDINGS = ("png", "cls", "json", "txt", "seg.png", "PNG", "")
KINDS = (tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


def fuzz(random: Random, folder: Path) -> None:
    place = folder / "set"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in ("train-0.tar", "test-0.tar"):
        (place / name).write_bytes(archive(random))
    action = random.random()
    if action < 0.3:
        path = place / "train-0.tar"
        path.write_bytes(damaged(random, path.read_bytes()))
    elif action < 0.6:
        load(place, training=False)
        path = place / random.choice((INDEX, INDEX, "test-0.tar"))
        path.write_bytes(damaged(random, path.read_bytes()))
    data = load(place, training=False, image_size=random.choice((None, 3)), skip_unreadable=random.random() < 0.3)
    for split in data.splits.values():
        split.read(torch.arange(min(3, len(split))))
        split.describe(0) if len(split) else None


def archive(random: Random) -> bytes:
    """A shard of a few samples; now and then one with what does not belong there."""
    file, odd = io.BytesIO(), random.random() < 0.3
    with tarfile.open(fileobj=file, mode="w", format=random.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))) as tar:
        for i in range(4):
            for name, content in sample(random, i, odd):
                info = tarfile.TarInfo(name.encode("utf-8", "replace").decode().replace("\0", ""))
                info.size, info.type = len(content), random.choice(KINDS) if odd else tarfile.REGTYPE
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def sample(random: Random, i: int, odd: bool) -> list[tuple[str, bytes]]:
    image = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), 40 * i, np.uint8)).save(image, "PNG")
    said: dict[str, Any] = {"label": i % 2, "class": "ab"[i % 2], "group": "day"}
    if odd and random.random() < 0.5:
        said[random.choice(("label", "class", "group", "holdfast"))] = value(random)
    words = json.dumps(said).encode() if random.random() < 0.95 else b"{"
    label = str(i % 2 if not odd or random.random() < 0.7 else value(random)).encode("utf-8", "replace")
    files = [(f"k{i}.png", image.getvalue()), (f"k{i}.cls", label), (f"k{i}.json", words)]
    if odd and random.random() < 0.3:
        files.append((f"{random.choice(NAMES)}{i}.{random.choice(ENDINGS)}", random.choice((b"", image.getvalue()))))
    return files
