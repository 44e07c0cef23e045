"""Pictures in any folder: their size and colours are those of all of them, not of the first few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from vae_report.digits_anomalies import make_digits_anomalies

from holdfast.data import Split, load
from holdfast.data.anomalies import save_anomalies
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.errors import HoldfastError


def grey(folder: Path, count: int, side: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("L", (side, side), 7 * i).save(folder / f"{i:03d}.png")
    return folder


@pytest.mark.parametrize("count", [1, 10, 63, 200])
def test_the_last_picture_counts_too(tmp_path: Path, count: int) -> None:
    folder = grey(tmp_path / "heap", count)
    assert open_unlabelled(folder).shape == (1, 8, 8)
    Image.new("RGB", (8, 8), (200, 0, 0)).save(folder / f"{count - 1:03d}.png")
    assert open_unlabelled(folder).shape == (3, 8, 8)
    if count > 1:
        Image.new("RGB", (8, 12), (200, 0, 0)).save(folder / f"{count - 1:03d}.png")
        assert open_unlabelled(folder).shape == (3, 224, 224), "sizes differ"


def test_sixteen_bits_are_grey(tmp_path: Path) -> None:
    for i, kind in enumerate(("<u2", ">u2")):
        Image.fromarray(np.full((8, 8), 300, kind)).save(tmp_path / f"{i}.tif")
    assert open_unlabelled(tmp_path).shape == (1, 8, 8)


def test_a_detector_s_size_goes_before_any_other(tmp_path: Path) -> None:
    folder = grey(tmp_path / "heap", 3, side=20)
    assert open_unlabelled(folder, image_size=10).shape == (1, 10, 10)
    assert open_unlabelled(folder, image_size=10, shape=(1, 6, 5)).shape == (1, 6, 5)


def test_one_colour_picture_among_any_number_of_grey_ones(tmp_path: Path) -> None:
    folder = grey(tmp_path / "heap", 600)
    odd = folder / "301.png"
    Image.new("RGB", (8, 8), (200, 0, 0)).save(odd)
    (tmp_path / "all.csv").write_text("path,label\n" + "".join(f"heap/{i:03d}.png,{i % 2}\n" for i in range(600)))
    for data, split in ((folder, None), (tmp_path / "all.csv", None), (tmp_path / "all.csv", "train")):
        seen = open_unlabelled(data, split=split)
        position = next(i for i in range(len(seen)) if seen.describe(i) == str(odd))
        assert seen.read(torch.tensor([position]))[0, :, 0, 0].tolist() == [200, 0, 0]
        with pytest.raises(HoldfastError, match=r"301\.png is in colour, .*grey images are needed"):
            open_unlabelled(data, split=split, shape=(1, 8, 8))
    odd.unlink()
    assert open_unlabelled(folder, shape=(1, 8, 8)).shape == (1, 8, 8)


def test_grey_pictures_are_shown_three_times_over_whatever_lies_beside_them(tmp_path: Path) -> None:
    folder = grey(tmp_path / "heap", 3)
    np.savez(tmp_path / "x.npz", x_train=np.stack([np.full((8, 8), 7 * i, np.uint8) for i in range(3)]))
    for data in (folder, tmp_path / "x.npz"):
        seen = open_unlabelled(data, shape=(3, 8, 8))
        assert seen.shape == (3, 8, 8)
        assert seen.read(torch.arange(3))[:, :, 4, 4].tolist() == [[0] * 3, [7] * 3, [14] * 3]
    Image.new("RGB", (8, 8), (200, 0, 0)).save(folder / "red.png")
    assert open_unlabelled(folder, shape=(3, 8, 8)).read(torch.arange(4))[:, :, 4, 4].tolist() == [
        [0] * 3, [7] * 3, [14] * 3, [200, 0, 0]
    ]  # fmt: skip


def test_pictures_lie_anywhere_and_folders_are_classes(tmp_path: Path) -> None:
    grey(tmp_path / "b" / "deep", 2)
    grey(tmp_path / "a", 1)
    split = open_unlabelled(tmp_path)
    assert [Path(split.describe(i)).relative_to(tmp_path).as_posix() for i in range(3)] == [
        "a/000.png", "b/deep/000.png", "b/deep/001.png"
    ]  # fmt: skip
    assert (split.labels.tolist(), split.groups.tolist()) == ([0, 1, 1], [-1] * 3)


def test_the_test_part_of_a_set_with_anomalies_is_what_is_normal_in_it(tmp_path: Path) -> None:
    made = make_digits_anomalies()
    path = save_anomalies(made, tmp_path)
    split = open_unlabelled(path, split="test")
    normal = [s.images[~made.anomalous(s)] for s in made.sets]
    assert torch.equal(split.read(torch.arange(len(split))), torch.cat(normal))
    with pytest.raises(HoldfastError, match="has no split 'val'; choose train, labeled or test"):
        open_unlabelled(path, split="val")


def numbered(folder: Path, count: int) -> list[str]:
    """Pictures whose pixels say which they are, named so that their order by name is another one."""
    names = [f"{(7 * i) % count:03d}.png" for i in range(count)]
    for i, name in enumerate(names):
        Image.new("L", (8, 8), i).save(folder / name)
    return names


def shades(split: Split) -> list[int]:
    return split.read(torch.arange(len(split)))[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("header", ["path", "path,label", "path,label,group"])
def test_every_row_of_a_table_in_its_order(tmp_path: Path, header: str) -> None:
    cells = {"path": lambda i: names[i], "label": lambda i: f"class {i % 3}", "group": lambda i: str(i % 2)}
    names = numbered(tmp_path, 50)
    lines = [",".join(cells[column](i) for column in header.split(",")) for i in range(50)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join([header, *lines]))
    for usual in ("train", "test"):
        assert shades(open_unlabelled(table, usual=usual)) == list(range(50))
    held = open_unlabelled(table, split="test") if "label" in header else None
    if held is None:
        with pytest.raises(HoldfastError, match="no column 'label'"):
            open_unlabelled(table, split="test")
    else:
        test = load(table).test
        assert test is not None
        assert shades(held) == shades(test), "what training would hold out"


def test_rows_may_lack_a_label_but_not_a_picture(tmp_path: Path) -> None:
    names = numbered(tmp_path, 3)
    table = tmp_path / "table.csv"
    table.write_text(f"path,label\n{names[0]},b\n{names[1]},\n{names[2]},a\n")
    assert open_unlabelled(table).labels.tolist() == [1, -1, 0]
    table.write_text(f"path,label\n{names[0]},b\n,a\n")
    with pytest.raises(HoldfastError, match="1 rows have no path, the first at line 3"):
        open_unlabelled(table)
    table.write_text("path\n")
    with pytest.raises(HoldfastError, match="there is no sample"):
        open_unlabelled(table)


def test_parts_of_a_table_without_labels(tmp_path: Path) -> None:
    names = numbered(tmp_path, 6)
    table = tmp_path / "table.csv"
    parts = ["train", "test", "val", "test", "train", "val"]
    table.write_text("path,split\n" + "".join(f"{n},{s}\n" for n, s in zip(names, parts, strict=True)))
    assert shades(open_unlabelled(table, usual="test")) == [1, 3]
    assert shades(open_unlabelled(table, split="val", usual="test")) == [2, 5]
    table.write_text(table.read_text().replace("test", "val"))
    with pytest.raises(HoldfastError, match=r"has no test part; choose with split: train, val"):
        open_unlabelled(table, usual="test")


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("part", ["train", "test"])
def test_every_image_of_an_npz_file(tmp_path: Path, labelled: bool, part: str) -> None:
    arrays = {f"x_{part}": np.arange(40, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)}
    np.savez(tmp_path / "a.npz", **arrays, **({f"y_{part}": np.arange(40) % 2} if labelled else {}))
    split = open_unlabelled(tmp_path / "a.npz", usual="test")
    assert shades(split) == list(range(40))
    assert split.labels.tolist() == ([i % 2 for i in range(40)] if labelled else [-1] * 40)


@pytest.mark.parametrize(
    ("shape", "kept"), [((1, 16, 8), np.s_[:, 2:8]), ((1, 8, 20), np.s_[4:8]), ((1, 5, 5), np.s_[1:11])]
)
def test_the_centre_of_a_size_s_proportions_is_kept(tmp_path: Path, shape: tuple[int, int, int], kept: Any) -> None:
    """As Pillow does it: a file is cropped between pixels and looks a little beyond, an array is cropped first."""
    x = np.random.default_rng(0).integers(0, 256, (12, 12, 10), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x)
    (tmp_path / "heap").mkdir()
    for i, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "heap" / f"{i:02d}.png")
    (tmp_path / "table.csv").write_text("path\n" + "".join(f"heap/{i:02d}.png\n" for i in range(12)))
    size = (shape[2], shape[1])
    fitted = [ImageOps.fit(Image.fromarray(i), size, Image.Resampling.BILINEAR) for i in x]
    cropped = [Image.fromarray(i[kept]).resize(size, Image.Resampling.BILINEAR) for i in x]
    for name, expected in {"heap": fitted, "table.csv": fitted, "a.npz": cropped}.items():
        split = open_unlabelled(tmp_path / name, shape=shape)
        assert split.shape == shape
        got = split.read(torch.arange(12))[:, 0].numpy().astype(int)
        assert np.abs(got - np.stack([np.asarray(e) for e in expected])).max() <= 1


def test_a_named_set_is_resized_a_size_that_is_not_square() -> None:
    assert open_unlabelled("digits", usual="test", shape=(1, 24, 12)).shape == (1, 24, 12)


def test_a_part_of_what_has_none_is_refused(tmp_path: Path) -> None:
    folder = grey(tmp_path / "heap", 3)
    with pytest.raises(HoldfastError, match=r"split 'test' is for data that has parts, and the folder .*heap is taken"):
        open_unlabelled(folder, split="test")
    with pytest.raises(HoldfastError, match="split 'test' is for data that has parts, and a split in memory"):
        open_unlabelled(open_unlabelled(folder), split="test")
