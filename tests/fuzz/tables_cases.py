"""Tables of images, as CSV and Parquet: any header, any cells, any bytes; and files behind them that are not images."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import torch
from PIL import Image
from pyarrow import parquet

from holdfast.data import load
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.quality import check_data
from tests.fuzz.mutations import NAMES, NUMBERS, OTHERS, damaged

HEADER = ("path", "label", "group", "split")
SPLITS = ("train", "train", "val", "test", "Train", "testing", "nonsense", "")


def fuzz(random: Random, folder: Path) -> None:
    images = _images(folder)
    path = folder / random.choice(("case.csv", "case.csv", "case.parquet"))
    path.write_bytes(table(random, *_rows(random, images), path.suffix))
    action = random.random()
    if action < 0.15:
        check_data(path).to_text()
    elif action < 0.4:
        found = open_unlabelled(path, split=random.choice((None, "train", "test")), image_size=random.choice((None, 3)))
        found.read(torch.arange(min(2, len(found))))
    else:
        data = load(path, image_size=random.choice((None, 3)), training=random.random() < 0.5)
        for split in data.splits.values():
            split.read(torch.arange(min(2, len(split))))


def _images(folder: Path) -> list[str]:
    """Files that stay for all cases: images, and what is called so."""
    names = [f"{i}.png" for i in range(6)]
    if not (folder / "pipe.png").exists():
        for i, name in enumerate(names):
            Image.fromarray(np.full((4, 4, 3), 40 * i, np.uint8)).save(folder / name)
        whole = (folder / "0.png").read_bytes()
        (folder / "text.png").write_text("not an image")
        (folder / "eps.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        (folder / "half.png").write_bytes(whole[: len(whole) // 2])
        (folder / "empty.png").touch()
        (folder / "folder.png").mkdir()
        (folder / "link.png").symlink_to("nowhere.png")
        os.mkfifo(folder / "pipe.png")
    return names


def _rows(random: Random, images: list[str]) -> tuple[list[str], list[list[str]]]:
    odd = random.random() < 0.5
    header = [name for name in HEADER if random.random() < (0.9 if name in HEADER[2:] else 0.98)]
    bad = (
        "text.png",
        "eps.png",
        "half.png",
        "empty.png",
        "folder.png",
        "link.png",
        "pipe.png",
        "nowhere.png",
        "../0.png",
    )
    rows = []
    for i in range(random.choice((0, 1, 4, 6, 9))):
        own = {"path": images[i % 6], "label": "ab"[i % 2], "group": "xyz"[i % 3], "split": random.choice(SPLITS[:4])}
        if odd and random.random() < 0.2:
            own[random.choice(HEADER)] = random.choice((*NAMES, *bad, *SPLITS))
        rows.append([own[name] for name in header])
    return header, rows


def table(random: Random, header: list[str], rows: list[list[Any]], suffix: str) -> bytes:
    """A table with its header and cells disturbed, as a file of this kind."""
    odd = random.random() < 0.6
    if odd and random.random() < 0.2:
        header = [random.choice((*header, *NAMES)) if random.random() < 0.3 else name for name in header]
    if random.random() < 0.1:
        order = random.sample(range(len(header)), len(header))
        header, rows = [header[i] for i in order], [[row[i] for i in order] for row in rows]
    content = (_csv if suffix == ".csv" else _parquet)(random, header, rows, odd)
    return damaged(random, content) if odd and random.random() < 0.3 else content


def _csv(random: Random, header: list[str], rows: list[list[Any]], odd: bool) -> bytes:
    file = io.StringIO()
    sep = random.choice((",",) * 18 + (";", "\t")) if odd else ","
    end = random.choice(("\n", "\n", "\r\n", "\r"))
    quoting = random.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    writer = csv.writer(file, delimiter=sep, lineterminator=end, quoting=quoting)
    try:
        writer.writerow(header)
        for row in rows:
            ragged = random.random() if odd else 1
            writer.writerow(row[:-1] if ragged < 0.02 else [*row, "more"] if ragged < 0.04 else row)
    except csv.Error:  # of the writer: what it cannot write, nobody has
        pass
    codec = random.choice(("utf-8",) * 12 + ("utf-8-sig", "utf-16", "latin-1", "utf-32")) if odd else "utf-8"
    return file.getvalue().encode(codec, "surrogatepass" if codec != "latin-1" else "replace")


def _parquet(random: Random, header: list[str], rows: list[list[Any]], odd: bool) -> bytes:
    columns = [[row[i] for row in rows] for i in range(len(header))]
    arrays = [_column(random, cells, odd) for cells in columns]
    names = [name.encode("utf-8", "replace").decode() for name in header]
    sink = pyarrow.BufferOutputStream()
    made = pyarrow.Table.from_arrays(arrays, names=names) if arrays else pyarrow.table({})
    parquet.write_table(made, sink)
    return bytes(sink.getvalue().to_pybytes())


def _column(random: Random, cells: list[Any], odd: bool) -> Any:
    """A column of any type that holds as many values."""
    kind, n = random.random() if odd else 0, len(cells)
    if kind < 0.85:
        plain = [cell if not isinstance(cell, str) else cell.encode("utf-8", "replace").decode() for cell in cells]
        return pyarrow.array(plain, pyarrow.float64() if plain and isinstance(plain[0], float) else pyarrow.string())
    if kind < 0.9:
        small = [x for x in NUMBERS if isinstance(x, float) or -(2**63) <= x < 2**63]
        return pyarrow.array([float(random.choice(small)) for _ in range(n)])
    kinds = [
        pyarrow.array([random.choice(OTHERS[:3]) for _ in range(n)], pyarrow.bool_()),
        pyarrow.array([b"\xff\x00" if random.random() < 0.5 else b"a" for _ in range(n)]),
        pyarrow.array([None] * n),
        pyarrow.array([{"a": 1}] * n),
        pyarrow.array([[1, 2]] * n),
        pyarrow.array(range(n), pyarrow.int64()).cast(pyarrow.timestamp("us")),
        pyarrow.array([str(i % 2) for i in range(n)]).dictionary_encode(),
        pyarrow.array(range(n), pyarrow.uint8()),
        pyarrow.array([0.5] * n, pyarrow.float16()),
        pyarrow.array([2**60] * n, pyarrow.int64()).cast(pyarrow.duration("s")),
    ]
    return random.choice(kinds)
