"""Listing a set costs few bytes per image, and says the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from holdfast.data.listing import Row, Rows, list_files

COUNT = 20_000


def rows(count: int = COUNT) -> Iterator[Row]:
    return ((f"/somewhere/photos/{i % 7}/{i:08d}.jpg", "ab"[i % 2], "x" if i % 3 else "") for i in range(count))


def test_rows_are_what_was_added() -> None:
    made = Rows(rows(10))
    made.add([("/caf\udce9.png", "ü", "")])  # a name that is not UTF-8
    assert list(made) == [*rows(10), ("/caf\udce9.png", "ü", "")]
    assert made[-1] == ("/caf\udce9.png", "ü", "")
    assert made[2:4] == list(rows(4))[2:]
    assert len(made) == 11


def test_a_listing_takes_the_length_of_its_names_and_little_more() -> None:
    tracemalloc.start()
    data = list_files("set", {"train": Rows(rows())})
    peak = tracemalloc.get_traced_memory()[1] / COUNT
    tracemalloc.stop()
    assert (data.classes, data.group_names) == (("a", "b"), ("x",))
    assert (data.train.labels[1], data.train.groups[1], data.train.groups[3]) == (1, 0, -1)
    assert data.train.describe(3) == "/somewhere/photos/3/00000003.jpg"
    assert peak < 300, "as lists of tuples and strings it is 500, and stays twice as high"
