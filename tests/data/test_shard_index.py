"""Shards of other tools are understood, and whatever is wrong with shards is refused by name before it is used."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from holdfast.cli import main
from holdfast.data import index, load, shard
from holdfast.data.open_shards import open_shards
from holdfast.data.shard_index import INDEX, ShardIndex, split_of
from holdfast.errors import HoldfastError
from tests.data.pictures import noise, write


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(noise(6, 6, seed=seed)).save(file, "PNG")
    return file.getvalue()


Files = Sequence[tuple[str, bytes]]


def tar(path: Path, files: Files, **options: Any) -> Path:
    """An archive as ``tar`` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as made:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return path


def samples(first: int, count: int) -> list[tuple[str, bytes]]:
    """key.png and key.cls of so many samples of three classes."""
    rows: list[tuple[str, bytes]] = []
    for i in range(first, first + count):
        rows += [(f"s{i:03d}.png", png(i)), (f"s{i:03d}.cls", str(i % 3).encode())]
    return rows


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    tar(tmp_path / "set/train-0000.tar", samples(0, 6))
    tar(tmp_path / "set/train-0001.tar", samples(6, 6), format=tarfile.PAX_FORMAT)
    tar(tmp_path / "set/val-0000.tar", samples(12, 3))
    return tmp_path / "set"


def test_shards_without_an_index_get_one_on_first_use(theirs: Path) -> None:
    first = load(theirs, training=False)
    assert [note.code for note in first.notes][:1] == ["index-made"]
    assert (first.classes, len(first.train), len(first.val or ())) == (("0", "1", "2"), 9, 3)
    kept = (theirs / INDEX).read_bytes()
    assert "index-made" not in [note.code for note in load(theirs, training=False).notes]
    (theirs / INDEX).unlink()
    index(theirs)
    assert (theirs / INDEX).read_bytes() == kept
    whole = open_shards(theirs)
    assert [member.read_bytes() for member in whole.train.paths] == [png(i) for i in range(12)]  # type: ignore[attr-defined]
    assert whole.train.labels.tolist() == [i % 3 for i in range(12)]


def test_an_index_made_anew_is_the_one_that_was_written(tmp_path: Path) -> None:
    for i in range(9):
        write(tmp_path / f"data/{'train' if i < 6 else 'test'}/{'ab'[i % 2]}/x.{i}.png", noise(6, 6, seed=i))
    shard(tmp_path / "data", tmp_path / "shards", megabytes=0.004)
    kept = (tmp_path / "shards" / INDEX).read_bytes()
    index(tmp_path / "shards", overwrite=True)
    assert (tmp_path / "shards" / INDEX).read_bytes() == kept


def test_words_groups_masks_and_strange_files_are_understood(tmp_path: Path) -> None:
    said = json.dumps({"label": "owl", "group": "night", "caption": "?"}).encode()
    other = json.dumps({"class": "cat", "group": 3}).encode()
    files = [
        ("./a/1.JPG", png(0)), ("./a/1.seg.png", png(1)), ("./a/1.json", said), ("readme", b"?"),
        ("b/1.json", other), ("b/1.png", png(2)), ("c.txt", b"no image"), ("__meta__", b"."), ("b/._2.png", b"?"),
    ]  # fmt: skip
    path = tar(tmp_path / "single.tar", files)
    data = open_shards(path)
    assert (data.classes, data.group_names) == (("cat", "owl"), ("3", "night"))
    assert (data.train.labels.tolist(), data.train.groups.tolist()) == ([1, 0], [1, 0])
    assert [member.read_bytes() for member in data.train.paths] == [png(0), png(2)]  # type: ignore[attr-defined]
    (left,) = [note.text for note in data.notes if note.code == "members-left-out"]
    assert left.endswith("1 samples without an image, 1 files without an ending")


@pytest.mark.dev
def test_webdataset_reads_ours_and_we_read_theirs(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    for i in range(5):
        write(tmp_path / f"data/{'ab'[i % 2]}/{i}.png", noise(6, 6, seed=i))
    shard(tmp_path / "data", tmp_path / "ours")
    read = wds.WebDataset(str(tmp_path / "ours/train-000000.tar"), shardshuffle=False)
    rows = list(read.decode("rgb8").to_tuple("__key__", "png", "cls"))
    assert [(key, label) for key, _, label in rows] == [(f"{'ab'[k]}/{i}", k) for i, k in ((0, 0), (2, 0), (4, 0), (1, 1), (3, 1))]  # fmt: skip  # noqa: E501
    assert (rows[1][1] == noise(6, 6, seed=2)).all()
    (tmp_path / "theirs").mkdir()
    with wds.ShardWriter(str(tmp_path / "theirs/%03d.tar"), maxcount=2, verbose=0) as writer:
        for i in range(5):
            writer.write({"__key__": f"k{i}", "png": noise(6, 6, seed=i), "cls": i % 2})
    data = load(tmp_path / "theirs", training=False)
    whole = torch.cat([split.read(torch.arange(len(split))) for split in data.splits.values()])
    assert len(whole) == 5
    assert {tuple(x.flatten().tolist()) for x in whole.permute(0, 2, 3, 1)} == {
        tuple(noise(6, 6, seed=i).flatten().tolist()) for i in range(5)
    }


BAD: dict[str, tuple[Files, str]] = {
    "a key twice": ([*samples(0, 2), ("s000.png", png(9))], "the shard bad.tar has the key 's000' twice"),
    "a file twice": ([("a.png", png(0)), ("a.png", png(1))], "has 'a.png' twice"),
    "two images": ([("a.png", png(0)), ("a.jpg", png(1))], "has several images of the key 'a': a.png, a.jpg"),
    "out of its folder": ([("../a.png", png(0))], "has a member '../a.png', which leads out of its folder"),
    "from the root": ([("/etc/a.png", png(0))], "has a member '/etc/a.png', which leads out"),
    "a line break": ([("a\nb.png", png(0))], r"which leads out of its folder or hides something"),
    "a label below 0": ([("a.png", png(0)), ("a.json", b'{"label": -4}')], "has the label -4; labels are words"),
    "a label of no kind": ([("a.png", png(0)), ("a.json", b'{"label": [1]}')], r"has the label \[1\]"),
    "not JSON": ([("a.png", png(0)), ("a.json", b"{")], "bad.tar: a.json is not JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_shard_that_cannot_be_meant_is_refused_and_no_index_is_left(case: str, tmp_path: Path) -> None:
    files, message = BAD[case]
    tar(tmp_path / "set/bad.tar", files)
    with pytest.raises(HoldfastError, match=message):
        load(tmp_path / "set")
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["bad.tar"]


def test_links_in_a_shard_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as made:
        info = tarfile.TarInfo("a.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(info)
    with pytest.raises(HoldfastError, match="has a member 'a.png', which is a link or a device"):
        load(tmp_path / "bad.tar")


@pytest.mark.parametrize("kept", [100, 512, 700, 1536, 2048, -1024, -1536])
def test_a_truncated_shard_is_refused_wherever_it_ends(kept: int, tmp_path: Path) -> None:
    path = tar(tmp_path / "cut.tar", samples(0, 4))
    content = path.read_bytes().rstrip(b"\0")
    content += bytes(-len(content) % 512) + bytes(1024)  # without the zeros that tar fills its last record with
    path.write_bytes(content[:kept])
    with pytest.raises(HoldfastError, match="the shard cut.tar"):
        open_shards(path)


def spoil_bytes(folder: Path) -> None:
    path = folder / "train-0000.tar"
    content = bytearray(path.read_bytes())
    content[600] ^= 1
    path.write_bytes(content)


def spoil_index(folder: Path, at: int) -> None:
    content = bytearray((folder / INDEX).read_bytes())
    content[at] ^= 1
    (folder / INDEX).write_bytes(content)


def forge(folder: Path, **changed: int) -> None:
    """An index whose checksum is right and whose numbers are not."""
    content = (folder / INDEX).read_bytes()
    made, arrays = ShardIndex.from_bytes(content, "x"), load_arrays(content)
    for name, value in changed.items():
        arrays[name] = arrays[name].copy()
        arrays[name][0] = value
    wrong = ShardIndex(made.shards, made.classes, made.groups, arrays)
    (folder / INDEX).write_bytes(wrong.to_bytes())


CHANGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a missing shard": (lambda f: (f / "train-0001.tar").unlink(), "1 of 3 shards of .* are missing: train-0001.tar"),
    "a longer shard": (lambda f: tar(f / "val-0000.tar", samples(0, 30)), "'val-0000.tar' .* has changed since it was"),
    "a cut shard": (lambda f: os.truncate(f / "train-0000.tar", 3000), r"'train-0000.tar' .* \(3,000 bytes, 20,480"),
    "another shard": (lambda f: tar(f / "new.tar", samples(0, 2)), "has shards that its index does not know: new.tar"),
    "other bytes": (spoil_bytes, "the bytes of s000.png in .*train-0000.tar have changed since they were indexed"),
    "an index cut off": (lambda f: os.truncate(f / INDEX, 300), "cannot use the index .*; make it anew: holdfast data"),
    "an empty index": (lambda f: os.truncate(f / INDEX, 0), "cannot use the index"),
    "a bit of the header": (lambda f: spoil_index(f, 30), "cannot use the index"),
    "a bit of the numbers": (lambda f: spoil_index(f, -5), "does not match its checksum"),
    "bytes elsewhere": (lambda f: forge(f, offset=10**9), "it names bytes outside of the shards"),
    "a label beyond": (lambda f: forge(f, label=7), "its array label has numbers that are out of range"),
    "a shard beyond": (lambda f: forge(f, shard=-1), "its array shard has numbers that are out of range"),
    "names beyond": (lambda f: forge(f, ends=-2), "its names do not fit"),
    "another file": (
        lambda f: (f / INDEX).write_bytes(save_arrays(load_arrays((f / INDEX).read_bytes()))), "cannot use the index"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_what_changed_since_indexing_ends_with_code_2_and_its_name(
    case: str, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = CHANGED[case]
    index(theirs)
    change(theirs)
    words = [
        "--data",
        str(theirs),
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--workers",
        "0",
        "--out",
        str(theirs / "../run"),
    ]
    assert main(["train", *words]) == 2
    told = capsys.readouterr().err
    with pytest.raises(HoldfastError, match=message):
        raise HoldfastError(told)
    assert "Traceback" not in told


def test_changed_bytes_are_one_image_to_skip(theirs: Path) -> None:
    index(theirs)
    spoil_bytes(theirs)
    data = load(theirs, training=False, skip_unreadable=True)
    (lost,) = data.unreadable
    assert lost.path.endswith("train-0000.tar/s000.png")
    assert "have changed since they were indexed" in lost.reason


def test_a_member_that_is_not_an_image_is_unreadable(tmp_path: Path) -> None:
    path = tar(tmp_path / "set.tar", [*samples(0, 12), ("x.png", b"not an image"), ("x.cls", b"0")])
    with pytest.raises(HoldfastError, match="cannot read image .*set.tar/x.png: empty, or not a known image format"):
        open_shards(path).train.head(12)  # type: ignore[attr-defined]
    assert len(load(path, training=False, skip_unreadable=True).unreadable) == 1


def test_shards_that_links_lead_out_of_the_folder_to_are_refused_where_that_is_asked_for(theirs: Path) -> None:
    outside = theirs.parent / "outside.tar"
    (theirs / "train-0001.tar").rename(outside)
    (theirs / "train-0001.tar").symlink_to(outside)
    with pytest.raises(HoldfastError, match="6 files lie outside"):
        load(theirs, confine=True)
    assert len(load(theirs, training=False).train) == 9


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise HoldfastError("no room")

    monkeypatch.setattr("holdfast.data.open_shards.write_atomic", full)
    data = load(theirs, training=False)
    assert [note.code for note in data.notes][:1] == ["index-not-kept"]
    assert len(data.train) == 9


def test_splits_are_said_by_whole_words() -> None:
    assert split_of("training_0.tar") == "train"
    assert split_of("latest-0.tar") == "train", "not the test in it"
    assert split_of("Validation/part-test.tar") == "val"
