"""Files that leave the folder of the data: absolute paths are meant so, ../ is warned of, and confine refuses all."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.data import load
from holdfast.data.unlabelled_images import open_unlabelled
from holdfast.errors import HoldfastError
from holdfast.quality import check_data
from tests.data.pictures import noise, write


def table(folder: Path, first: str) -> Path:
    """A table of five images in its own folder and one that a cell names."""
    rows = [f"{i}.png,{'ab'[i % 2]},{'test' if i > 3 else 'train'}" for i in range(6)]
    for i in range(6):
        write(folder / f"{i}.png", noise(4, 4, seed=i))
    write(folder.parent / "far" / "away.png", noise(4, 4, seed=9))
    rows[0] = f"{first},a,train"
    (folder / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    return folder / "t.csv"


def notes(path: Path) -> list[tuple[str, str]]:
    return [(note.code, note.level) for note in load(path).notes]


@pytest.mark.parametrize("cell", ["../far/away.png", "./../far/away.png", "x/../../far/away.png"])
def test_paths_that_climb_out_are_followed_with_a_warning(tmp_path: Path, cell: str) -> None:
    (tmp_path / "set" / "x").mkdir(parents=True)
    path = table(tmp_path / "set", cell)
    assert ("paths-leave-folder", "warning") in notes(path)
    assert "1 paths leave" in check_data(path).to_text()


def test_absolute_paths_and_those_that_come_back_are_no_cause_for_a_word(tmp_path: Path) -> None:
    (tmp_path / "set" / "x").mkdir(parents=True)
    for cell in (str(tmp_path / "far" / "away.png"), "x/../0.png", "..0.png"):
        write(tmp_path / "set" / "..0.png", noise(4, 4))
        assert notes(table(tmp_path / "set", cell)) == []


@pytest.mark.parametrize("way", ["climbing", "absolute", "link", "linked folder"])
def test_confine_refuses_whatever_lies_outside(tmp_path: Path, way: str) -> None:
    (tmp_path / "set").mkdir()
    cells = {"climbing": "../far/away.png", "absolute": str(tmp_path / "far" / "away.png")}
    path = table(tmp_path / "set", cells.get(way, "link.png" if way == "link" else "linked/away.png"))
    (tmp_path / "set" / "link.png").symlink_to("../far/away.png")
    (tmp_path / "set" / "linked").symlink_to("../far")
    assert len(load(path).train) == 4
    for read in (load, open_unlabelled):
        with pytest.raises(
            HoldfastError, match=r"t.csv: 1 files lie outside .*set, such as .*, and confine keeps to that"
        ):
            read(path, confine=True)
    report = check_data(path, confine=True)
    assert not report.sound
    assert "files lie outside" in report.problems[0]
    assert report.sizes == {}, "nothing is opened"


def test_confine_keeps_what_lies_inside(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    path = table(tmp_path / "set", "inner.png")
    (tmp_path / "set" / "inner.png").symlink_to("1.png")
    assert len(load(path, confine=True).train) == 4
    (tmp_path / "link").symlink_to("set")  # the folder may itself be reached by a link
    assert len(load(tmp_path / "link" / "t.csv", confine=True).train) == 4
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "t.csv"
    moved.write_text(path.read_text())
    assert len(load(moved, root=tmp_path / "set", confine=True).train) == 4


def test_links_out_of_a_folder_of_classes(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png"):
        write(tmp_path / "set" / name, noise(4, 4))
    write(tmp_path / "far/away.png", noise(4, 4))
    assert len(load(tmp_path / "set", confine=True).train) > 0
    (tmp_path / "set/a/link").symlink_to(tmp_path / "far")
    assert len(open_unlabelled(tmp_path / "set")) == 7
    for read in (load, open_unlabelled):
        with pytest.raises(HoldfastError, match=r"set: 1 files lie outside .*such as .*link/away.png"):
            read(tmp_path / "set", confine=True)


def test_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set").mkdir()
    path = str(table(tmp_path / "set", "../far/away.png"))
    assert main(["data", "check", path]) == 0
    assert main(["data", "check", path, "--confine"]) == 2
    capsys.readouterr()
    words = ["--confine", "--device", "cpu", "--out", str(tmp_path / "out")]
    for command in (
        ["train", "--data", path],
        ["audit", "timm:resnet10t", "--data", path],
        ["shortcuts", "--data", path],
    ):
        assert main([*command, *words]) == 2
        assert "files lie outside" in capsys.readouterr().err


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector of digits, as quick as can be."""
    folder = tmp_path_factory.mktemp("confined") / "detector"
    words = ["detect", "fit", "--data", "digits", "--out", str(folder), "--scores", "reconstruction"]
    assert main([*words, "--epochs", "1", "--encoder-epochs", "1", "--device", "cpu"]) == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("confined") / "run"
    assert main(["train", "--data", "digits", "--epochs", "1", "--device", "cpu", "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *("detect fit", "detect score", "detect evaluate", "describe"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("compare", "predict")),
    ],
)
def test_every_command_that_reads_images_warns_or_refuses(
    command: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "set").mkdir()
    data, out = ["--data", str(table(tmp_path / "set", "../far/away.png"))], ["--out", str(tmp_path / "out.csv")]
    one = ["--epochs", "1", "--device", "cpu"]

    def made(name: str) -> str:
        return str(request.getfixturevalue(name))

    words = {
        "compare": lambda: ["compare", *data, "--methods", "erm", "--seeds", "1", *one, "--out", str(tmp_path / "out")],
        "detect fit": lambda: ["detect", "fit", *data, *one, "--encoder-epochs", "1", "--out", str(tmp_path / "out")],
        "detect score": lambda: ["detect", "score", made("detector"), *data, *out, "--device", "cpu"],
        "detect evaluate": lambda: [
            "detect", "evaluate", made("detector"), "--normal", data[1], "--anomalous", data[1], "--device", "cpu"
        ],
        "predict": lambda: ["predict", made("trained"), *data, *out, "--device", "cpu"],
        "describe": lambda: ["describe", data[1], "--out", str(tmp_path / "out"), *one],
    }[command]()  # fmt: skip
    capsys.readouterr()
    assert main([*words, "--confine"]) == 2
    assert "1 files lie outside" in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(words)
    assert "1 paths leave" in capsys.readouterr().err
