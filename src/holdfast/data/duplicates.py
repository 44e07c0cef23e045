"""Exact and near duplicates among images. Open this file to change what counts as a near duplicate.

A near duplicate is found by a small normalised copy of each image (its *descriptor*), which brightness, contrast, size
and compression hardly change. Neighbours are searched in a tree over the leading principal components, which takes far
less time than all pairs, and their distance is then taken over the whole descriptor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]
from scipy.spatial import KDTree  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import interpolate

from holdfast.data.images import Array

HASH = 16
"""Bytes of a hash of pixels."""
SIDE = 16
"""Side of the copy that images are compared by."""
NEAR = 0.3
"""Largest distance of near duplicates between descriptors of length 1: the correlation is 1 - distance²/2."""
RATIO = 0.3
"""A near duplicate is also at most this far away, as a share of the distance to ordinary neighbours. In a set whose
images all look alike, such as centred garments, different images are closer than copies are elsewhere. Recompressed,
brightened and noisy copies of Fashion-MNIST and CIFAR-10 lie below 0.3 in 99 of 100 cases, the nearest different image
in 1 of 200 (``benchmarks/data_quality.py``)."""
SURE = 0.05
"""Below this distance the neighbourhood does not matter: all frames of a video may be near duplicates."""
REFERENCES, RANK = 2048, 3
"""Ordinary neighbours are the third nearest of so many images of the set."""
NEIGHBOURS = 8
"""Neighbours of each image that are compared; larger groups form through neighbours of neighbours."""
COMPONENTS = 24
FEW = 512
"""So few images are searched over the whole descriptor: components would take longer than they save."""
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
    """HASH bytes that are the same for the same pixels of the same shape alone."""
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=HASH)
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
    flat = small.reshape(len(small), math.prod(small.shape[1:])).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.where(norm >= FLATTEST * flat.shape[1] ** 0.5, flat / np.maximum(norm, 1e-6), 0)


def identities(hashes: Sequence[bytes] | Array) -> Array:
    """(N,) a number for each image, the same for the same hash, counted in the order in which they are first met.

    >>> identities([b"b", b"a", b"b"])
    array([0, 1, 0])
    """
    if not isinstance(hashes, np.ndarray):
        block = b"".join(own.ljust(HASH, b"\0") for own in hashes)
        hashes = np.frombuffer(block, np.uint8).reshape(-1, HASH)
    halves = np.ascontiguousarray(hashes).view(np.uint64)
    order = np.lexsort(halves.T)  # stable: of equal ones the first comes first
    changes = (np.diff(halves[order], axis=0, prepend=halves[order[:1]]) != 0).any(1)
    part = np.cumsum(changes)
    firsts = order[np.unique(part, return_index=True)[1]]
    found = np.empty(len(hashes), np.int64)
    found[order] = np.argsort(np.argsort(firsts))[part]
    return found


def find_duplicates(hashes: Sequence[bytes] | Array, small: Array, *, near: float = NEAR) -> list[DuplicateGroup]:
    """Groups of duplicates, the largest first.

    hashes: of the pixels of each image; also as uint8 (N, HASH). small: uint8 (N, C, SIDE, SIDE), copies of the images;
    not looked at where near is 0. near: the largest distance of near duplicates; 0 finds exact ones alone.

    >>> small = np.random.default_rng(0).integers(0, 256, (4, 1, SIDE, SIDE), dtype=np.uint8)
    >>> small[3] = small[0] // 2 + 30                                    # darker, with less contrast
    >>> find_duplicates([b"a", b"b", b"b", b"c"], small)[1]
    DuplicateGroup(members=(1, 2), exact=True, distance=0.0)
    >>> find_duplicates([b"a", b"b", b"b", b"c"], small)[0].members
    (0, 3)
    """
    identity = identities(hashes)
    first = np.unique(identity, return_index=True)[1]  # one image of each identity goes through the search
    left, right, distance = (np.empty(0, np.int64),) * 3
    if near > 0:
        looked = small if len(first) == len(small) else small[first]  # no copy of a large set without duplicates
        left, right, distance = near_pairs(looked, near=near)
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(len(first), len(first)))
    parts = connected_components(graph, directed=False)[1]
    longest = np.zeros(len(first))
    np.maximum.at(longest, parts[left], distance)
    part_of = parts[identity]
    order = np.argsort(part_of, kind="stable")
    order = order[np.bincount(part_of)[part_of[order]] > 1] if len(order) else order  # most images are alone
    cuts = np.flatnonzero(np.diff(part_of[order])) + 1
    groups = []
    for members in np.split(order, cuts) if len(order) else ():
        exact = len({int(identity[i]) for i in members}) == 1
        groups.append(DuplicateGroup(tuple(members.tolist()), exact, float(longest[part_of[members[0]]])))
    return sorted(groups, key=lambda group: (-len(group.members), group.members))


def near_pairs(small: Array, *, near: float = NEAR) -> tuple[Array, Array, Array]:
    """(i, j, distance) of near duplicates, each pair once with i < j. small: as for :func:`find_duplicates`."""
    kept = [np.flatnonzero(own.any(1)) + start for start, own in _chunks(small)]
    usable = np.concatenate(kept) if kept else np.empty(0, np.int64)
    if len(usable) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    small = small if len(usable) == len(small) else small[usable]
    n, k = len(small), min(NEIGHBOURS + 1, len(small))
    references = descriptors(small[_spread(n, REFERENCES)])
    limits = np.concatenate([_limit(own, references, near) for _, own in _chunks(small)])
    found = _neighbours(_project(small), limits, k)
    pairs, lengths = [], []
    for start, own in _chunks(small):
        limit = limits[start : start + len(own)]
        for column in range(k):
            others = found[start : start + len(own), column]
            rows = np.flatnonzero((others < n) & (others != np.arange(start, start + len(own))))
            distance = np.linalg.norm(own[rows] - descriptors(small[others[rows]]), axis=1)
            close = distance <= limit[rows]
            pairs.append(np.stack([rows[close] + start, others[rows[close]]]))
            lengths.append(distance[close])
    ends, index = np.unique(np.sort(np.concatenate(pairs, axis=1), axis=0), axis=1, return_index=True)
    return usable[ends[0]], usable[ends[1]], np.concatenate(lengths)[index]


def _neighbours(points: Array, limits: Array, k: int) -> Array:
    """(N, k) the nearest points to each within its limit, itself among them; N where there are fewer.

    A projection shortens distances, so that nothing within the limit is cut off by it. Points of like limits are asked
    for together: the tree takes one limit at a time, and the smaller it is, the less of the tree is searched.
    """
    tree, order = KDTree(points), np.argsort(limits, kind="stable")
    found = np.empty((len(points), k), np.int64)
    for chosen in np.array_split(order, max(1, len(points) // REFERENCES)):
        most = float(limits[chosen].max()) * (1 + 1e-6)
        found[chosen] = tree.query(points[chosen], k=k, distance_upper_bound=most)[1]
    return found


def _limit(own: Array, references: Array, near: float) -> Array:
    """How far a near duplicate of each image may be."""
    if len(references) <= RANK:
        return np.full(len(own), near)
    squared = 2 - 2 * own @ references.T
    ordinary = np.sqrt(np.maximum(np.partition(squared, RANK, axis=1)[:, RANK], 0))
    return np.minimum(near, np.maximum(SURE, RATIO * ordinary))


def _spread(n: int, most: int) -> Array:
    """At most so many positions, evenly over 0..n-1."""
    return np.unique(np.linspace(0, n - 1, min(most, n)).round().astype(np.int64))


def _chunks(small: Array) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(small), CHUNK):
        yield start, descriptors(small[start : start + CHUNK])


def _project(small: Array) -> Array:
    """(N, COMPONENTS) coordinates along orthonormal directions, those of most variance in a sample."""
    if len(small) <= FEW:
        return descriptors(small)
    sample = descriptors(small[_spread(len(small), SAMPLED)])
    directions = np.linalg.eigh(np.cov(sample, rowvar=False).astype(np.float64))[1][:, : -COMPONENTS - 1 : -1]
    return np.concatenate([own @ directions for _, own in _chunks(small)])
