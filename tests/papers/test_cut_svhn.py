"""Digits cut from full numbers: what is inside a box, square, and complete at the edge of the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from alps.cut_svhn import cut, digits
from PIL import Image


def test_a_box_is_made_square_and_the_edge_is_repeated() -> None:
    picture = np.zeros((64, 100, 3), np.uint8)
    picture[:, 40:72] = 200  # as wide as the digit that is cut out
    assert (cut(picture, (40, 10, 72, 42)) == picture[10:42, 40:72]).all(), "32 pixels stay as they are"
    tall = cut(picture, (48, 0, 64, 64))  # 64 high and 16 wide: 24 more pixels on either side, halved
    assert (tall[:, 11:21] == 200).all(), "columns 8 to 24, but for what resizing does to their edges"
    assert (tall[:, :5] == 0).all()
    assert (tall[:, 27:] == 0).all()
    ramp = np.broadcast_to(np.arange(50, 250, 5, dtype=np.uint8)[:, None, None], (40, 32, 3))
    above = cut(ramp.copy(), (0, -16, 32, 16))  # half of it above the picture: its first row again and again
    assert (above[:16] == ramp[0, 0, 0]).all()
    assert (above[16:, 0, 0] == ramp[:16, 0, 0]).all()


def test_digits_are_in_the_order_of_files_and_from_left_to_right(tmp_path: Path) -> None:
    for number, grey in {"2": 20, "10": 100}.items():
        Image.new("RGB", (64, 32), (grey,) * 3).save(tmp_path / f"{number}.png")
    boxes = tmp_path / "boxes.csv"
    rows = ["10.png,64,32,7,0,0,32,32", "2.png,64,32,10,32,0,64,32", "2.png,64,32,3,0,0,32,32"]
    boxes.write_text("\n".join(["filename,width,height,class,xmin,ymin,xmax,ymax", *rows]) + "\n")
    x, y = digits(tmp_path, boxes)
    assert y.tolist() == [3, 0, 7], "class 10 is the digit 0"
    assert x[:, 0, 0, 0].tolist() == [20, 20, 100]
    assert x.shape == (3, 32, 32, 3)
