"""Labels and groups from file names; rules are read, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.data import FileSplit, load
from holdfast.data.data_check import check_data
from holdfast.data.readers.file_names import compile_names, compile_rule
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write

FACES = ("1_0_2_20161219.jpg", "26_1_0_20170116.jpg", "40_0_1_20170105.jpg", "39_1_3_2017.jpg", "71_1_0_2017.jpg")


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    for i, name in enumerate(FACES):
        for copy in range(3):
            write(tmp_path / f"part{copy}" / name, noise(8, 8, seed=i))
    return tmp_path


def test_utkface_names_become_labels_and_groups(faces: Path) -> None:
    data = load(faces, names="{age}_{gender}_{race}_", label="age>=40", group="gender")
    assert data.classes == ("age<40", "age>=40")
    assert data.group_names == ("0", "1")
    for split in (data.train, data.test):
        assert isinstance(split, FileSplit)
        for path, label, group in zip(split.paths, split.labels.tolist(), split.groups.tolist(), strict=True):
            age, gender = path.name.split("_")[:2]
            assert label == int(int(age) >= 40)
            assert group == int(gender)


def test_a_regular_expression_does_as_well_and_groups_are_optional(faces: Path) -> None:
    data = load(faces, names=r"(?P<age>\d+)_(?P<gender>[01])_", label="gender")
    assert data.classes == ("0", "1")
    assert data.group_names == ()
    assert data.train.groups.unique().tolist() == [-1]


def test_split_folders_and_names_that_do_not_fit(faces: Path) -> None:
    (faces / "part0").rename(faces / "train")
    (faces / "part1").rename(faces / "test")
    write(faces / "train" / "39_1.jpg", noise(8, 8))
    data = load(faces, names="{age}_{gender}_{race}_{date}", label="gender * race")
    assert (len(data.train), len(data.test or ())) == (5, 5)
    assert data.classes == ("0, 1", "0, 2", "1, 0", "1, 3")
    assert any("1 names do not fit" in note and "39_1.jpg" in note for note in map(str, data.notes))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("age", ["7", "20", "40"]),
        ("age>=40", ["age<40", "age<40", "age>=40"]),
        ("age < 20", ["age<20", "age>=20", "age>=20"]),
        ("age==20", ["age!=20", "age==20", "age!=20"]),
        ("age!=20", ["age!=20", "age==20", "age!=20"]),
        ("age: 10, 30", ["age<10", "10<=age<30", "age>=30"]),
        ("age in 7, 40", ["age in 7, 40", "not age in 7, 40", "age in 7, 40"]),
        ("age>9 * sex", ["age<=9, m", "age>9, m", "age>9, m"]),
    ],
)
def test_rules_say_what_they_say(rule: str, expected: list[str]) -> None:
    made = compile_rule(rule, ["age", "sex"])
    assert [made({"age": age, "sex": "m"}) for age in ("7", "20", "40")] == expected


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("__import__('os').system('true')", "cannot read the rule"),
        ("age + 1", "cannot read the rule"),
        ("agee>=40", "unknown part of file names 'agee'; did you mean 'age'"),
        ("age>=forty", "'forty' in the rule age>=forty is not a number"),
        ("age: 40, 20", "the ranges of age must rise, got 40, 20"),
        ("", "cannot read the rule ''"),
    ],
)
def test_other_rules_are_refused(rule: str, message: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        compile_rule(rule, ["age"])
    assert message in str(caught.value)


def test_patterns_without_parts_or_that_are_none_are_refused() -> None:
    with pytest.raises(HoldfastError, match="names no part of a file name"):
        compile_names("abc")
    with pytest.raises(HoldfastError, match="is not a pattern"):
        compile_names("(?P<age>")


def test_what_is_missing_or_does_not_belong_is_named(faces: Path) -> None:
    with pytest.raises(HoldfastError, match="labels from file names need a pattern"):
        load(faces, label="age>=40")
    with pytest.raises(HoldfastError, match="labels from file names need a rule"):
        load(faces, names="{age}_")
    with pytest.raises(
        HoldfastError, match="names, label and group are for folders of images, label and group for celeba"
    ):
        load("digits", label="age")
    write(faces / "x_1_0_2017.jpg", noise(8, 8))
    with pytest.raises(HoldfastError, match="'x' in a file name whose age is 'x' is not a number"):
        load(faces, names="{age}_{gender}_{race}_", label="age>=40")


def test_a_check_reads_names_by_the_same_rules(faces: Path) -> None:
    found = check_data(faces, names="{age}_{gender}_{race}_", label="age>=40", group="gender")
    assert found.sound
    assert found.splits == {"train": {"age<40": 9, "age>=40": 6}}
    assert found.groups == {"train": {"0": 6, "1": 9}}
    assert (
        check_data(faces, names="{age}_", label="age>=x")
        .problems[0]
        .startswith("'x' in the rule age>=x is not a number")
    )


def test_a_folder_of_images_alone_points_to_the_rules(tmp_path: Path) -> None:
    write(tmp_path / "31_1_2_2017.jpg", noise(8, 8))
    with pytest.raises(HoldfastError, match=r"has no folders in it; .*, or labels in the file names: --names"):
        load(tmp_path)
