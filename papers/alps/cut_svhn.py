"""SVHN's digits from its full numbers: svhn.npz, where only the pictures of whole numbers and their boxes are at hand.

    python papers/alps/cut_svhn.py --train IMAGES BOXES --test IMAGES BOXES --out DATA/svhn.npz

IMAGES is a folder of pictures, BOXES a CSV file with the columns filename, class, xmin, ymin, xmax, ymax, a row per
digit. A box is made square around its centre, as SVHN's authors describe, cut out, the edge repeated where it leaves
the picture, and resized to 32 × 32 pixels. Class 10 is the digit 0. Who has SVHN's own files needs none of this.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 32


def cut(picture: NDArray[np.uint8], box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """The square around the centre of a box (xmin, ymin, xmax, ymax), SIDE pixels wide and high."""
    left, top, right, bottom = box
    side = max(right - left, bottom - top, 1)
    x, y = round((left + right) / 2 - side / 2), round((top + bottom) / 2 - side / 2)
    height, width = picture.shape[:2]
    beyond = ((max(0, -y), max(0, y + side - height)), (max(0, -x), max(0, x + side - width)), (0, 0))
    whole = np.pad(picture, beyond, mode="edge")
    square = whole[max(y, 0) : max(y, 0) + side, max(x, 0) : max(x, 0) + side]
    return np.asarray(Image.fromarray(square).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def digits(images: Path, boxes: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(Pictures, labels) in the order of the files' numbers, and in a number from left to right."""
    rows: dict[str, list[dict[str, str]]] = defaultdict(list)
    with boxes.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[row["filename"]].append(row)
    pictures, labels = [], []
    for name in sorted(rows, key=lambda name: int(Path(name).stem)):
        picture = np.asarray(Image.open(images / name).convert("RGB"))
        for row in sorted(rows[name], key=lambda row: int(row["xmin"])):
            pictures.append(cut(picture, (int(row["xmin"]), int(row["ymin"]), int(row["xmax"]), int(row["ymax"]))))
            labels.append(int(row["class"]) % 10)
    return np.stack(pictures), np.array(labels, np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("train", "test"):
        parser.add_argument(f"--{part}", nargs=2, type=Path, required=True, metavar=("IMAGES", "BOXES"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    content = {}
    for part in ("train", "test"):
        content[f"x_{part}"], content[f"y_{part}"] = digits(*getattr(args, part))
        counts = np.bincount(content[f"y_{part}"], minlength=10)
        print(f"{part}: {len(content[f'y_{part}']):,} digits, of each from 0 to 9: {', '.join(map(str, counts))}")
    np.savez(args.out, **content)


if __name__ == "__main__":
    main()
