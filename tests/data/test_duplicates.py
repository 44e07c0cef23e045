"""Near duplicates are found as by all pairs; what merely looks alike is not; time does not grow with all pairs."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from holdfast.data.duplicates import (
    HASH,
    RANK,
    RATIO,
    SIDE,
    SURE,
    descriptors,
    find_duplicates,
    identities,
    near_pairs,
    pixel_hash,
    small_copies,
    small_copy,
)
from holdfast.data.images import Array

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def photos() -> Array:
    """(60, 48, 48, 3) different parts of two photographs."""
    rng = np.random.default_rng(0)
    whole = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    places = [(whole[i % 2], *rng.integers(0, 370, 2)) for i in range(60)]
    return np.stack([image[y : y + 48, x + 100 : x + 148] for image, y, x in places])


def jpeg(pixels: Array, quality: int) -> Array:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def small_of(images: list[Array]) -> Array:
    return np.stack([small_copy(Image.fromarray(image)) for image in images])


@pytest.mark.parametrize("change", ["jpeg", "brighter", "larger", "noise"])
def test_a_changed_copy_is_found(photos: Array, change: str) -> None:
    rng = np.random.default_rng(1)
    changed = {
        "jpeg": lambda own: jpeg(own, 60),
        "brighter": lambda own: np.minimum(own * 1.1 + 5, 255).astype(np.uint8),
        "larger": lambda own: np.asarray(Image.fromarray(own).resize((97, 97), Image.Resampling.BICUBIC)),
        "noise": lambda own: np.clip(own + rng.normal(0, 3, own.shape), 0, 255).astype(np.uint8),
    }[change]
    images = [*photos, *(changed(own) for own in photos[:10])]
    hashes = [pixel_hash(image) for image in images]
    found = {frozenset(group.members) for group in find_duplicates(hashes, small_of(images))}
    planted = {frozenset((i, 60 + i)) for i in range(10)}
    assert len(found & planted) >= 9
    assert len(found - planted) <= 1


def test_identical_images_are_exact_and_need_no_near_search(photos: Array) -> None:
    images = [photos[0], photos[1], photos[0], photos[0]]
    groups = find_duplicates([pixel_hash(image) for image in images], small_of(images), near=0)
    assert [(group.members, group.exact, group.distance) for group in groups] == [((0, 2, 3), True, 0.0)]


def test_pairs_are_those_of_a_search_over_all_pairs() -> None:
    rng = np.random.default_rng(3)
    base = rng.integers(0, 256, (300, 1, SIDE, SIDE), dtype=np.uint8)
    copies = np.clip(base[:40] + rng.normal(0, 8, base[:40].shape), 0, 255).astype(np.uint8)
    small = np.concatenate([base, copies])
    own = descriptors(small).astype(np.float64)
    distance = np.sqrt(np.maximum(0, 2 - 2 * own @ own.T))
    ordinary = np.sort(distance, axis=1)[:, RANK]
    limit = np.minimum(0.3, np.maximum(SURE, RATIO * ordinary))
    close = (distance <= limit[:, None]) | (distance <= limit[None])
    expected = {(i, j) for i, j in np.argwhere(close).tolist() if i < j}
    left, right, length = near_pairs(small)
    assert set(zip(left.tolist(), right.tolist(), strict=True)) == expected
    assert len(expected) == 40
    assert np.allclose(length, distance[left, right], atol=1e-3)


def test_a_long_run_of_frames_is_one_group() -> None:
    """Every frame has more near duplicates than neighbours are compared."""
    scene = np.random.default_rng(0).integers(0, 200, (1, SIDE, SIDE))
    frames = np.stack([np.clip(scene + RNG.normal(0, 1, scene.shape), 0, 255) for _ in range(60)]).astype(np.uint8)
    others = RNG.integers(0, 256, (100, 1, SIDE, SIDE), dtype=np.uint8)
    groups = find_duplicates([bytes([i]) for i in range(160)], np.concatenate([frames, others]))
    assert [len(group.members) for group in groups] == [60]


def test_flat_images_are_compared_by_their_pixels_alone() -> None:
    flat = np.stack([np.full((1, SIDE, SIDE), level, np.uint8) for level in (10, 11, 200)])
    assert find_duplicates([b"a", b"b", b"c"], flat) == []
    assert len(find_duplicates([b"a", b"a", b"c"], flat)) == 1


def test_none_and_one_image() -> None:
    empty = np.empty((0, 1, SIDE, SIDE), np.uint8)
    assert find_duplicates([], empty) == []
    assert find_duplicates([b"a"], np.zeros((1, 3, SIDE, SIDE), np.uint8)) == []


def test_arrays_and_files_get_the_same_small_copy(photos: Array) -> None:
    of_arrays = small_copies(torch.from_numpy(photos[:4].transpose(0, 3, 1, 2).copy()))
    difference = of_arrays.astype(int) - small_of(list(photos[:4])).astype(int)
    assert np.abs(difference).max() <= 2  # Pillow rounds between its two passes


def test_the_hash_is_of_pixels_and_shape() -> None:
    a = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert pixel_hash(a) == pixel_hash(a.copy())
    assert pixel_hash(a) != pixel_hash(a.reshape(4, 3))


def test_identities_are_numbered_as_they_are_met() -> None:
    drawn = np.random.default_rng(0).integers(0, 30, 200)
    hashes = [pixel_hash(np.full((2, 2), own, np.uint8)) for own in drawn]
    number: dict[bytes, int] = {}
    expected = [number.setdefault(own, len(number)) for own in hashes]
    assert identities(hashes).tolist() == expected
    rows = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH)
    assert identities(rows).tolist() == expected
    assert identities([]).tolist() == []
