"""Splits are read, cut and named the same way in memory and on disk."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from holdfast.data import ArraySplit, FileSplit, Split, aligned_groups, load
from holdfast.data.biased import biased_groups
from holdfast.data.splits import Paths, bias_alignment, hold_out
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


def of_cells(cells: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and groups of so many samples of every class (rows) and group (columns)."""
    counts = torch.tensor(cells)
    places = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
    return places // counts.shape[1], places % counts.shape[1]


@pytest.mark.parametrize(
    ("cells", "usual"),
    [
        # green animals, orange food; faces are grey or white alike, and flags hardly more often grey
        ([[129, 11, 0, 0], [11, 129, 0, 0], [0, 0, 70, 70], [0, 0, 76, 64]], [0, 1, -1, -1]),
        ([[3498, 184], [56, 1057]], [0, 1]),  # Waterbirds
        ([[71629, 66874], [22880, 1387]], [-1, 0]),  # CelebA: blond people are women, others either
        ([[95, 5], [95, 5], [5, 95], [5, 95]], [0, 0, 1, 1]),  # two classes may share their usual group
        ([[80, 20], [80, 20]], [-1, -1]),  # frequent in every class: it says nothing of the class
        ([[50, 0], [50, 0]], [-1, -1]),
        ([[5, 0], [0, 5]], [-1, -1]),  # too few to tell
        ([[5300, 4700], [4700, 5300]], [-1, -1]),  # more than chance, but hardly the usual one
        ([[70, 30, 0], [0, 70, 30], [0, 0, 0]], [0, 1, -1]),  # nothing is known of a class without samples
    ],
)
def test_a_usual_group_is_clearly_the_most_frequent_and_goes_with_its_class(
    cells: list[list[int]], usual: list[int]
) -> None:
    labels, groups = of_cells(cells)
    assert aligned_groups(labels, groups, len(cells)).tolist() == usual
    flipped = len(cells[0]) - 1 - groups
    assert aligned_groups(labels, flipped, len(cells)).tolist() == [
        g if g < 0 else len(cells[0]) - 1 - g for g in usual
    ]


def test_the_usual_group_is_the_most_frequent_one_wherever_a_shortcut_was_planted() -> None:
    for conflict in (0, 0.005, 0.05, 0.1, 0.2, 0.4):
        train = load("coloured-digits", conflict=conflict).train
        assert aligned_groups(train.labels, train.groups, 10).tolist() == list(range(10))
    for conflict in (0.005, 0.01, 0.02, 0.05):
        labels = torch.arange(50_000) % 10
        groups = biased_groups(labels, 10, conflict, seed=0, evenly=True)
        assert aligned_groups(labels, groups, 10).tolist() == list(range(10))
    none = load("coloured-digits", conflict=0.9).train  # every colour is equally frequent in every class
    assert aligned_groups(none.labels, none.groups, 10).tolist() == [-1] * 10


@pytest.mark.parametrize(("classes", "groups", "n"), [(2, 2, 50), (2, 2, 1000), (10, 2, 100), (10, 10, 100)])
def test_groups_that_are_drawn_without_regard_to_the_class_are_seldom_usual(classes: int, groups: int, n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    labels, alarms = torch.arange(classes).repeat_interleave(n), 0
    for draw in range(100):
        odds = torch.rand(groups, generator=generator) ** (1 + draw % 3)
        drawn = torch.multinomial(odds, len(labels), replacement=True, generator=generator)
        alarms += bool((aligned_groups(labels, drawn, classes) >= 0).any())
    assert alarms <= 5


def test_data_that_declares_what_is_aligned_is_believed() -> None:
    labels, groups = of_cells([[60, 2], [60, 0], [0, 3], [0, 0]])
    assert aligned_groups(labels, groups, 4).tolist() == [-1, -1, -1, -1]
    assert aligned_groups(labels, groups, 4, ("aligned", "conflicting")).tolist() == [0, 0, 0, -1]
    assert aligned_groups(labels, 1 - groups, 4, ("conflicting", "aligned")).tolist() == [1, 1, 1, -1]


def test_samples_of_a_class_without_a_usual_group_are_on_neither_side() -> None:
    labels, groups = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    sides = bias_alignment(labels, groups, torch.tensor([0, -1]))
    assert sides["aligned"].tolist() == [True, False, False, False]
    assert sides["conflicting"].tolist() == [False, True, False, False]
    assert bias_alignment(labels, groups, torch.tensor([-1, -1])) == {}
