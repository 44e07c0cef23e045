"""Arrays of one's own: what can be meant by them is taken, and each mistake is told before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import audit, fit
from holdfast.data import ArraySplit, Dataset, load
from holdfast.errors import HoldfastError
from tests.conftest import make_data

N, H, W = 12, 5, 7
X = np.random.default_rng(0).integers(0, 256, (N, H, W, 3), dtype=np.uint8)
Y = np.arange(N) % 3
FIRST = torch.from_numpy(X.transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize(
    "images",
    [
        X,
        X.transpose(0, 3, 1, 2),
        X / 255,
        (X / 255).astype(np.float16),
        FIRST,
        FIRST / 255,
        torch.from_numpy(X),
        np.frombuffer(X.tobytes(), np.uint8).reshape(X.shape),
        (FIRST / 255).requires_grad_(),
        FIRST.double() / 255,
    ],
    ids=["last", "first", "float64", "float16", "tensor", "float tensor", "last tensor", "read-only", "grad", "double"],
)
def test_images_of_any_layout_and_type_are_the_same_images(images: Any) -> None:
    split = ArraySplit(images, Y)
    assert split.images.dtype == torch.uint8
    assert torch.equal(split.images, FIRST)
    assert split.shape == (3, H, W)


def test_grey_images_need_no_channel_axis() -> None:
    assert torch.equal(ArraySplit(X[..., 0], Y).images, FIRST[:, :1])


@pytest.mark.parametrize(
    "labels", [Y.astype(np.int32), Y.astype(np.uint8), Y.astype(float)[:, None], torch.from_numpy(Y).int(), Y.tolist()]
)
def test_whole_numbers_of_any_type_are_labels_and_groups(labels: Any) -> None:
    split = ArraySplit(X, labels, labels)
    for own in (split.labels, split.groups):
        assert own.dtype == torch.int64
        assert own.tolist() == Y.tolist()


def test_groups_and_labels_that_are_not_given_are_unknown() -> None:
    split = ArraySplit(X)
    assert split.labels.tolist() == split.groups.tolist() == [-1] * N


def test_a_tensor_of_images_is_taken_as_it_is_however_narrow() -> None:
    """Three pixels wide, they could be taken for channels: a part of a part would be turned at every cut."""
    images = torch.arange(2 * 1 * 3 * 3, dtype=torch.uint8).view(2, 1, 3, 3)
    split = ArraySplit(images, [0, 1])
    assert split.images is images
    assert torch.equal(split.subset(torch.tensor([1])).images, images[1:])
    assert len(split.subset(torch.tensor([], dtype=torch.int64))) == 0


def test_a_tensor_of_other_channels_can_be_trained_on_but_not_measured() -> None:
    many = torch.cat([FIRST, FIRST], 1)
    data = Dataset("bands", ("a", "b", "c"), train=ArraySplit(many, Y), test=ArraySplit(many / 255, Y))
    result = fit(data, epochs=1, device="cpu")
    with torch.no_grad():
        right = (result.model(many / 255).argmax(1).numpy() == Y).mean()
    assert result.history[-1]["test_accuracy"] == pytest.approx(right)
    with pytest.raises(HoldfastError, match="bands has images of 6 channels; an audit is of grey or colour images"):
        audit(result.model, data, device="cpu")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "floats to 255": ({"images": X.astype(float)}, r"images has floats from 0 to 255; scale them to \[0, 1\]"),
    "integers": ({"images": X.astype(np.int64)}, r"images is of type int64; give uint8"),
    "NaN": ({"images": np.full(X.shape, np.nan)}, r"images has 1260 values that are NaN or infinite"),
    "flat": ({"images": X.reshape(N, -1)}, r"images has shape \(12, 105\); images are \(N, H, W\)"),
    "two channels": ({"images": X[..., :2]}, r"images has shape \(12, 5, 7, 2\); .* with C 1 or 3"),
    "no pixel": ({"images": FIRST[:, :, :0]}, r"there is no pixel in it"),
    "ragged": ({"images": [[1, 2], [3]]}, r"images is not an array .*; give a numpy array or a tensor"),
    "none": ({"images": None}, r"images has shape \(\)"),
    "fewer labels": ({"labels": Y[:-1]}, r"there are 12 images and 11 labels; make them equal"),
    "more labels": ({"labels": np.tile(Y, 2)}, r"there are 12 images and 24 labels; make them equal"),
    "fewer groups": ({"groups": Y[:5]}, r"there are 12 images and 5 groups; make them equal"),
    "text": ({"labels": Y.astype(str)}, r"labels is of type <U\d+; give whole numbers"),
    "one-hot": ({"labels": np.eye(3)[Y]}, r"labels has shape \(12, 3\); .*argmax"),
    "fractions": ({"labels": Y + 0.5}, r"labels has 0.5 at position 0; give whole numbers"),
    "below -1": ({"groups": Y - 2}, r"groups has -2 at position 0; the least allowed is -1"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_in_arrays_are_told_with_value_and_remedy(case: str) -> None:
    changed, message = BAD[case]
    with pytest.raises(HoldfastError, match=message):
        ArraySplit(**{"images": X, "labels": Y, **changed})


def own(**changed: Any) -> Dataset:
    whole = {"name": "mine", "classes": ["a", "b", "c"], "train": ArraySplit(X, Y), "test": ArraySplit(X, Y)}
    return Dataset(**{**whole, **changed})


LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * H * W, 3))
LINEAR[1].weight.data.normal_(generator=torch.Generator().manual_seed(0))  # plainly logits: far outside [0, 1]
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "label without a class": (
        {"test": ArraySplit(X, Y + 5)}, "mine: label 5 at position 0 of the test split is out of range: there are 3"
    ),
    "unlabelled": ({"train": ArraySplit(X)}, "mine: label -1 at position 0 of the train split is out of range"),
    "other shape": (
        {"test": ArraySplit(X[:, :4], Y)}, r"of the test split are \(3, 4, 7\), .* train split \(3, 5, 7\); make"
    ),
    "number of classes": ({"classes": 3}, "mine: classes must be names such as .*, got 3"),
    "one word": ({"classes": "abc"}, "mine: classes must be names such as .*, got 'abc'"),
    "class twice": ({"classes": ("a", "b", "a")}, "mine: classes has 'a' more than once; give each a name of its own"),
    "a pair": ({"train": (X, Y)}, r"mine: train is a tuple; give a split: ArraySplit\(images, labels\)"),
    "too few group names": (
        {"train": ArraySplit(X, Y, Y), "group_names": ("x",)}, "mine: group 2 has no name; group_names has 1: add"
    ),
    "group as large as an id": (
        {"train": ArraySplit(X, Y, Y * 10**14)}, "mine: group 200000000000000 is more than 24 samples can need"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_a_set_whose_parts_do_not_go_together_is_neither_trained_on_nor_measured(case: str) -> None:
    changed, message = UNFIT[case]
    with pytest.raises(HoldfastError, match=message):
        fit(own(**changed), epochs=1, device="cpu")
    with pytest.raises(HoldfastError, match=message):
        audit(LINEAR, own(**changed), device="cpu")


def test_a_class_without_training_samples_can_be_measured_but_not_trained() -> None:
    data = own(train=ArraySplit(X[Y < 2], Y[Y < 2]))
    with pytest.raises(HoldfastError, match=r"mine: class 'c' \(label 2\) has no training sample"):
        fit(data, epochs=1, device="cpu")
    assert audit(LINEAR, data, checks=["accuracy"], device="cpu").findings[0].value is not None


def test_there_is_nothing_to_audit_without_a_test_split() -> None:
    with pytest.raises(HoldfastError, match=r"mine has no test split to audit on; give it one: Dataset\(.*test="):
        audit(LINEAR, own(test=None), device="cpu")


def test_groups_without_names_go_by_their_numbers() -> None:
    data = make_data(groups=2)
    result = fit(replace(data, group_names=()), epochs=1, device="cpu")
    assert result.data.group_names == ("0", "1")
    found = audit(result.model, replace(data, group_names=()), checks=["groups"], device="cpu")
    assert {f.where["group"] for f in found if "group" in f.where} == {"0", "1"}


def test_own_arrays_are_trained_on_and_measured_as_the_same_set_in_a_file(tmp_path: Any) -> None:
    np.savez(tmp_path / "set.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    results = [fit(data, epochs=2, device="cpu", workers=0) for data in (own(), load(tmp_path / "set.npz"))]
    first, second = (result.history[-1]["train_loss"] for result in results)
    assert first == second
    findings = audit(
        results[0].model, own(train=ArraySplit(X / 255, Y.astype(np.int32))), checks=["accuracy"], device="cpu"
    )
    with torch.no_grad():
        right = results[1].model(FIRST / 255).argmax(1).numpy() == Y
    assert next(f.value for f in findings if f.name == "accuracy") == pytest.approx(right.mean())


@pytest.mark.parametrize("call", [fit, load, lambda data: audit(LINEAR, data)])
@pytest.mark.parametrize("data", [X, 3, None], ids=type)
def test_what_is_no_set_is_named_with_a_way_that_works(call: Any, data: Any) -> None:
    ways = r"the train images have no labels; .*arrays \(images, labels\)|\(images, labels\) arrays, .* got (int|None)"
    with pytest.raises(HoldfastError, match=ways):
        call(data)


@pytest.mark.parametrize("value", ["x", [0.1], float("nan")])
def test_a_share_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(HoldfastError, match=r"conflict must be in \[0, 1\], got"):
        load("coloured-digits", conflict=value)
