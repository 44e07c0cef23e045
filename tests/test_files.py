from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import HoldfastError
from holdfast.files import exists, filling, reading, replacing, writable_folder, write_atomic


def test_content_arrives_whole_in_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new\0\n")
        assert reader.read() == b"old"  # who reads meanwhile sees one whole file, never a mixture
    assert path.read_bytes() == b"new\0\n"
    assert list(path.parent.iterdir()) == [path]


def test_what_grows_takes_its_place_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"old")
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(b"first,")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"last")
    assert path.read_bytes() == b"first,last"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("of the block"), KeyboardInterrupt()])
def test_a_block_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_size, path.exists())))
    write_atomic(path, b"12345")
    assert synced == [(5, False)]


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file, no folder")
    path = tmp_path / "taken" / "file.bin"
    with pytest.raises(HoldfastError, match=f"cannot write {path}: .*exists; free some room or choose another place"):
        write_atomic(path, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    with (
        pytest.raises(HoldfastError, match=f"cannot write {path}: No space left"),
        replacing(path),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"1")
    assert not path.exists()


def test_no_room_says_how_much_is_needed_and_how_much_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1234 if folder.is_dir() else 0))
    with pytest.raises(
        HoldfastError, match=r"file: No space left on device \(4,567 bytes are needed, 1,234 are free\);"
    ):
        write_atomic(tmp_path / "file", bytes(4567))

    def grow() -> None:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_bytes(bytes(3000))

    with pytest.raises(HoldfastError, match=r"\(more than 3,000 bytes are needed, 1,234 are free\); free some room or"):
        grow()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    assert exists(tmp_path)
    assert not exists(tmp_path / "missing")
    with pytest.raises(HoldfastError, match="cannot read .*aaa: File name too long; correct the path, or its permiss"):
        exists(tmp_path / ("a" * 300))
    with pytest.raises(HoldfastError, match="cannot read closed/x: Permission denied; correct"), reading():
        raise PermissionError(errno.EACCES, "Permission denied", "closed/x")
    with pytest.raises(HoldfastError, match="cannot read no address; correct"), reading():
        raise OSError("no address")


def test_a_folder_is_filled_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "made"

    def fail() -> None:
        with filling(folder) as place:
            write_atomic(place / "inner" / "first", b"3")
            write_atomic(place / "inner" / "first" / "below a file", b"3")

    with pytest.raises(HoldfastError, match="File exists"):
        fail()
    assert not list((tmp_path / "a").iterdir())
    for content in (b"1", b"2"):
        with filling(folder) as place:
            write_atomic(place / "inner" / "first", content)
            write_atomic(place / "second", content)
            assert not folder.exists() or (folder / "second").read_bytes() == b"1"
        assert (folder / "inner" / "first").read_bytes() == (folder / "second").read_bytes() == content
    with pytest.raises(HoldfastError, match="File exists"):
        fail()
    assert (folder / "inner" / "first").read_bytes() == b"2"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "first", "inner", "made", "second"]


def test_commands_that_start_together_may_name_the_same_missing_folders(tmp_path: Path) -> None:
    places = [tmp_path / "runs" / name for name in "ab"] * 200
    with ThreadPoolExecutor(4) as pool:  # two ranks of one audit, and two audits below one folder
        assert list(pool.map(writable_folder, places)) == places
    assert not list(tmp_path.iterdir())


def test_a_link_to_nowhere_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(HoldfastError, match="link is not a folder; choose another with --out"):
        writable_folder(tmp_path / "link")


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert writable_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(HoldfastError, match="file is not a folder; choose another with --out"):
        writable_folder(tmp_path / "file")
    with pytest.raises(HoldfastError, match="cannot write to .*inner: Not a directory"):
        writable_folder(tmp_path / "file" / "inner")
    with pytest.raises(HoldfastError, match="out is empty"):
        writable_folder("")
