"""Settings files as people write them, right and wrong."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.comparisons.plans import parse_axes
from holdfast.errors import HoldfastError
from holdfast.settings import TrainSettings, build, handed_over, read_config, read_environment, read_yaml


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


@pytest.mark.parametrize("key", ["epochs", "data", "model", "method", "betas", "environment", "nonsense"])
@pytest.mark.parametrize("inside", [False, True])
def test_few_lines_that_stand_for_billions_of_values_are_refused_at_once(
    tmp_path: Path, key: str, inside: bool
) -> None:
    """Each alias stands for ten of the one before: a gigabyte, and minutes to write it into a message."""
    steps = [f"&a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 'x, y'}]" for i in range(10)]
    lines = (
        [f"{key}: [{', '.join(steps)}]"] if inside else [*(f"l{i}: {s}" for i, s in enumerate(steps)), f"{key}: *a9"]
    )
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(lines))
    start = time.process_time()
    with pytest.raises(
        HoldfastError, match="mine.yaml is not valid YAML: with its aliases written out it has more than"
    ):
        read_yaml(path)
    assert time.process_time() - start < 1


def test_a_value_inside_itself_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("method: &a {name: lff, q: *a}\n")
    with pytest.raises(HoldfastError, match="with its aliases written out"):
        read_yaml(path)


def test_aliases_are_no_crime(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("lr: &rate 0.25\nweight_decay: *rate\n")
    assert read_yaml(path) == {"lr": 0.25, "weight_decay": 0.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 0x" + "F" * 5000, "line 1 is not valid YAML: a number has more than 64 bits"),
        ("lr: " + "9" * 400, "a number has more than 64 bits"),
        ("epochs: !!int ''", "is not valid YAML: "),
        ("epochs: !!bool x", "is not valid YAML: "),
        ("epochs: !!timestamp x", "is not valid YAML: "),
        ("# " + "x" * 300_000, "has more than 256 kB, and settings are a few lines"),
    ],
)
def test_what_the_yaml_reader_chokes_on(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(HoldfastError, match=message):
        build(TrainSettings, read_yaml(path))


@pytest.mark.parametrize(
    "values",
    [
        {"class_weights": ["0x" + "F" * 5000]},
        {"class_weights": ["-1"] * 3000},
        {"color_jitter": [-1.0] * 3000},
    ],
)
def test_long_lists_are_cut_off_in_messages(values: dict[str, object]) -> None:
    with pytest.raises(HoldfastError) as caught:
        build(TrainSettings, values)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text", [f"epochs: *nowhere{'1' * 5000}\n", f"epochs: !!int '{'x' * 5000}'\n", f"lr: !!float x{'1' * 5000}\n"]
)
def test_what_is_wrong_with_a_file_is_said_in_few_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(HoldfastError, match="is not valid YAML") as caught:
        read_yaml(tmp_path / "mine.yaml")
    assert len(str(caught.value)) - len(str(tmp_path)) < 500


def test_long_values_are_cut_off_in_messages() -> None:
    with pytest.raises(HoldfastError) as caught:
        build(TrainSettings, {"epochs": ["x" * 10_000]})
    assert len(str(caught.value)) < 300
    with pytest.raises(HoldfastError, match="epochs must be within 64 bits"):
        build(TrainSettings, {"epochs": 10**30})


def test_endless_files_are_not_read_to_their_end() -> None:
    with pytest.raises(HoldfastError, match="/dev/zero has more than 256 kB"):
        read_yaml(Path("/dev/zero"))


def test_what_a_run_was_handed_is_named_in_few_words(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"epochs: 1\nenvironment: {{own_data: '{'1' * 5000}'}}\n")
    with pytest.raises(HoldfastError, match=r"a set in memory \(1{300}\.\.\.\), which settings do not hold"):
        read_config(path, ())


@pytest.mark.parametrize(("kind", "what"), [("data", "a set in memory"), ("model", "a module of its own")])
def test_what_a_run_was_handed_cannot_break_a_line(tmp_path: Path, kind: str, what: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f'epochs: 1\nenvironment: {{own_{kind}: "a\\nb\\e[31m"}}\n')
    with pytest.raises(HoldfastError) as refused:
        read_config(path, ())
    assert rf"{what} (a\nb\x1b[31m), which settings do not hold" in str(refused.value)
    shown = handed_over(read_environment(tmp_path), kind)
    assert shown == r"a\nb\x1b[31m"
