"""Which columns of a file are classes, and what their numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.audits.alignment.predictions import read_predictions
from holdfast.errors import HoldfastError
from tests.audits.alignment.test_predictions import CLASSES, LABELS, LOGITS, dataset, write

PROBABILITIES = LOGITS.softmax(1)
WORDS = [CLASSES[label] for label in LABELS.tolist()]


def file(folder: Path, names: Sequence[str], values: torch.Tensor, **more: Sequence[Any]) -> Path:
    rows = [[*row, *cells] for *cells, row in zip(*more.values(), values.tolist(), strict=True)]
    return write(folder / "p.csv", [*names, *more], rows)


def prefixed(word: str) -> list[str]:
    return [f"{word}{name}" for name in CLASSES]


def test_a_number_that_no_label_names_is_no_class(tmp_path: Path) -> None:
    """A brightness above every logit would win each row."""
    light, age = [200.0, 150, 90, 20, 10], [31, 32, 33, 34, 35]
    found = read_predictions(file(tmp_path, CLASSES, LOGITS, label=WORDS, brightness=light, age=age))
    assert found.classes == CLASSES
    assert torch.equal(found.predictions.correct, LOGITS.argmax(1) == LABELS)
    assert any("columns of no class left out: brightness, age" in note for note in map(str, found.notes))


def test_columns_with_a_prefix_are_classes_also_where_no_label_names_them(tmp_path: Path) -> None:
    labels = ["cat", "cat", "dog", "dog", "cat"]
    found = read_predictions(file(tmp_path, prefixed("prob_"), PROBABILITIES, label=labels, age=[9] * 5))
    assert found.classes == CLASSES
    torch.testing.assert_close(found.predictions.logits.softmax(1), PROBABILITIES)
    found = read_predictions(file(tmp_path, prefixed("logit_"), LOGITS, label=[0, 1, 2, 1, 0], age=[9] * 5))
    assert found.classes == CLASSES
    assert torch.equal(found.predictions.correct, LOGITS.argmax(1) == LABELS)


def test_probabilities_that_sum_to_one_are_all_classes(tmp_path: Path) -> None:
    """An answer of a class that no image has is wrong, and not passed over."""
    labels = ["cat", "dog", "cat", "dog", "cat"]
    found = read_predictions(file(tmp_path, CLASSES, PROBABILITIES, label=labels))
    assert found.classes == CLASSES
    assert bool((found.predictions.logits.argmax(1) == 2).any())


def test_numbers_for_labels_fit_columns_in_order_or_nothing_is_guessed(tmp_path: Path) -> None:
    numbers = LABELS.tolist()
    found = read_predictions(file(tmp_path, CLASSES, LOGITS, label=numbers))
    assert torch.equal(found.predictions.labels, LABELS)
    with pytest.raises(HoldfastError, match=r"numbers up to 2, and 4 columns may be their scores \(cat, dog, owl, age"):
        read_predictions(file(tmp_path, CLASSES, LOGITS, label=numbers, age=[9] * 5))
    found = read_predictions(file(tmp_path, ["0", "1", "2"], LOGITS, label=[0, 1, 1, 1, 0], age=[9] * 5))
    assert found.classes == ("0", "1", "2")


def test_numbers_beside_predictions_are_no_scores(tmp_path: Path) -> None:
    more = {"label": [0, 1, 0, 1, 0], "prediction": [0, 1, 1, 1, 0], "age": [30] * 5}
    found = read_predictions(file(tmp_path, ["brightness"], 9 * torch.rand(5, 1), **more))
    assert not found.scores
    assert found.predictions.correct.tolist() == [True, True, False, True, True]
    assert any("left out: brightness, age" in note for note in map(str, found.notes))


@pytest.mark.parametrize("names", [prefixed("prob_"), list(CLASSES)], ids=["prefixed", "bare"])
@pytest.mark.parametrize(("scale", "decimals"), [(1, 2), (1, 3), (100, 0), (100, 1), (100, 4)])
def test_rounded_probabilities_and_percentages_are_probabilities(
    tmp_path: Path, names: list[str], scale: int, decimals: int
) -> None:
    values = (PROBABILITIES * scale).round(decimals=decimals)
    found = read_predictions(file(tmp_path, names, values, label=WORDS))
    assert found.output == "probabilities"
    torch.testing.assert_close(found.predictions.logits.softmax(1), PROBABILITIES, atol=0.01, rtol=0)
    assert found.warnings == ()


def test_the_prefix_says_what_the_numbers_are(tmp_path: Path) -> None:
    """Logits that look like probabilities stay logits; a file with both kinds has the one that was asked for."""
    path = file(tmp_path, prefixed("logit_"), PROBABILITIES, label=WORDS)
    found = read_predictions(path)
    assert found.output == "logits"
    torch.testing.assert_close(found.predictions.logits, PROBABILITIES)
    both = torch.cat([PROBABILITIES, LOGITS], 1)
    path = file(tmp_path, [*prefixed("prob_"), *prefixed("logit_")], both, label=WORDS)
    assert read_predictions(path).output == "probabilities"
    found = read_predictions(path, output="logits")
    torch.testing.assert_close(found.predictions.logits, LOGITS)


def test_probabilities_that_are_none_are_refused_or_doubted(tmp_path: Path) -> None:
    bad = PROBABILITIES.clone()
    bad[1, 2] = -0.2
    with pytest.raises(HoldfastError, match="line 3: prob_owl is -0.2; a probability is from 0 to 1"):
        read_predictions(file(tmp_path, prefixed("prob_"), bad, label=WORDS))
    with pytest.raises(HoldfastError, match="say --output logits for logits"):
        read_predictions(file(tmp_path, prefixed("prob_"), 3 + LOGITS.abs(), label=WORDS))
    with pytest.raises(HoldfastError, match="log_prob_cat is .*not above 0"):
        read_predictions(file(tmp_path, prefixed("log_prob_"), LOGITS.abs(), label=WORDS))
    found = read_predictions(file(tmp_path, prefixed("prob_"), LOGITS.sigmoid(), label=WORDS))
    assert any("scaled to one" in text and "--output sigmoid" in text for text in map(str, found.warnings))
    found = read_predictions(file(tmp_path, list(CLASSES), LOGITS.sigmoid(), label=WORDS))
    assert any("--output probabilities" in text and "--output sigmoid" in text for text in map(str, found.warnings))


def test_probabilities_of_more_classes_than_the_data_has(tmp_path: Path) -> None:
    wide = torch.cat([LOGITS, LOGITS[:, :1] + 1], 1).softmax(1)
    found = read_predictions(file(tmp_path, [*CLASSES, "wolf"], wide, position=range(5)), data=dataset())
    assert found.output == "probabilities"
    torch.testing.assert_close(found.predictions.logits.softmax(1), PROBABILITIES)


def test_a_class_map_says_which_columns_are_which_class(tmp_path: Path) -> None:
    names = ["tabby", "siamese", "hound", "owlet"]
    wide = torch.cat([LOGITS[:, :1] - 1, LOGITS[:, :1], LOGITS[:, 1:]], 1)
    mapping = {"cat": ["tabby", 1], "dog": "hound", "owl": 3}
    joined = wide.softmax(1)
    expected = torch.stack([joined[:, :2].sum(1), joined[:, 2], joined[:, 3]], 1)
    for values in (wide, joined):
        path = file(tmp_path, names, values, position=range(5), label=WORDS)
        for data in (dataset(), None):
            found = read_predictions(path, data=data, class_map=mapping)
            assert found.classes == CLASSES
            torch.testing.assert_close(found.predictions.logits.softmax(1), expected)
    order = read_predictions(
        file(tmp_path, ["a", "b", "c"], LOGITS, position=range(5)), data=dataset(), class_map="order"
    )
    assert torch.equal(order.predictions.logits, LOGITS)


def test_a_class_map_translates_predictions(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", ["prediction"], [["tabby"], ["hound"], ["owl"], ["tabby"], ["7"]])
    found = read_predictions(path, data=dataset(), class_map={"cat": ["tabby", 7], "dog": "hound", "owl": 3})
    assert found.predictions.correct.tolist() == [True, True, True, False, True]
    with pytest.raises(HoldfastError, match="line 2: unknown prediction 'tabby'"):
        read_predictions(path, data=dataset())


def test_a_number_that_is_missing_elsewhere_does_no_harm(tmp_path: Path) -> None:
    light = [200.0, "", "dark", 20, 10]
    found = read_predictions(file(tmp_path, CLASSES, LOGITS, label=WORDS, brightness=light))
    assert torch.equal(found.predictions.logits, LOGITS)


def test_a_number_beside_probabilities_takes_no_class_away(tmp_path: Path) -> None:
    """No row is labelled owl, and owl is answered all the same."""
    labels = ["cat", "dog", "dog", "dog", "cat"]
    plain = read_predictions(file(tmp_path, CLASSES, PROBABILITIES, label=labels))
    aged = read_predictions(file(tmp_path, CLASSES, PROBABILITIES, label=labels, age=[31, 32, 33, 34, 35]))
    assert aged.classes == plain.classes == CLASSES
    assert torch.equal(aged.predictions.logits, plain.predictions.logits)


def test_labels_may_be_spelled_as_freely_as_columns(tmp_path: Path) -> None:
    plain = read_predictions(file(tmp_path, CLASSES, LOGITS, label=WORDS))
    loud = read_predictions(file(tmp_path, CLASSES, LOGITS, label=[word.upper() for word in WORDS]))
    assert torch.equal(loud.predictions.labels, plain.predictions.labels)
    assert loud.classes == plain.classes
