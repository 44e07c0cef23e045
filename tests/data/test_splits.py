"""Splits are read, cut and named the same way in memory and on disk."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from holdfast.data import ArraySplit, FileSplit, Split
from holdfast.data.splits import Paths, hold_out
from holdfast.printable import printable
from tests.data.pictures import noise, write

SIZES = (10, 20, 31, 1)


def make_split(kind: str, folder: Path) -> Split:
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(SIZES)])
    groups = torch.arange(len(labels)) % 3
    pixels = [noise(4, 4, seed=i) for i in range(len(labels))]
    if kind == "array":
        images = torch.stack([torch.from_numpy(p).permute(2, 0, 1) for p in pixels])
        return ArraySplit(images, labels, groups, "made")
    paths = [write(folder / f"{i}.png", p) for i, p in enumerate(pixels)]
    return FileSplit(paths, labels, groups, size=(4, 4))


@pytest.fixture(params=["array", "file"])
def split(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    return make_split(request.param, tmp_path)


def test_images_are_read_in_the_order_asked_for(split: Split) -> None:
    images = split.read(torch.tensor([7, 3, 7]))
    assert images.dtype == torch.uint8
    for image, seed in zip(images, (7, 3, 7), strict=True):
        assert torch.equal(image, torch.from_numpy(noise(4, 4, seed=seed)).permute(2, 0, 1))
    assert split.read(torch.tensor([], dtype=torch.int64)).shape == (0, *split.shape)


def test_a_part_of_a_part_keeps_images_labels_groups_and_origin_together(split: Split) -> None:
    part = split.subset(torch.arange(5, 45)).subset(torch.tensor([30, 2]))
    original = torch.tensor([35, 7])
    assert torch.equal(part.read(torch.arange(2)), split.read(original))
    assert torch.equal(part.labels, split.labels[original])
    assert torch.equal(part.groups, split.groups[original])
    assert [part.describe(i) for i in range(2)] == [split.describe(i) for i in (35, 7)]


def test_hold_out_takes_the_share_of_every_class_and_loses_nothing(split: Split) -> None:
    remaining, held = hold_out(split, 0.25, seed=0)
    # Python rounds halves to even: 2.5 -> 2; a class of one stays whole
    assert torch.bincount(held.labels, minlength=4).tolist() == [2, 5, 8, 0]
    names = [[part.describe(i) for i in range(len(part))] for part in (remaining, held)]
    assert sorted(names[0] + names[1]) == sorted(split.describe(i) for i in range(len(split)))


def test_hold_out_leaves_at_least_one_sample_of_a_class(split: Split) -> None:
    remaining, _ = hold_out(split, 0.999, seed=0)
    assert torch.bincount(remaining.labels).tolist() == [1, 1, 1, 1]


def test_hold_out_follows_its_seed_only(split: Split) -> None:
    def names(seed: int) -> list[str]:
        held = hold_out(split, 0.3, seed)[1]
        return [held.describe(i) for i in range(len(held))]

    torch.manual_seed(1)
    first = names(5)
    torch.manual_seed(2)
    assert names(5) == first
    assert names(6) != first


def test_paths_behave_as_a_list_of_paths() -> None:
    names = ["a", "", "b/ü x.png", os.fsdecode(b"caf\xe9.png")]
    paths = pickle.loads(pickle.dumps(Paths(names)))
    assert list(paths) == [Path(name) for name in names]
    assert paths[-1] == Path(names[-1])
    assert list(paths[1:3]) == [Path(name) for name in names[1:3]]
    with pytest.raises(IndexError):
        paths[4]


def test_a_million_paths_take_little_more_than_their_letters() -> None:
    names = [f"train/class/{i:07}.png" for i in range(10_000)]
    assert len(pickle.dumps(Paths(names))) < sum(map(len, names)) + 9 * len(names)


def test_printable_leaves_letters_of_any_script_alone() -> None:
    assert printable("Größe 猫.png") == "Größe 猫.png"
    assert printable("\u202egnp.exe").isprintable()
