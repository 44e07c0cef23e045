"""Classes are matched by name, by the user's word, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.audits.alignment.classes import ClassMatch, match_classes, read_class_map
from holdfast.errors import HoldfastError
from holdfast.printable import printable

DATA = ("cat", "dog", "sea lion")


def match(model: Any, data: Any = DATA, **options: Any) -> ClassMatch:
    return match_classes(data, model, **{"outputs": len(model), **options})


def test_the_same_names_in_the_same_order() -> None:
    found = match(DATA)
    assert (found.kind, found.columns, found.moved) == ("full", ((0,), (1,), (2,)), False)


def test_a_permutation_is_undone() -> None:
    found = match(("sea lion", "cat", "dog"))
    assert (found.kind, found.columns, found.moved) == ("full", ((1,), (2,), (0,)), True)
    assert found.describe() == "cat = cat [1], dog = dog [2], sea lion = sea lion [0]"


@pytest.mark.parametrize("spelling", ["Sea_Lion", "sea-lion", " SEA  lion"])
def test_spelling_does_not_matter(spelling: str) -> None:
    assert match(("cat", "dog", spelling)).kind == "full"


def test_an_exact_name_beats_a_similar_one() -> None:
    assert match(("Cat", "cat", "dog", "sea lion")).columns[0] == (1,)


def test_aliases_match_and_ambiguous_ones_do_not() -> None:
    aliases = (("tabby", "cat"), ("hound", "dog"), ("Otaria",))
    found = match(("n1", "n2", "sea lion"), aliases=aliases)
    assert found.columns == ((0,), (1,), (2,))
    twins = match(("crane", "crane", "dog"), data=("crane", "dog"))  # ImageNet has two cranes
    assert twins.columns == ((), (2,))
    assert twins.missing == ("crane",)


def test_data_that_lack_a_class_renumber_nothing() -> None:
    """The model knows ten digits; the folder of the 3 is not there."""
    digits = tuple("0123456789")
    found = match(digits, data=tuple("012456789"))
    assert found.kind == "partial"
    assert found.columns[3] == (4,)  # the data's fourth class is the digit 4
    assert found.extra == (3,)
    assert found.names("all") == (*"012456789", "3")
    assert found.names("restricted") == tuple("012456789")
    assert found.selection("all")[-1] == (3,)


def test_an_empty_class_that_keeps_its_name_is_no_partial_match() -> None:
    assert match(tuple("0123456789"), data=tuple("0123456789")).kind == "full"


def test_classes_the_model_does_not_know() -> None:
    found = match(("dog", "horse"))
    assert (found.kind, found.missing, found.known, found.extra) == ("partial", ("cat", "sea lion"), (1,), (1,))
    assert found.names("all") == ("dog", "horse")


def test_no_name_in_common_is_refused() -> None:
    with pytest.raises(HoldfastError, match=r"none of the data's 3 classes \(cat, dog, sea lion\).*--class-map order"):
        match(("a", "b", "c"))
    with pytest.raises(HoldfastError, match="none of the data's") as caught:
        match(("a", "b"))
    assert "--class-map order" not in str(caught.value)
    with pytest.raises(HoldfastError, match="'cat' and 'CAT' both fit the model's 'Cat'"):
        match(("Cat", "dog"), data=("cat", "CAT"))


def test_outputs_without_names_are_taken_in_order_if_there_are_as_many() -> None:
    found = match_classes(DATA, None, outputs=3)
    assert (found.kind, found.columns) == ("order", ((0,), (1,), (2,)))
    with pytest.raises(HoldfastError, match="512 outputs per image .* the data has 3 classes .* features rather"):
        match_classes(DATA, None, outputs=512)
    with pytest.raises(HoldfastError, match="names 3 classes but gives 4 outputs"):
        match_classes(DATA, DATA, outputs=4)


def test_the_users_map_wins() -> None:
    found = match(("tabby", "siamese", "hound", "seal"), class_map={"cat": ["tabby", 1], "dog": 2, "sea lion": "seal"})
    assert (found.kind, found.columns) == ("full", ((0, 1), (2,), (3,)))
    assert found.pairs()[0] == ("cat", "tabby [0] + siamese [1]")
    assert match(("a", "b", "c"), class_map="order").kind == "order"
    assert match_classes(DATA, None, outputs=5, class_map={"dog": 4}).selection("restricted") == ((4,),)


@pytest.mark.parametrize(
    ("class_map", "message"),
    [
        ({"cta": 0}, "unknown class of the data in the class map 'cta'; did you mean 'cat'"),
        ({"cat": "tabbi"}, "unknown class of the model in the class map 'tabbi'; did you mean 'tabby'"),
        ({"cat": 9}, "names output 9; the model has 0 to 2"),
        ({"cat": 0, "dog": 0}, "uses output 0 more than once"),
        ({"cat": "twin"}, r"2 classes named 'twin'; give the number, one of \[1, 2\]"),
        ({}, "the class map is empty"),
        ("sorted", "must be a mapping or 'order', got 'sorted'"),
    ],
)
def test_maps_that_cannot_be_meant(class_map: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        match(("tabby", "twin", "twin"), class_map=class_map)
    with pytest.raises(HoldfastError, match="as many outputs as classes"):
        match(("a", "b"), class_map="order")


def test_a_map_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"cat": "tabby", "dog": 3, "bird": [1, "x"]}))
    assert read_class_map(path) == {"cat": "tabby", "dog": 3, "bird": [1, "x"]}
    for text, message in (('{"cat": ', "not valid JSON"), ('{"cat": {}}', "must be like"), ("[1]", "must be like")):
        path.write_text(text)
        with pytest.raises(HoldfastError, match=message):
            read_class_map(path)
    with pytest.raises(HoldfastError, match="No such file"):
        read_class_map(tmp_path / "none.json")


def test_names_with_control_characters_match_as_data_shows_them() -> None:
    """Data makes its names printable as it is read; a model's are what its author wrote."""
    raw = ("\x1b[31mred", "green\u202e", "blue")
    found = match_classes(tuple(map(printable, raw)), raw, outputs=3)
    assert (found.kind, found.columns) == ("full", ((0,), (1,), (2,)))
