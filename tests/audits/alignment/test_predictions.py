"""Predictions from a file: matched with the right images, or refused."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.audits.alignment.predictions import read_predictions
from holdfast.data import ArraySplit, Dataset
from holdfast.data.splits import FileSplit
from holdfast.errors import HoldfastError

LABELS = torch.tensor([0, 1, 2, 1, 0])
LOGITS = 3 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
CLASSES = ("cat", "dog", "owl")


def dataset() -> Dataset:
    split = ArraySplit(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), LABELS, torch.tensor([0, 0, 1, 1, -1]), "set")
    return Dataset("set", CLASSES, train=split, test=split, group_names=("day", "night"))


def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def scores(order: Sequence[int], values: torch.Tensor = LOGITS) -> list[list[Any]]:
    return [[i, *values[i].tolist()] for i in order]


def test_logits_by_position_in_any_order_and_any_column_order(tmp_path: Path) -> None:
    order = [3, 0, 4, 1, 2]
    rows = [[i, c, b, a] for i, a, b, c in scores(order)]
    path = write(tmp_path / "p.csv", ["position", "owl", "dog", "cat"], rows)
    found = read_predictions(path, data=dataset())
    assert found.positions.tolist() == order
    assert torch.allclose(found.predictions.logits, LOGITS[order])
    assert torch.equal(found.predictions.labels, LABELS[order])
    assert found.predictions.groups.tolist() == [1, 0, -1, 0, 1]
    assert (found.output, found.scores, found.warnings, found.group_names) == ("logits", True, (), ("day", "night"))


def test_probabilities_are_recognised_and_prefixes_dropped(tmp_path: Path) -> None:
    header = ["id", "prob_cat", "prob_dog", "prob_owl", "confidence", "width"]
    rows = [[f"set[{i}]", *p, max(p), 640] for i, p in enumerate(LOGITS.softmax(1).tolist())]
    found = read_predictions(write(tmp_path / "p.csv", header, rows), data=dataset())
    assert found.output == "probabilities"
    assert torch.allclose(found.predictions.logits.softmax(1), LOGITS.softmax(1), atol=1e-6)
    assert any("columns of no class left out: width" in note for note in map(str, found.notes))
    assert read_predictions(tmp_path / "p.csv", data=dataset(), output="logits").output == "logits"


def test_predicted_classes_alone(tmp_path: Path) -> None:
    rows = [["cat", "day"], ["cat", "day"], ["owl", "night"], ["dog", "dusk"], ["dog", ""]]
    path = write(tmp_path / "p.csv", ["Prediction", "site"], rows)
    found = read_predictions(path, data=dataset(), groups=["site"])
    assert not found.scores
    assert found.output is None
    assert found.predictions.correct.tolist() == [True, False, True, True, False]
    assert found.columns["site"] == ("day", "day", "night", "dusk", "")


def test_a_file_alone_needs_labels(tmp_path: Path) -> None:
    rows = [["a.png", "cat", "dog", "g1"], ["b.png", "owl", "owl", "g0"]]
    path = write(tmp_path / "p.csv", ["id", "label", "prediction", "group"], rows)
    found = read_predictions(path)
    assert (found.classes, found.group_names, found.ids) == (CLASSES, ("g0", "g1"), ("a.png", "b.png"))
    assert found.predictions.correct.tolist() == [False, True]
    assert found.predictions.groups.tolist() == [1, 0]
    numbered = write(tmp_path / "n.csv", ["label", "cat", "dog"], [[1, 0.2, 3.0], [0, 1.0, 4.0]])
    assert read_predictions(numbered).predictions.correct.tolist() == [True, False]
    with pytest.raises(HoldfastError, match="has no column 'label'"):
        read_predictions(write(tmp_path / "u.csv", ["prediction"], [["cat"]]))


def test_a_file_of_predict_is_known_by_all_its_columns(tmp_path: Path) -> None:
    columns = ["path", "prediction", "confidence", "ood_score", "ood", "reason"]
    images = [dataset().test.describe(i) for i in (2, 0)]
    rows = [[images[0], "owl", 0.9, 7.5, 1, "far off"], [images[1], "dog", 0.8, 1.5, 0, ""]]
    found = read_predictions(write(tmp_path / "p.csv", columns, rows), data=dataset(), groups=["ood"])
    assert found.positions.tolist() == [2, 0]
    assert found.predictions.logits.argmax(1).tolist() == [CLASSES.index("owl"), CLASSES.index("dog")]
    assert found.columns["ood"] == ("1", "0")
    unsure = [[*row, flag] for row, flag in zip(rows, (0, 1), strict=True)]
    again = read_predictions(write(tmp_path / "a.csv", [*columns, "abstain"], unsure), data=dataset())
    assert torch.equal(again.predictions.logits, found.predictions.logits), "the flag is not the score of a class"
    assert "abstain" not in str(again.notes), "nor a column that nobody knows"
    # a column of one's own called image leaves label what it is everywhere else
    other = write(tmp_path / "o.csv", ["image", "label", "prediction"], [["a", "cat", "dog"], ["b", "owl", "owl"]])
    assert read_predictions(other).predictions.correct.tolist() == [False, True]


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table(
        {
            "position": [2, 1, 0],
            "label": ["owl", "dog", "cat"],
            "note": ["x", "y", None],
            "ward": [1.0, 2.5, float("nan")],
            **{name: LOGITS[[2, 1, 0], i].numpy() for i, name in enumerate(CLASSES)},
        }
    )
    parquet.write_table(table, tmp_path / "p.parquet")
    found = read_predictions(tmp_path / "p.parquet", data=dataset(), groups=["ward"])
    assert found.columns["ward"] == ("1", "2.5", "")
    assert torch.equal(found.predictions.logits, LOGITS[[2, 1, 0]])
    assert any("columns left out: note" in note for note in map(str, found.notes))
    assert any("covers 3 of 5 test images" in text for text in map(str, found.warnings))
    texts = {name: [str(v).replace(".", ",") for v in LOGITS[[2, 1, 0], i].tolist()] for i, name in enumerate(CLASSES)}
    parquet.write_table(pyarrow.table({"label": ["owl", "dog", "cat"], **texts}), tmp_path / "p.parquet")
    with pytest.raises(HoldfastError, match="line 1: cat is '-?[0-9]*,[0-9]*'; scores must be numbers"):
        read_predictions(tmp_path / "p.parquet")
    (tmp_path / "p.parquet").write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="as Parquet"):
        read_predictions(tmp_path / "p.parquet")


ROWS = scores(range(5))


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (["position", *CLASSES], [*ROWS, ROWS[0]], "speaks of 1 images more than once"),
        (["position", *CLASSES], [[7, 1, 2, 3]], "position '7' is none of 0 to 4"),
        (["id", *CLASSES], [["set[9]", 1, 2, 3]], "'set.9.' is not a test image; they have names such as 'set.4.'"),
        (list(CLASSES), [[1, 2, 3]], "has 1 rows for 5 test images and no column 'id' or 'position'"),
        (["position", "cat", "dog"], [[0, 1, 2]], "has no column for owl; its numeric columns are cat, dog"),
        (["position", *CLASSES], [[0, 1, 2, 3], [1, 1, 2, "nan"]], "p.csv, line 3: owl is nan; scores must be"),
        (["position", *CLASSES], [[0, 1, 2, 3], [1, 1, 2, "x"]], "line 3: .*scores must be numbers"),
        (
            ["position", *CLASSES],
            [[0, "0,5", "0,3", "0,2"]],
            "p.csv, line 2: cat is '0,5'; scores must .* point",
        ),
        (["position", "age", "prob_cat", "prob_dog", "prob_owl"], [[0, 7, 1, "", 0]], "line 2: prob_dog is ''; scores"),
        (["position", *CLASSES], [[0, 1, 2, 3], [1, 1]], "line 3: 2 cells under 4 columns"),
        (["position", "prediction"], [[0, "cta"]], "line 2: unknown prediction 'cta'; did you mean 'cat'"),
        (["position", "prediction"], [[0, ""]], "line 2: no prediction"),
        (["position", "prediction", "label"], [[0, "cat", "dog"]], r"1 of 1 labels are not the data's.*line 2 \(dog"),
        (["position"], [[0]], "neither a column 'prediction' nor one per class, such as 'cat'"),
        (["position", "cat", "cat"], [[0, 1, 2]], "has the column cat more than once"),
        (["position;cat;dog;owl"], [["0;1;2;3"]], "seems to have semicolons between its cells; save it with commas"),
        (["position", *CLASSES], [], "has no rows"),
        ([], [], "is empty; the first line must name the columns"),
    ],
)
def test_what_may_be_wrong_with_a_file(tmp_path: Path, header: list[str], rows: list[list[Any]], message: str) -> None:
    path = write(tmp_path / "p.csv", header, rows)
    with pytest.raises(HoldfastError, match=message):
        read_predictions(path, data=dataset())


def test_images_of_files_go_by_their_place_in_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the working folder, from the data's folder, absolute, or by a name that only one image has."""
    places = ["test/cat/1.png", "test/dog/1.png", "test/dog/2.png", "train/dog/1.png"]
    paths = [Path("photos", place) for place in places]
    split = FileSplit(paths, torch.tensor([0, 1, 1, 1]), torch.full((4,), -1), size=(2, 2))
    data = Dataset("photos", ("cat", "dog"), train=split, test=split)
    monkeypatch.chdir(tmp_path)
    spellings = {
        "cwd": [str(path) for path in paths],
        "data": places,
        "absolute": [str(tmp_path / path) for path in paths],
        "dotted": [f"./{path}" for path in paths],
        "short": ["cat/1.png", "test/dog/1.png", "2.png", "train/dog/1.png"],
    }
    for words in spellings.values():
        rows = [[word, "dog"] for word in reversed(words)]
        found = read_predictions(write(tmp_path / "p.csv", ["path", "prediction"], rows), data=data)
        assert found.positions.tolist() == [3, 2, 1, 0]
    with pytest.raises(HoldfastError, match="'dog/1.png' is the name of 2 test images; give their full paths"):
        read_predictions(write(tmp_path / "p.csv", ["path", "prediction"], [["dog/1.png", "dog"]]), data=data)


def test_an_image_comes_once_also_without_data(tmp_path: Path) -> None:
    rows = [["a.png", "cat", "cat"], ["b.png", "dog", "cat"], ["a.png", "cat", "dog"]]
    path = write(tmp_path / "p.csv", ["id", "label", "prediction"], rows)
    with pytest.raises(HoldfastError, match="speaks of 1 images more than once"):
        read_predictions(path)
    hidden = [[i, "(hidden)", "cat", "cat"] for i in range(3)]  # as an audit writes them that was told to redact paths
    path = write(tmp_path / "h.csv", ["id", "path", "label", "prediction"], hidden)
    assert len(read_predictions(path).ids) == 3


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="do not exist"):
        read_predictions(tmp_path / "none.csv")
    (tmp_path / "p.txt").write_text("x")
    with pytest.raises(HoldfastError, match="must be .csv or .parquet, not '.txt'"):
        read_predictions(tmp_path / "p.txt")
    (tmp_path / "p.csv").write_bytes("label,prediction\nk\xe4se,a\n".encode("latin-1"))
    with pytest.raises(HoldfastError, match="is not UTF-8"):
        read_predictions(tmp_path / "p.csv")
    with pytest.raises(HoldfastError, match="no column 'site'"):
        read_predictions(write(tmp_path / "q.csv", ["label", "prediction"], [["a", "a"]]), groups=["site"])


def test_a_prediction_against_its_own_scores_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", ["position", "prediction", *CLASSES], [[0, "cat", 1.0, 5.0, -2.0]])
    found = read_predictions(path, data=dataset())
    assert any("in 1 rows" in text and "scores count" in text for text in map(str, found.warnings))
