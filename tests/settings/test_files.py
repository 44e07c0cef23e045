"""Settings files as people write them, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.comparisons.plans import parse_axes
from holdfast.errors import HoldfastError
from holdfast.settings import TrainSettings, build, read_yaml


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- epochs\n- 3\n", "mine.yaml must hold settings as 'key: value' lines, got ['epochs', 3]"),
        (b"", "mine.yaml must hold settings as 'key: value' lines, got nothing"),
        (b"# epochs: 3\n", "got nothing"),
        (b"method: [erm, lff]\n", "method must be a name or a mapping with a name, got ['erm', 'lff']"),
        (b"method: {name: [erm, lff]}\n", "the name of method must be text, got ['erm', 'lff']"),
        (b"method: {q: 0.7}\n", "method {'q': 0.7} has no name; add one of: erm, lff"),
        (b"ascent: {name: {sam: 1}}\n", "the name of ascent must be text, got {'sam': 1}"),
        (b"3: epochs\n", "unknown settings key 3"),
        (b"? [a, b]\n: 3\n", "mine.yaml, line 1 is not valid YAML: while constructing a mapping found unhashable key"),
        (b"epochs: 3\nlr: 0.1\nepochs: 4\n", "mine.yaml, line 3 is not valid YAML: 'epochs' is given twice"),
        (b"method:\n  name: lff\n  q: 1\n  q: 2\n", "mine.yaml, line 4 is not valid YAML: 'q' is given twice"),
        (b"epochs: 3\nmethod:\n\tname: lff\n", "line 3 is not valid YAML"),
        (b"epochs: 3\nmethod:\n\tname: lff\n", "indent with spaces, not tabs"),
        ("data: Gemälde\n".encode("latin-1"), "cannot read settings from mine.yaml: it is not UTF-8 text"),
        (b"epochs: 3\n---\nepochs: 4\n", "expected a single document in the stream but found another document"),
        (b"name: 2020-13-45\n", "mine.yaml is not valid YAML: month must be in 1..12"),
        (b"epochs: 1" + b"0" * 5000, "mine.yaml is not valid YAML: Exceeds the limit"),
        (b"method: " + b"[" * 3000, "mine.yaml is not valid YAML"),
        (b"data: 5\n", "data must be text, got 5"),
        (b"model: [resnet18]\n", "model must be text, got ['resnet18']"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_in_one_line(
    content: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_bytes(content)
    assert main(["train", "--config", "mine.yaml", "--print-config"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=f"cannot read settings from {tmp_path}: Is a directory"):
        read_yaml(tmp_path)


def test_merged_keys_may_be_overruled(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("method: {<<: {name: lff, q: 0.5}, q: 0.6}\n")
    assert build(TrainSettings, read_yaml(path)).method.q == 0.6  # type: ignore[attr-defined]


def test_values_to_vary_that_are_no_values_are_refused() -> None:
    with pytest.raises(HoldfastError, match="cannot read the values of 'data=2020-13-45'"):
        parse_axes(["data=2020-13-45"])
