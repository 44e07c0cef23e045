"""Exact and near duplicates among images. Open this file to change what counts as a near duplicate.

A near duplicate is found by a small normalised copy of each image (its *descriptor*), which neither brightness, contrast,
size nor compression changes much. Neighbours are searched in a tree over the leading principal components: projections
never lengthen a distance, so that none within reach is lost to them, and the time stays far below that of all pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.data.images import Array

SIDE = 16
"""Side of the copy that images are compared by."""
NEAR = 0.2
"""Largest distance of near duplicates between descriptors of length 1: the correlation is 1 - distance²/2."""
RATIO = 0.5
"""A near duplicate is also at most this far away, as a share of the distance to the NEIGHBOURS-th neighbour: in a set
whose images all look alike, such as centred garments, different images are closer than copies are elsewhere."""
SURE = 0.03
"""Below this distance the neighbourhood does not matter: a video has many neighbours that are all near duplicates."""
NEIGHBOURS = 12
"""Neighbours of each image that are looked up; larger groups form through neighbours of neighbours."""
COMPONENTS = 24
SAMPLED = 4096
"""Images that the principal components are computed of."""
FLATTEST = 2.0
"""Standard deviation, in grey levels, below which an image is too flat to be compared by its structure."""
CHUNK = 8192


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that are duplicates of each other. members: positions, in order. exact: all have the same pixels.

    distance: the largest among the links that hold the group together; 0 where it is exact.
    """

    members: tuple[int, ...]
    exact: bool
    distance: float


def pixel_hash(pixels: Array) -> bytes:
    """16 bytes that are the same for the same pixels of the same shape alone."""
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def small_copy(image: Image.Image) -> Array:
    """An image as uint8 (C, SIDE, SIDE)."""
    pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def small_copies(images: Tensor) -> Array:
    """Images uint8 (N, C, H, W) as uint8 (N, C, SIDE, SIDE), as :func:`small_copy` makes them."""
    small = interpolate(images.float(), size=(SIDE, SIDE), mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).numpy()


def descriptors(small: Array) -> Array:
    """Unit vectors float32 (N, D) from small copies (N, C, SIDE, SIDE): mean and scale removed; flat images are 0."""
    flat = small.reshape(len(small), -1).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.where(norm >= FLATTEST * flat.shape[1] ** 0.5, flat / np.maximum(norm, 1e-6), 0)


def find_duplicates(hashes: Sequence[bytes], small: Array, *, near: float = NEAR) -> list[DuplicateGroup]:
    """Groups of duplicates, the largest first.

    hashes: of the pixels of each image. small: uint8 (N, C, SIDE, SIDE), copies of the images. near: the largest
    distance of near duplicates; 0 finds exact ones alone.

    >>> small = np.random.default_rng(0).integers(0, 256, (4, 1, SIDE, SIDE), dtype=np.uint8)
    >>> small[3] = small[0] // 2 + 30                                    # darker, with less contrast
    >>> find_duplicates([b"a", b"b", b"b", b"c"], small)[0]
    DuplicateGroup(members=(1, 2), exact=True, distance=0.0)
    >>> find_duplicates([b"a", b"b", b"b", b"c"], small)[1].members
    (0, 3)
    """
    number: dict[bytes, int] = {}
    identity = np.array([number.setdefault(own, len(number)) for own in hashes], dtype=np.int64)
    first = np.unique(identity, return_index=True)[1]  # one image of each identity goes through the search
    left, right, distance = near_pairs(small[first], near=near) if near > 0 else (np.empty(0, np.int64),) * 3
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(len(first), len(first)))
    parts = connected_components(graph, directed=False)[1]
    longest = np.zeros(len(first))
    np.maximum.at(longest, parts[left], distance)
    part_of = parts[identity]
    order = np.argsort(part_of, kind="stable")
    cuts = np.flatnonzero(np.diff(part_of[order])) + 1
    groups = []
    for members in np.split(order, cuts):
        if len(members) > 1:
            exact = len({int(identity[i]) for i in members}) == 1
            groups.append(DuplicateGroup(tuple(members.tolist()), exact, float(longest[part_of[members[0]]])))
    return sorted(groups, key=lambda group: (-len(group.members), group.members))


def near_pairs(small: Array, *, near: float = NEAR) -> tuple[Array, Array, Array]:
    """(i, j, distance) of near duplicates, each pair once with i < j. small: as for :func:`find_duplicates`."""
    n = len(small)
    usable = np.flatnonzero(np.concatenate([np.any(own != 0, axis=1) for _, own in _chunks(small)])) if n else []
    if len(usable) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    projected = _project(small[usable])
    # A ball that holds the near duplicates and, for the scale of the neighbourhood, further neighbours.
    k = min(NEIGHBOURS + 1, len(usable))
    found = KDTree(projected).query(projected, k=k)[1]
    pairs, lengths = [], []
    for start, own in _chunks(small[usable]):
        others = found[start : start + len(own)]
        distance = np.stack([np.linalg.norm(own - descriptors(small[usable[others[:, c]]]), axis=1) for c in range(k)])
        itself = others.T == np.arange(start, start + len(own))
        distance[itself] = 0
        scale = distance.max(0)
        limit = np.minimum(near, np.maximum(SURE, RATIO * scale if k > NEIGHBOURS else near))
        column, row = np.nonzero((distance <= limit) & ~itself)
        pairs.append(np.stack([row + start, others[row, column]]))
        lengths.append(distance[column, row])
    ends, length = np.sort(np.concatenate(pairs, axis=1), axis=0), np.concatenate(lengths)
    ends, index = np.unique(ends, axis=1, return_index=True)
    return usable[ends[0]], usable[ends[1]], length[index]


def _chunks(small: Array) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(small), CHUNK):
        yield start, descriptors(small[start : start + CHUNK])


def _project(small: Array) -> Array:
    """(N, COMPONENTS) coordinates along orthonormal directions, those of most variance in a sample."""
    sample = descriptors(small[np.linspace(0, len(small) - 1, min(SAMPLED, len(small))).astype(int)])
    directions = np.linalg.eigh(np.cov(sample, rowvar=False).astype(np.float64))[1][:, : -COMPONENTS - 1 : -1]
    return np.concatenate([own @ directions for _, own in _chunks(small)])
