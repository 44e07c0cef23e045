"""CelebA's attribute file, in its two published forms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.data import FileSplit, load
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write

NAMES = ("Bald", "Blond_Hair", "Male", "Smiling")
VALUES = ((-1, 1, -1, 1), (-1, -1, 1, 1), (1, -1, 1, -1), (-1, 1, 1, -1), (-1, -1, -1, 1), (-1, 1, -1, -1))
SPLITS = (0, 0, 0, 1, 2, 2)


def make(folder: Path, form: str = "txt", *, partition: bool = True) -> Path:
    images = [f"{i + 1:06d}.jpg" for i in range(len(VALUES))]
    for i, image in enumerate(images):
        write(folder / "img_align_celeba" / image, noise(8, 8, seed=i))
    rows = list(zip(images, VALUES, strict=True))
    if form == "txt":
        text = f"{len(rows)}\n{' '.join(NAMES)} \n" + "".join(
            f"{image} {'  '.join(f'{v:2d}' for v in values)}\n" for image, values in rows
        )
        splits = "".join(f"{image} {s}\n" for image, s in zip(images, SPLITS, strict=True))
    else:
        text = f"image_id,{','.join(NAMES)}\n" + "".join(f"{i},{','.join(map(str, v))}\n" for i, v in rows)
        splits = "image_id,partition\n" + "".join(f"{i},{s}\n" for i, s in zip(images, SPLITS, strict=True))
    (folder / f"list_attr_celeba.{form}").write_text(text)
    if partition:
        (folder / f"list_eval_partition.{form}").write_text(splits)
    return folder


@pytest.mark.parametrize("form", ["txt", "csv"])
@pytest.mark.parametrize("how", ["path", "name"])
def test_hair_is_the_label_and_gender_the_group_by_default(tmp_path: Path, form: str, how: str) -> None:
    folder = make(tmp_path / "celeba", form)
    data = load(folder) if how == "path" else load("celeba", root=tmp_path)
    assert data.classes == ("not Blond_Hair", "Blond_Hair")
    assert data.group_names == ("not Male", "Male")
    assert isinstance(data.train, FileSplit)
    assert data.train.labels.tolist() == [1, 0, 0]
    assert data.train.groups.tolist() == [0, 1, 1]
    assert data.val is not None
    assert data.test is not None
    assert data.val.labels.tolist() == [1]
    assert data.test.groups.tolist() == [0, 0]


def test_the_folders_of_its_authors_are_found(tmp_path: Path) -> None:
    make(tmp_path)
    for folder, name in (
        ("Anno", "list_attr_celeba.txt"),
        ("Eval", "list_eval_partition.txt"),
        ("Img", "img_align_celeba"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / name).rename(tmp_path / folder / name)
    data = load(tmp_path)
    assert data.train.labels.tolist() == [1, 0, 0]
    assert len(data.test or ()) == 2
    assert len(data.train.read(torch.arange(3))) == 3


@pytest.mark.parametrize("how", ["path", "name"])
def test_any_attribute_can_be_label_or_group(tmp_path: Path, how: str) -> None:
    folder = make(tmp_path / "celeba")
    name, root = (folder, None) if how == "path" else ("celeba", tmp_path)
    data = load(name, root=root, label="Smiling", group="Bald")
    assert data.classes == ("not Smiling", "Smiling")
    assert data.train.labels.tolist() == [1, 1, 0]
    assert data.train.groups.tolist() == [0, 0, 1]


def test_without_a_partition_a_test_split_is_held_out(tmp_path: Path) -> None:
    data = load(make(tmp_path, partition=False), data_seed=1)
    assert len(data.train) + len(data.test or ()) == 6
    assert any("there is no test split" in note for note in map(str, data.notes))


def test_bad_input_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with pytest.raises(HoldfastError, match="unknown attribute of CelebA 'Blond'; did you mean 'Blond_Hair'"):
        load(folder, label="Blond")
    with pytest.raises(HoldfastError, match="names cannot be used for"):
        load(folder, names="{a}_", label="Male")
    table = folder / "list_attr_celeba.txt"
    text = table.read_text()
    table.write_text(text + "000009.jpg 1 1 -1 1\n")
    with pytest.raises(HoldfastError, match="list_eval_partition.txt lacks 1 images, such as 000009.jpg"):
        load(folder)
    table.write_text(text + "000009.jpg 1 1 0 1\n")
    with pytest.raises(HoldfastError, match="line 9 of .* is not an image and 4 values of 1 or -1"):
        load(folder)
    table.write_text(text)
    (folder / "img_align_celeba/000002.jpg").unlink()
    with pytest.raises(HoldfastError, match="1 images of list_attr_celeba.txt are not in img_align_celeba"):
        load(folder)
