"""Readers declare themselves: names are known without torch, and a reader of somebody else is used like ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli import main
from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.listing import ReaderOptions
from holdfast.errors import HoldfastError
from holdfast.parts import READERS, named_data, reader

NAMES = (
    "digits", "coloured-digits", "cifar10", "cifar100", "svhn", "mnist", "fashion-mnist",
    "coloured-mnist", "coloured-fashion-mnist", "tiny-imagenet", "corrupted-cifar10-lff-0",
    "corrupted-cifar10-lff-1", "corrupted-cifar10-dfa", "bar", "bar-1pct", "bar-5pct",
    "cifar10c-0.5pct", "cifar10c-1pct", "cifar10c-2pct", "cifar10c-5pct", "bffhq", "metashift", "waterbirds", "celeba",
)  # fmt: skip


@pytest.fixture
def blocks() -> Iterator[None]:
    """A reader of a set by name and of files that end in .blocks."""

    @reader("blocks", about="Black and white blocks.", names=("blocks",), suffixes=(".blocks",))
    def read(source: str | Path, options: ReaderOptions) -> Dataset:
        count = 40 if isinstance(source, str) else int(source.read_text())
        labels = np.arange(count) % 2
        images = np.broadcast_to(255 * labels.astype(np.uint8)[:, None, None, None], (count, 8, 8, 1))
        half = count // 2
        parts = (ArraySplit(images[own], labels[own]) for own in (slice(half), slice(half, None)))
        return Dataset("blocks", ("black", "white"), *parts)

    yield
    del READERS._parts["blocks"]


def test_the_names_are_listed_in_order_with_a_line_about_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(name for name in named_data() if name in NAMES) == NAMES  # others may stand between them
    assert main(["list", "data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours = [*NAMES, ".npz", ".csv", "class-folders", "file-names"]
    assert [line.split()[0] for line in lines if line.split()[0] in ours] == ours
    assert all(len(line.split()) > 3 and line.endswith(".") for line in lines)


def test_the_names_are_known_without_torch() -> None:
    code = "import sys; from holdfast.parts import named_data; named_data(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("by", ["name", "suffix"])
def test_a_reader_of_somebody_else_is_trained_on_audited_and_checked(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.blocks").write_text("40")
    data = "blocks" if by == "name" else str(tmp_path / "mine.blocks")
    assert load(data).classes == ("black", "white")
    assert main(["data", "check", data]) == 0
    assert "white" in capsys.readouterr().out
    assert main(["list", "data"]) == 0
    assert "blocks                   Black and white blocks." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["data", "check", "--help"])
    assert ".blocks" in capsys.readouterr().out
    run = str(tmp_path / "run")
    assert main(["train", "--data", data, "--epochs", "1", "--device", "cpu", "--quiet", "--out", run]) == 0
    words = ["--checks", "accuracy", "--device", "cpu", "--quiet", "--out", str(tmp_path / "audit")]
    assert main(["audit", run, "--data", data, *words]) == 0
    assert (tmp_path / "audit" / "findings.json").is_file()


@pytest.mark.usefixtures("blocks")
def test_options_that_a_reader_does_not_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"conflict 0.1 is for data made with a shortcut .*not for blocks"):
        load("blocks", conflict=0.1)
    with pytest.raises(HoldfastError, match=r"label cannot be used for blocks"):
        load("blocks", label="age>=40")
    (tmp_path / "mine.blocks").write_text("40")
    with pytest.raises(HoldfastError, match=r"group, names cannot be used for .*mine.blocks"):
        load(tmp_path / "mine.blocks", names="{a}_", group="a")


@pytest.mark.usefixtures("blocks")
def test_a_name_that_two_readers_claim_is_refused() -> None:
    reader("other", about="Another.", names=("blocks",))(lambda source, options: None)
    try:
        with pytest.raises(HoldfastError, match="two readers read 'blocks': blocks and other; rename one"):
            load("digits")
    finally:
        del READERS._parts["other"]
