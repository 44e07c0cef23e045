"""``hf:NAME_OR_PATH``: data sets as Hugging Face's library has them, on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from holdfast.cli import main
from holdfast.data import load
from holdfast.data.splits import all_images
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.errors import HoldfastError
from tests.data.pictures import noise

datasets = pytest.importorskip("datasets")


def made(count: int) -> Any:
    """Images that all differ, each with a class and a place."""
    pictures = [Image.fromarray(noise(8, 8, seed=i)) for i in range(count)]
    rows = {"img": pictures, "fine": [i % 2 for i in range(count)], "place": ["sea", "land", "sea"] * (count // 3)}
    label, text = datasets.ClassLabel(names=["cat", "dog"]), datasets.Value("string")
    return datasets.Dataset.from_dict(rows, features=datasets.Features(img=datasets.Image(), fine=label, place=text))


def two_images(data: Any) -> Any:
    second = data.select_columns("img").rename_column("img", "second")
    return datasets.concatenate_datasets([data.rename_column("img", "first"), second], axis=1)


@pytest.fixture
def saved(tmp_path: Path) -> str:
    datasets.DatasetDict(train=made(12), validation=made(3), test=made(6)).save_to_disk(tmp_path / "pets")
    return f"hf:{tmp_path / 'pets'}"


def test_a_saved_data_set_has_its_splits_and_columns_by_their_types(saved: str) -> None:
    data = load(saved)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "val": 3, "test": 6}
    assert (data.classes, data.shape, data.group_names) == (("cat", "dog"), (3, 8, 8), ())
    expected = torch.stack([torch.from_numpy(noise(8, 8, seed=i)).permute(2, 0, 1) for i in range(12)])
    assert torch.equal(all_images(data.train), expected)
    assert load(saved, group="place").group_names == ("land", "sea")
    assert load(saved, columns="group=place").train.groups.tolist()[:3] == [1, 0, 1]
    whole = open_unlabelled(saved, split="test", shape=(3, 4, 4))
    assert whole.read(torch.arange(2)).shape == (2, 3, 4, 4)


def test_splits_of_other_names_are_left_out_and_named() -> None:
    data = load(datasets.DatasetDict(train=made(12), test=made(6), unsupervised=made(3)))
    assert [str(note) for note in data.notes] == ["splits beside train, val and test are left out: unsupervised"]
    assert load(datasets.DatasetDict(train=made(12), test=made(6))).notes == ()


def test_a_folder_of_parquet_files_is_opened_too(tmp_path: Path) -> None:
    made(12).to_parquet(tmp_path / "train.parquet")
    assert torch.equal(load(f"hf:{tmp_path}").train.labels.sort().values, torch.tensor([0] * 5 + [1] * 5))


@pytest.mark.slow
def test_the_command_line_trains_and_audits_with_groups(saved: str, tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "run")
    words = ["--data", saved, "--group", "place", "--epochs", "1", "--batch-size", "4", "--device", "cpu", "--quiet"]
    assert main(["train", *words, "--workers", "0", "--out", out]) == 0
    audit = ["--data", saved, "--checks", "groups", "--device", "cpu", "--workers", "0", "--out", str(tmp_path / "a")]
    assert main(["audit", out, *audit]) == 0
    assert "worst" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.remove_columns("img"), "no column holds images: fine, place; name it with columns"),
        (lambda d: d.remove_columns("fine"), "the train images have no labels; name their column with columns"),
        (two_images, "several columns may be the image: first, second; say which with columns"),
    ],
)
def test_columns_that_are_missing_are_asked_for(change: Any, message: str) -> None:
    data = change(made(12))
    with pytest.raises(HoldfastError, match=message):
        load(data)
    with pytest.raises(HoldfastError, match="there is no column 'nothing' for the label; the columns are"):
        load(data, columns={"label": "nothing"})


def test_what_is_not_there_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(HoldfastError, match="cannot open hf:nobody/nothing: .* correct the name or path"):
        load("hf:nobody/nothing")
    with pytest.raises(HoldfastError, match="hf: names no data set; give hf:OWNER/NAME"):
        load("hf:")
    with pytest.raises(HoldfastError, match="label cannot be used for hf:x"):
        load("hf:x", label="age>=40")


def test_a_streamed_data_set_is_refused() -> None:
    with pytest.raises(HoldfastError, match="leave streaming=True out"):
        load(made(12).to_iterable_dataset())
