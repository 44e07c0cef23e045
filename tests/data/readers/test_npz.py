"""Arrays come in many layouts; each means the same images, and each mistake is told with its remedy."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data import ArraySplit, Dataset, load
from holdfast.data.images import to_images
from holdfast.errors import HoldfastError

N, H, W = 12, 5, 7


def arrays(**changed: Any) -> dict[str, Any]:
    """Sound arrays of three classes, some replaced; None removes one."""
    draw = np.random.default_rng(0)
    whole = {
        "x_train": draw.integers(0, 256, (N, H, W, 3), dtype=np.uint8),
        "y_train": np.arange(N) % 3,
        "x_test": draw.integers(0, 256, (6, H, W, 3), dtype=np.uint8),
        "y_test": np.arange(6) % 3,
    } | changed
    return {key: value for key, value in whole.items() if value is not None}


def load_arrays(folder: Path, *, image_size: int | None = None, val: float = 0.0, **changed: Any) -> Dataset:
    path = folder / "set.npz"
    np.savez(path, **arrays(**changed))
    return load(path, image_size=image_size, val=val)


def images(data: Dataset) -> np.ndarray:
    assert isinstance(data.train, ArraySplit)
    return data.train.images.numpy()


def test_channels_last_and_channels_first_are_the_same_images(tmp_path: Path) -> None:
    x = arrays()["x_train"]
    x_test = arrays()["x_test"]
    last = load_arrays(tmp_path)
    first = load_arrays(tmp_path, x_train=x.transpose(0, 3, 1, 2), x_test=x_test.transpose(0, 3, 1, 2))
    assert last.shape == (3, H, W)
    assert np.array_equal(images(last), x.transpose(0, 3, 1, 2))
    assert np.array_equal(images(first), images(last))
    assert images(last).flags.c_contiguous


def test_grey_images_need_no_channel_axis(tmp_path: Path) -> None:
    x, x_test = arrays()["x_train"][..., 0], arrays()["x_test"][..., :1]
    data = load_arrays(tmp_path, x_train=x, x_test=x_test)
    assert data.shape == (1, H, W)
    assert np.array_equal(images(data), x[:, None])


def test_where_both_axes_could_be_channels_the_last_is() -> None:
    x = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    assert np.array_equal(to_images(x, "x"), x.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_are_rounded_to_the_nearest_of_256_levels(tmp_path: Path, kind: str) -> None:
    x = arrays()["x_train"]
    data = load_arrays(tmp_path, x_train=(x / 255).astype(kind))
    assert np.array_equal(images(data), x.transpose(0, 3, 1, 2))


def test_labels_may_stand_in_a_column_and_be_floats(tmp_path: Path) -> None:
    data = load_arrays(tmp_path, y_train=(np.arange(N) % 3).astype(float)[:, None])
    assert torch.equal(data.train.labels, torch.arange(N) % 3)


def test_groups_and_names_are_taken_over(tmp_path: Path) -> None:
    data = load_arrays(
        tmp_path,
        group_train=np.arange(N) % 2,
        group_test=np.full(6, -1),
        classes=np.array(["ant", "bee", "cow"]),
        group_names=np.array(["wood", "water"]),
    )
    assert data.classes == ("ant", "bee", "cow")
    assert data.group_names == ("wood", "water")
    assert torch.equal(data.train.groups, torch.arange(N) % 2)
    assert data.test is not None
    assert (data.test.groups == -1).all()


def test_without_names_numbers_serve(tmp_path: Path) -> None:
    data = load_arrays(tmp_path, group_train=np.arange(N) % 2)
    assert (data.classes, data.group_names) == (("0", "1", "2"), ("0", "1"))
    plain = load_arrays(tmp_path)
    assert plain.group_names == ()
    assert (plain.train.groups == -1).all()


def test_own_validation_split_is_kept_unless_a_share_is_asked_for(tmp_path: Path) -> None:
    own = {"x_val": arrays()["x_test"], "y_val": arrays()["y_test"]}
    kept = load_arrays(tmp_path, **own)
    assert kept.val is not None
    assert kept.notes == ()
    assert torch.equal(kept.val.read(torch.arange(6)), kept.test.read(torch.arange(6)))
    cut = load_arrays(tmp_path, val=0.5, **own)
    assert cut.val is not None
    assert (len(cut.train), len(cut.val)) == (6, 6)
    assert tuple(map(str, cut.notes)) == ("the set's own validation split (6 samples) is not used: val 0.5 was given",)


def test_without_a_test_split_some_training_samples_serve_and_a_note_says_so(tmp_path: Path) -> None:
    data = load_arrays(tmp_path, x_test=None, y_test=None)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (9, 3)
    assert any("no test split; 3 of 12 training samples" in note for note in map(str, data.notes))


def test_other_arrays_are_left_alone_and_noted(tmp_path: Path) -> None:
    data = load_arrays(tmp_path, extra=np.array([object()]))
    assert tuple(map(str, data.notes)) == (
        "arrays beyond images, labels and groups: extra; an audit takes them with --group",
    )


def test_image_size_resizes_as_pillow_does(tmp_path: Path) -> None:
    x = arrays()["x_train"]
    for side in (3, 5, 10):
        resized = images(load_arrays(tmp_path, image_size=side))
        square = x[:, :, 1:6]
        for got, own in zip(resized, square, strict=True):
            expected = np.asarray(Image.fromarray(own).resize((side, side), Image.Resampling.BILINEAR))
            assert np.abs(got.transpose(1, 2, 0).astype(int) - expected).max() <= 1


X, Y = arrays()["x_train"], arrays()["y_train"]
NAN = (X / 255).astype(np.float32)
NAN[4, 1, 2, 0] = np.nan
NAN[5, 0, 0, 0] = np.inf

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"y_train": None}, r"has no array y_train; it has: x_train, x_test, y_test"),
    "no images": ({"x_train": None, "y_train": None}, r"has no array x_train and no y_train; it has: x_test, y_test"),
    "names of its own": (
        {"x_train": None, "y_train": None, "x_test": None, "y_test": None, "pixels": X, "digits": Y},
        r"has no array x_train and no y_train; it has: pixels, digits\. Call images x_train",
    ),
    "half a test split": ({"y_test": None}, r"has no array y_test"),
    "groups of no split": ({"group_val": Y}, r"has no array x_val and no y_val"),
    "NaN": ({"x_train": NAN}, r"x_train has 2 values that are NaN or infinite, the first in image 4 .*\(0, 1, 2\)"),
    "floats to 255": ({"x_train": X.astype(float)}, r"x_train has floats from 0 to 255; scale them to \[0, 1\]"),
    "negative floats": ({"x_train": X / -255.0}, r"x_train has floats from -1 to -?0; scale"),
    "integers": ({"x_train": X.astype(np.int64)}, r"x_train is of type int64; give uint8"),
    "lengths": ({"y_train": Y[:-1]}, r"set.npz:train: there are 12 images and 11 labels; make"),
    "lengths of groups": ({"group_train": Y[:5]}, r"set.npz:train: there are 12 images and 5 groups; make"),
    "rank 2": ({"x_train": X.reshape(N, -1)}, r"x_train has shape \(12, 105\); images are \(N, H, W\)"),
    "two channels": ({"x_train": X[..., :2]}, r"x_train has shape \(12, 5, 7, 2\); .* with C 1 or 3"),
    "no image": ({"x_train": X[:0], "y_train": Y[:0]}, r"there is no pixel in it"),
    "no pixel": ({"x_train": X[:, :0]}, r"there is no pixel in it"),
    "other shape in test": ({"x_test": X[:6, :4]}, r"of the test split are \(3, 4, 7\), .* train split \(3, 5, 7\)"),
    "fractions": ({"y_train": Y + 0.5}, r"y_train has 0.5 at position 0; give whole numbers"),
    "NaN label": ({"y_train": np.where(Y == 2, np.nan, Y)}, r"y_train has nan at position 2"),
    "huge label": ({"y_train": np.where(Y == 2, 1e30, Y)}, r"y_train has 1e\+30 at position 2"),
    "text labels": ({"y_train": Y.astype(str)}, r"y_train is of type <U\d+; give whole numbers"),
    "one-hot": ({"y_train": np.eye(3)[Y]}, r"y_train has shape \(12, 3\); .*argmax"),
    "negative": ({"y_train": Y - 1}, r"y_train has -1 at position 0; the least allowed is 0"),
    "only in test": ({"y_test": np.array([0, 1, 2, 0, 1, 7])}, r"y_test has label 7, which y_train lacks"),
    "gap": ({"y_train": Y * 2, "y_test": Y[:6] * 2}, r"class 1 has no training sample, .* up to 4; number .* 0\.\.2"),
    "gap as wide as an id": (
        {"y_train": Y * 10**14, "y_test": Y[:6] * 10**14}, r"class 1 has no training sample"
    ),
    "more names than labels": (
        {"classes": np.array(["a", "b", "c", "d"])}, r"class 'd' \(label 3\) has no training sample"
    ),
    "label out of range": (
        {"classes": np.array(["a", "b"])}, r"label 2 at position 2 of the train split is out of range: there are 2"
    ),
    "one class": ({"y_train": Y * 0, "y_test": Y[:6] * 0}, r"at least two classes, found 1: 0"),
    "pickled labels": (
        {"y_train": Y.astype(object)}, r"y_train of .*set.npz holds Python objects, which are never unpickled"
    ),
    "pickled names": ({"classes": np.array(["a", None])}, r"classes of .*set.npz holds Python objects"),
    "numbers as names": ({"classes": np.arange(3)}, r"classes has shape \(3,\) and type int64; give .* text"),
    "names twice": ({"classes": np.array(["a", "b", "a"])}, r"classes has 'a' more than once; give each a name"),
    "group below -1": ({"group_train": Y - 2}, r"group_train has -2 at position 0; the least allowed is -1"),
    "group without a name": (
        {"group_train": Y, "group_names": np.array(["a", "b"])}, r"group 2 has no name; group_names has 2"
    ),
    "group as large as an id": ({"group_train": Y * 10**14}, r"group 200000000000000 is more than 18 samples can need"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_told_with_value_and_remedy(tmp_path: Path, case: str) -> None:
    changed, message = BAD[case]
    with pytest.raises(HoldfastError, match=message):
        load_arrays(tmp_path, **changed)


@pytest.mark.parametrize("content", [b"", b"not a zip archive", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_npz_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    with pytest.raises(HoldfastError, match=r"set.npz is not an .npz file, or is damaged"):
        load(path)


def test_a_damaged_npz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, **arrays())
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(HoldfastError, match=r"cannot read x_train of .*set.npz: .*; write the file again"):
        load(path)


def test_an_image_size_that_no_memory_holds_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.data.images.machine_memory", lambda: 2**30)
    with pytest.raises(HoldfastError, match=r"image_size 4096 makes 200 images 9 GiB, more than this machine"):
        load_arrays(tmp_path, image_size=4096, x_train=np.zeros((200, H, W, 3), np.uint8), y_train=np.arange(200) % 3)


@pytest.mark.parametrize("member", ["x_train", "x_train.npy", "y_train", "classes"])
def test_a_member_that_is_no_array(tmp_path: Path, member: str) -> None:
    """numpy hands out the bytes of such a member as they are."""
    name = member.removesuffix(".npy")
    np.savez(tmp_path / "set.npz", **arrays(**{name: None}))
    with zipfile.ZipFile(tmp_path / "set.npz", "a") as archive:
        archive.writestr(member, b"a note from a colleague")
    with pytest.raises(
        HoldfastError, match=f"cannot read {name} of .*set.npz: it is not an array; write the file again"
    ):
        load(tmp_path / "set.npz")
