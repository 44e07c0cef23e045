"""Shards are the folder they were made of: the same bytes, labels, order, hash, training, audit and resume."""

from __future__ import annotations

import csv
import json
import signal
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast
from holdfast.cli import main
from holdfast.data import Dataset, index, load, shard
from holdfast.data.splits import FileSplit, hash_data
from holdfast.errors import HoldfastError, Interrupted
from holdfast.settings import TrainSettings, build
from holdfast.train.api import train
from holdfast.train.progress import Progress
from tests.conftest import same_weights
from tests.data.pictures import noise, smooth, truncated_jpeg, write

COUNT = 24


def fill(home: Path) -> Path:
    """Two classes in train and test; colours tell them apart. Names with dots and capitals, and two of one stem."""
    for split, first in (("train", 0), ("test", 100)):
        for i in range(COUNT):
            pixels = noise(8, 8, seed=first + i) // 2
            pixels[..., i % 2] += 100
            name = {1: "a.b.png", 3: "a_b.png", 5: "big.PNG", 7: "big.png"}.get(i, f"{i}.png")
            write(home / split / ("bee", "ant")[i % 2] / name, pixels)
    write(home / "train" / "ant" / "photo.jpg", smooth(32, 48))
    return home


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("source") / "data")


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shards") / "data"
    shard(folder, place, megabytes=0.02)
    return place


def files_of(data: Dataset, split: str) -> FileSplit:
    own = data.splits[split]
    assert isinstance(own, FileSplit)
    return own


def test_every_file_keeps_its_bytes_and_its_place(folder: Path, shards: Path) -> None:
    a, b = load(folder, image_size=8), load(shards, image_size=8)
    assert (a.classes, a.shape) == (b.classes, b.shape)
    for split in ("train", "test"):
        first, second = files_of(a, split), files_of(b, split)
        assert [p.read_bytes() for p in first.paths] == [m.read_bytes() for m in second.paths]
        assert [p.relative_to(folder).as_posix() for p in first.paths] == [m.id for m in second.paths]  # type: ignore[union-attr]
        assert torch.equal(first.labels, second.labels)
        some = torch.tensor([5, 0, len(first) - 1])
        assert torch.equal(first.read(some), second.read(some))
        part = second.subset(some)
        assert torch.equal(part.read(torch.tensor([2])), first.read(some[2:]))
    assert len(list(shards.glob("train-*.tar"))) > 1, "or nothing is shown of where one ends"


def test_the_hash_is_that_of_the_folder_and_notices_a_byte(folder: Path, shards: Path, tmp_path: Path) -> None:
    hashes = [hash_data(data, data.splits.values()) for data in (load(folder), load(shards))]
    assert hashes[0] == hashes[1]
    changed = fill(tmp_path / "data")
    write(changed / "test/ant/9.png", noise(8, 8, seed=999))
    shard(changed, tmp_path / "shards")
    assert hash_data(load(tmp_path / "shards"), load(tmp_path / "shards").splits.values()) != hashes[0]


def test_shards_unpack_to_the_folder_and_say_label_and_class(folder: Path, shards: Path, tmp_path: Path) -> None:
    for path in shards.glob("*.tar"):
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path, filter="data")
    assert (tmp_path / "train/ant/9.png").read_bytes() == (folder / "train/ant/9.png").read_bytes()
    assert (tmp_path / "train/ant/9.cls").read_text() == "0"
    assert json.loads((tmp_path / "train/ant/9.json").read_text()) == {"label": 0, "class": "ant"}
    dotted = json.loads((tmp_path / "train/ant/a_b.json").read_text())
    assert dotted["holdfast"] == {"name": "train/ant/a.b.png"}, "WebDataset would cut the key at the first dot"


def test_the_same_source_gives_the_same_bytes(folder: Path, shards: Path, tmp_path: Path) -> None:
    """The index made anew of the shards too: every name in them is there once."""
    shard(folder, tmp_path / "data", megabytes=0.02)
    index(tmp_path / "data", overwrite=True)
    names = sorted(path.name for path in shards.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "data").iterdir())
    assert all((tmp_path / "data" / name).read_bytes() == (shards / name).read_bytes() for name in names)


PLAIN: dict[str, Any] = {
    "epochs": 2, "batch_size": 8, "device": "cpu", "workers": 0, "image_size": 8, "lr": 0.01, "optimizer": "sgd",
}  # fmt: skip


def test_training_is_bit_equal_to_that_on_the_folder(folder: Path, shards: Path) -> None:
    first, second = (holdfast.fit(source, **PLAIN) for source in (folder, shards))
    assert same_weights(first.model, second.model)
    assert first.history[-1]["test_loss"] == second.history[-1]["test_loss"]
    other = holdfast.fit(shards, **PLAIN, shuffle="window", shuffle_window=8)
    assert not same_weights(first.model, other.model), "or the order makes no difference here"


class StopsAt(Progress):
    """Sends this process a signal after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_a_training_resumed_in_mid_epoch_is_bit_equal(shuffle: str, shards: Path, tmp_path: Path) -> None:
    chosen: Mapping[str, Any] = {**PLAIN, "data": str(shards), "shuffle": shuffle, "shuffle_window": 16}
    settings = build(TrainSettings, chosen)
    with pytest.raises(Interrupted, match="stopped at step 6"):  # of 4 steps per epoch
        train(settings, out=tmp_path / "run", progress=StopsAt(6))
    again = train(settings, out=tmp_path / "run", resume=True)
    assert same_weights(again.model, train(settings).model)


def test_a_run_on_the_folder_is_continued_on_the_shards(folder: Path, shards: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(build(TrainSettings, {**PLAIN, "data": str(folder)}), out=tmp_path / "run", progress=StopsAt(3))
    again = train(build(TrainSettings, {**PLAIN, "data": str(shards)}), out=tmp_path / "run", resume=True)
    assert same_weights(again.model, holdfast.fit(folder, **PLAIN).model)


def test_every_command_takes_shards(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, read = str(tmp_path / "run"), ["--data", str(shards), "--device", "cpu", "--workers", "0"]
    assert main(["train", *read, "--image-size", "8", "--epochs", "1", "--out", run]) == 0
    assert main(["audit", run, *read, "--checks", "accuracy", "slices", "--out", str(tmp_path / "audit")]) == 0
    assert main(["predict", run, *read, "--split", "test", "--out", str(tmp_path / "p.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert len(rows) == COUNT
    assert rows[0]["path"] == f"{shards}/test-000000.tar/test/ant/11.png"
    predictions = ["--predictions", str(tmp_path / "p.csv"), "--data", str(shards), "--device", "cpu"]
    assert main(["audit", *predictions, "--checks", "accuracy", "--out", str(tmp_path / "again")]) == 0
    assert main(["data", "check", str(shards)]) == 0
    assert "every image was read" in capsys.readouterr().out
    found = [json.loads((tmp_path / own / "findings.json").read_text())["findings"] for own in ("audit", "again")]
    first, second = ([f["value"] for f in own if f["name"] == "accuracy"] for own in found)
    assert first == second


def test_groups_of_a_table_and_a_file_named_twice_are_kept(tmp_path: Path) -> None:
    rows = ["path,label,group,split"]
    for i in range(8):
        write(tmp_path / f"files/{i}.png", noise(4, 4, seed=i))
        rows.append(f"files/{i}.png,{'xy'[i % 2]},{'day' if i < 4 else 'night'},{'train' if i < 6 else 'test'}")
    rows.append("files/0.png,y,,train")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    shard(tmp_path / "table.csv", tmp_path / "shards")
    a, b = load(tmp_path / "table.csv"), load(tmp_path / "shards")
    assert (a.classes, a.group_names) == (b.classes, b.group_names) == (("x", "y"), ("day", "night"))
    for split in ("train", "test"):
        assert torch.equal(a.splits[split].groups, b.splits[split].groups)
        assert torch.equal(a.splits[split].labels, b.splits[split].labels)
    assert torch.equal(a.train.read(torch.arange(7)), b.train.read(torch.arange(7)))


def test_arrays_lose_nothing(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 5, 7, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", x_train=x, y_train=np.arange(12) % 3, x_test=x[:3, :, :, :], y_test=np.arange(3))
    shard(tmp_path / "set.npz", tmp_path / "shards")
    data = load(tmp_path / "shards")
    assert torch.equal(data.train.read(torch.arange(12)).permute(0, 2, 3, 1), torch.from_numpy(x))
    assert data.train.labels.tolist() == [0, 1, 2] * 4


def test_objects_keep_the_bytes_of_their_files(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.load_dataset(str(folder / "train"), split="train")
    shard(made, tmp_path / "shards")
    data = load(tmp_path / "shards", image_size=8)
    kept = {member.read_bytes() for split in ("train", "test") for member in files_of(data, split).paths}
    assert (folder / "train/ant/photo.jpg").read_bytes() in kept
    assert len(kept) == COUNT + 1


def test_images_without_labels_are_scored_from_shards(tmp_path: Path, shards: Path) -> None:
    for i in range(3):
        write(tmp_path / f"incoming/{i}.png", noise(8, 8, seed=i))
    said = shard(tmp_path / "incoming", tmp_path / "in", unlabelled=True)
    assert said.endswith("3 images without labels in 1 shards")
    run = holdfast.fit(shards, **PLAIN)
    assert len(holdfast.predict(run, tmp_path / "in", device="cpu", workers=0)) == 3
    with pytest.raises(HoldfastError, match="classes"):
        load(tmp_path / "in")


def test_unreadable_files_are_skipped_in_shards_too(tmp_path: Path) -> None:
    home = fill(tmp_path / "data")
    truncated_jpeg(home / "train/ant/0b.jpg")
    shard(home, tmp_path / "with")
    with pytest.raises(HoldfastError, match="cannot read image .*with/train-000000.tar/train/ant/0b.jpg"):
        holdfast.fit(tmp_path / "with", **PLAIN)
    data = load(tmp_path / "with", image_size=8, skip_unreadable=True)
    assert (len(data.train), len(data.unreadable)) == (COUNT + 1, 1)
    shard(home, tmp_path / "without", skip_unreadable=True)
    assert len(load(tmp_path / "without", image_size=8).train) == COUNT + 1


REFUSED: dict[str, tuple[list[str], str]] = {
    "into itself": (["{data}", "{data}/shards"], "lies in the data itself"),
    "over shards": (["{data}", "{shards}"], "holds shards already; replace them with --overwrite"),
    "over others": (["{data}", "{other}"], "holds other files, such as notes.txt"),
    "no such data": (["{data}x", "{data}-out"], "no such file or folder"),
    "of no size": (["{data}", "{data}-out", "--megabytes", "0"], "megabytes must be"),
    "no shards": (["{other}"], "holds no shards"),
    "an index that is there": (["{shards}"], "is there already; replace it with --overwrite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused(
    case: str, folder: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").touch()
    words, message = REFUSED[case]
    given = [word.format(data=folder, shards=shards, other=tmp_path) for word in words]
    before = sorted(shards.rglob("*"))
    assert main(["data", "index" if len(words) == 1 else "shard", *given]) == 2
    assert message in capsys.readouterr().err
    assert sorted(shards.rglob("*")) == before
    assert not list(folder.parent.glob("*-out"))


def test_overwrite_leaves_no_old_shard(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(folder, out, megabytes=0.02)
    many = len(list(out.iterdir()))
    shard(folder, out, overwrite=True)
    assert len(list(out.iterdir())) == 3 < many
    assert len(load(out, image_size=8).train) == COUNT + 1


def test_shards_say_what_the_groups_are(tmp_path: Path) -> None:
    shard("coloured-digits", out=tmp_path / "shards")
    made = load(tmp_path / "shards")
    assert (made.group_attribute, made.group_names) == ("colour", load("coloured-digits").group_names)
