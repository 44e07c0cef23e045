"""What every reader of data must do. A new reader is one row more, found by its registration."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.data import load
from holdfast.errors import HoldfastError
from holdfast.parts import READERS, data_syntax, described_data

SUFFIXES = [(name, suffix) for name, part in READERS.items() for suffix in part.suffixes]


@pytest.mark.parametrize("name", READERS)
class TestReader:
    def test_declares_what_it_reads_in_a_line(self, name: str) -> None:
        part = READERS[name]
        assert part.names or part.suffixes or part.recognises or part.prefix
        assert set(part.takes) <= {"conflict", "names", "label", "group", "columns"}
        described = [part.about, *part.described.values()]
        assert all(line and "\n" not in line and line.endswith(".") for line in described)
        assert part.names or part.about in described_data().values()
        assert all(suffix.startswith(".") and suffix in data_syntax() for suffix in part.suffixes)

    def test_does_not_take_a_folder_of_classes_for_its_own(self, name: str, tmp_path: Path) -> None:
        for folder in ("train/cat", "train/dog", "test/cat", "test/dog"):
            (tmp_path / folder).mkdir(parents=True)
        recognises = READERS[name].recognises
        general = READERS[name].order >= READERS["class-folders"].order
        assert recognises is None or recognises(tmp_path) == general

    def test_refuses_options_that_it_does_not_take(self, name: str, tmp_path: Path) -> None:
        part = READERS[name]
        files = [tmp_path / f"file{suffix}" for suffix in part.suffixes]
        for path in files:
            path.touch()
        for source in (*part.names, *files):
            for option in {"label", "group"} - set(part.takes):
                with pytest.raises(HoldfastError, match=option):
                    load(source, root=tmp_path, **{option: "age>=40"})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "suffix"), SUFFIXES)
def test_a_damaged_file_is_refused_by_its_name(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(b"\x00\xff nothing of the kind \x93")
    with pytest.raises(HoldfastError, match="damaged"):
        load(path)
