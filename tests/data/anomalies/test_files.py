"""Sets with anomalies are read back, and never unpickled further than arrays."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.data import ArraySplit, load
from holdfast.data.anomalies import SETS, AnomalySet, read_anomalies, save_anomalies
from holdfast.data.unlabelled_images import few_labels
from holdfast.errors import HoldfastError


def test_saved_and_read_back(made: AnomalySet, tmp_path: Path) -> None:
    path = save_anomalies(made, tmp_path)
    again = read_anomalies(path)
    assert again.classes == made.classes
    assert again.kinds == made.kinds
    for a, b in zip((again.labeled, *again.sets), (made.labeled, *made.sets), strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.groups, b.groups)
    assert torch.equal(again.unlabeled.images, made.unlabeled.images)
    assert '"seed": 0' in (tmp_path / "manifest.json").read_text()


def nested(made: AnomalySet) -> dict[str, Any]:
    def part(split: Any, width: int) -> dict[str, Any]:
        return {"data": split.images[:, 0].numpy(), "labels": np.eye(width, dtype=np.float32)[split.labels.numpy()]}

    sets = {f"representative_set_{i + 1}": part(s, 6) for i, s in enumerate(made.sets)}
    return {"unlabeled_data": made.unlabeled.images[:, 0].numpy(), "labeled_data": part(made.labeled, 5), **sets}


@pytest.mark.parametrize("kind", ["npy", "npz", "protocol 2", "protocol 5"])
def test_the_reports_dictionary_is_read(made: AnomalySet, tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("set.npz" if kind == "npz" else "set.npy")
    if kind == "npz":
        np.savez(path, data=np.array(nested(made), dtype=object))
    elif kind == "npy":
        np.save(path, np.array(nested(made), dtype=object), allow_pickle=True)
    else:
        write_npy(path, np.array(nested(made), dtype=object), int(kind[-1]))
    again = read_anomalies(path)
    assert torch.equal(again.sets[1].images, made.sets[1].images)
    assert torch.equal(again.sets[1].labels, made.sets[1].labels)
    assert again.classes == ("0", "1", "2", "3", "4")


def write_npy(path: Path, value: Any, protocol: int) -> None:
    """An .npy of objects with a pickle of our choice."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    path.write_bytes(file.getvalue() + pickle.dumps(value, protocol=protocol))


class Trap:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_would_run_something_is_refused_before_it_does(tmp_path: Path, protocol: int) -> None:
    write_npy(tmp_path / "trap.npy", Trap(f"touch {tmp_path / 'ran'}"), protocol)
    with pytest.raises(HoldfastError, match=r"more than arrays \(posix.system\), which could run code"):
        read_anomalies(tmp_path / "trap.npy")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.f2py.os.system", "_codecs.decode"])
def test_no_other_name_can_be_reached(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    write_npy(tmp_path / "x.npy", 0, 2)
    head = (tmp_path / "x.npy").read_bytes()[: -len(pickle.dumps(0, protocol=2))]
    (tmp_path / "x.npy").write_bytes(head + f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(HoldfastError, match="more than arrays"):
        read_anomalies(tmp_path / "x.npy")


def test_a_damaged_pickle_reserves_no_memory(tmp_path: Path) -> None:
    """Its second object is stored as number 2³¹ − 1: Python would make room for as many, and fill it with zeros."""
    write_npy(tmp_path / "x.npy", 0, 2)
    head = (tmp_path / "x.npy").read_bytes()[: -len(pickle.dumps(0, protocol=2))]
    (tmp_path / "x.npy").write_bytes(head + b"\x80\x02]r\xff\xff\xff\x7f.")
    with pytest.raises(HoldfastError, match="a damaged pickle \\(object 2147483647 at byte"):
        read_anomalies(tmp_path / "x.npy")


class Rebuilt:
    """An array whose pickle says of itself what we like."""

    def __init__(self, *state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return (*np.zeros(0).__reduce__()[:2], (1, *self.state))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        # numpy's own reader takes the next three at their word, and reads memory that is not there.
        (Rebuilt((), np.dtype(object), False, []), "holds one array of Python objects, not the dictionary"),
        (Rebuilt((2**40,), np.dtype(object), False, [{}, {}]), "holds one array of Python objects, not the dictionary"),
        ({"unlabeled_data": Rebuilt((4, 4), np.dtype("u1"), False, b"123")}, "an array has not the bytes of its shape"),
        ({"unlabeled_data": Rebuilt((True, 3), np.dtype("u1"), False, b"123")}, "not the bytes of its shape"),
        ({"unlabeled_data": Rebuilt((-1, 3), np.dtype("u1"), False, b"")}, "not the bytes of its shape"),
        (np.zeros(2, "u1,u1"), "it holds an array of type 'V2', neither numbers nor text"),
        (np.zeros(2, "M8[s]"), "it holds an array of type 'M8', neither numbers nor text"),
        ({3: 0, "a\n": 0}, r"has no unlabeled_data; it has: 3, a\\n$"),
        (
            dict.fromkeys(("unlabeled_data", *SETS), 0) | {"labeled_data": {"a\n": 0, 4: 0}},
            r"labeled_data has no data; it has: a\\n, 4$",
        ),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_damaged_array_in_a_pickle_is_refused(tmp_path: Path, value: Any, message: str, protocol: int) -> None:
    write_npy(tmp_path / "x.npy", value, protocol)
    with pytest.raises(HoldfastError, match=message):
        read_anomalies(tmp_path / "x.npy")


def test_a_key_of_thousands_of_digits_is_named_in_few_words(tmp_path: Path) -> None:
    write_npy(tmp_path / "x.npy", {10**5000: 0}, 2)
    with pytest.raises(HoldfastError, match="it has: an int with too many digits to show"):
        read_anomalies(tmp_path / "x.npy")


def test_arrays_of_any_layout_are_read_from_a_pickle(made: AnomalySet, tmp_path: Path) -> None:
    whole = nested(made)
    turned = {**whole, "unlabeled_data": np.asfortranarray(whole["unlabeled_data"])}
    wider = np.broadcast_to(whole["unlabeled_data"][..., None], (*whole["unlabeled_data"].shape, 1))
    moved = {**whole, "unlabeled_data": np.ascontiguousarray(wider.transpose(1, 3, 0, 2)).transpose(2, 0, 3, 1)}
    big = {**whole, "labeled_data": {**whole["labeled_data"], "labels": whole["labeled_data"]["labels"].astype(">f8")}}
    for changed in (turned, moved, big):
        for protocol in (0, 2, 5):
            write_npy(tmp_path / "x.npy", changed, protocol)
            again = read_anomalies(tmp_path / "x.npy")
            assert torch.equal(again.unlabeled.images, made.unlabeled.images)
            assert torch.equal(again.labeled.labels, made.labeled.labels)


def test_bad_files_are_refused(made: AnomalySet, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no such file"):
        read_anomalies(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"nonsense")
    with pytest.raises(HoldfastError, match="cannot read"):
        read_anomalies(tmp_path / "a.npy")
    whole = nested(made)
    for change, message in (
        ({"unlabeled_data": None}, "unlabeled_data must be an array, got NoneType"),
        ({"labeled_data": {"data": whole["labeled_data"]["data"]}}, "labeled_data has no labels; it has: data"),
        ({"labeled_data": {**whole["labeled_data"], "labels": np.zeros((20, 5))}}, "must be one-hot rows"),
        ({"representative_set_2": whole["labeled_data"]}, "6 wide; got shape .20, 5."),
    ):
        np.save(tmp_path / "b.npy", np.array({**whole, **change}, dtype=object), allow_pickle=True)
        with pytest.raises(HoldfastError, match=message):
            read_anomalies(tmp_path / "b.npy")
    del whole["representative_set_1"]
    np.save(tmp_path / "c.npy", np.array(whole, dtype=object), allow_pickle=True)
    with pytest.raises(HoldfastError, match="has no representative_set_1; it has: unlabeled_data"):
        read_anomalies(tmp_path / "c.npy")
    good = (tmp_path / "c.npy").read_bytes()
    (tmp_path / "d.npy").write_bytes(good[: len(good) // 2])
    with pytest.raises(HoldfastError, match="cannot read"):
        read_anomalies(tmp_path / "d.npy")


def test_a_classifier_trains_on_the_labelled_part_and_never_on_an_anomaly(made: AnomalySet, tmp_path: Path) -> None:
    path = save_anomalies(made, tmp_path)
    data = load(path)
    assert data.classes == made.classes
    assert isinstance(data.train, ArraySplit)
    assert torch.equal(data.train.images, made.labeled.images)
    assert data.unlabeled is not None
    assert len(data.unlabeled) == len(made.unlabeled)
    assert data.test is not None
    assert len(data.test) == sum(int((~made.anomalous(s)).sum()) for s in made.sets)
    assert int(data.test.labels.max()) < len(made.classes)
    few = few_labels(data, len(made.classes))
    assert few.unlabeled is data.unlabeled
    assert load(path, image_size=8).shape == (1, 8, 8)
