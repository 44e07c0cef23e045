"""Two ways to feed a device from a split, behind one interface: ``batches``, uint8, along an order of positions in the
split, beginning with batch number ``start``."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from holdfast.augment.basic import to_float
from holdfast.data.gpu_decoding import decoded, encoded
from holdfast.data.item_split import SMALL, ItemSplit
from holdfast.data.shard_files import Members
from holdfast.data.splits import ArraySplit, FileSplit, Split, WrappedSplit, all_images
from holdfast.errors import HoldfastError, require
from holdfast.machine import usable_cores
from holdfast.rng import evenly
from holdfast.signals import held_signals, leave_signals_to, starting_workers
from holdfast.types import Batch

PREFETCH = 2
"""Batches each worker keeps ready: what is in memory never exceeds workers × PREFETCH batches."""
A = TypeVar("A")
Read = Tensor | list[Tensor] | HoldfastError
"""What comes of a batch: images, what a GPU makes images of, or why there are none."""
Images = Tensor | Split
"""Images (N, C, H, W), uint8 or float in [0, 1], or a split of a data set."""


def active_ranks(rows: int, size: int) -> int:
    """How many ranks work on so many rows of a batch: each has two or none, since BatchNorm needs a variance."""
    return max(1, min(size, rows // 2))


def own_rows(rows: int, rank: int, size: int) -> slice:
    """The rows of a batch that are a rank's. One for which there are none is given two: it must keep step with others.

    >>> [list(range(7))[own_rows(7, rank, 2)] for rank in range(2)], list(range(3))[own_rows(3, 1, 2)]
    ([[0, 2, 4, 6], [1, 3, 5]], [0, 1])
    """
    active = active_ranks(rows, size)
    return slice(rank, None, active) if rank < active else slice(0, 2)


BATCH, PIXELS = 256, 2**18
"""Images per pass where no gradients are taken; on a CPU no more than so many pixels."""


def evaluation_batch(shape: Sequence[int], device: torch.device) -> int:
    """Images per pass where only predictions are made: 256, and on a CPU fewer of large images.

    A CPU gains nothing from more, and what a layer puts out should stay near the processor. shape: (C, H, W).

    >>> cpu = torch.device("cpu")
    >>> [evaluation_batch((3, side, side), cpu) for side in (32, 64, 224, 1000)]
    [256, 64, 4, 1]
    """
    if device.type != "cpu":
        return BATCH
    fits = max(1, PIXELS // max(1, shape[1] * shape[2]))
    return min(BATCH, 1 << (fits.bit_length() - 1))  # a power of two


class ResidentLoader:
    """All images on the device once, as uint8; a batch is a gather."""

    def __init__(self, split: Split, *, batch_size: int, device: torch.device) -> None:
        self.images = all_images(split).to(device)
        self.labels = split.labels.to(device)
        self.groups = split.groups.to(device)
        self.batch_size, self.device = batch_size, device

    def batches(self, order: Tensor, *, start: int = 0) -> Iterator[Batch]:
        order = order.to(self.device)
        for first in range(start * self.batch_size, len(order), self.batch_size):
            index = order[first : first + self.batch_size]
            yield Batch(index, self.images[index], self.labels[index], self.groups[index])


class StreamLoader:
    """Images decoded by worker processes while the device works; memory is bounded by the prefetch.

    Several iterations may run side by side: each takes a set of workers, which the next one finds ready. share: (rank,
    size); the images of a batch that are other ranks' are not decoded, but left black. on_device: workers only read
    JPEG files, and the device decodes them.
    """

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        device: torch.device,
        workers: int,
        share: tuple[int, int] = (0, 1),
        on_device: bool = False,
    ) -> None:
        self.split, self.batch_size, self.device, self.share = split, batch_size, device, share
        self.workers = min(workers, usable_cores())
        self.on_device = on_device and isinstance(split, FileSplit)
        self._idle: list[tuple[_Positions, DataLoader[Read]]] = []
        self._readers: list[DataLoader[Read]] = []
        weakref.finalize(self, end_workers, self._readers, os.getpid())

    def batches(self, order: Tensor, *, start: int = 0) -> Iterator[Batch]:
        firsts = range(start * self.batch_size, len(order), self.batch_size)
        indices = [order[first : first + self.batch_size] for first in firsts]
        positions, reader = self._idle.pop() if self._idle else self._make_reader()
        rows = [own_rows(len(index), *self.share) for index in indices]
        positions.batches = [index[own] for index, own in zip(indices, rows, strict=True)]
        owner, whole = os.getpid(), False
        try:
            with starting_workers():
                ready = iter(reader)
            for index, own, images in zip(indices, rows, _each_whole(ready), strict=True):
                if isinstance(images, HoldfastError):
                    raise images
                if isinstance(images, list):
                    images = self._decode(images, index[own])
                if len(images) < len(index):
                    images, decoded = images.new_zeros(len(index), *images.shape[1:]), images
                    images[own] = decoded
                labels, groups = self.split.labels[index], self.split.groups[index]
                yield Batch(index, images, labels, groups).to(self.device)
            whole = True
        finally:
            if whole:
                self._idle.append((positions, reader))
            else:  # whoever asked for the batches took only some: these workers hold others that nobody wants
                end_workers([reader], owner)
                self._readers.remove(reader)

    def _decode(self, items: list[Tensor], index: Tensor) -> Tensor:
        assert isinstance(self.split, FileSplit)
        try:
            return decoded(items, size=self.split.size, channels=self.split.channels, device=self.device)
        except RuntimeError:  # it does not say which file is damaged; the CPU does, or decodes it
            return self.split.read(index).to(self.device)

    def _make_reader(self) -> tuple[_Positions, DataLoader[Read]]:
        positions = _Positions()  # of the coming epoch; set anew before each so that workers live on
        reader: DataLoader[Read] = DataLoader(
            _Decoded(self.split, encoded=self.on_device),
            batch_size=None,  # a position of this sampler is a whole batch
            sampler=positions,
            num_workers=self.workers,
            worker_init_fn=partial(leave_signals_to, os.getpid()),
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH if self.workers else None,
            persistent_workers=self.workers > 0,
            generator=torch.Generator(),  # else every epoch would draw from the global one
        )
        self._readers.append(reader)
        return positions, reader


def end_workers(readers: list[DataLoader[Read]], owner: int) -> None:
    """End the workers of loaders that nobody uses any more, in the process that started them.

    torch does it when a loader is removed. Where that is the garbage collection's work, the queues by which workers
    are told have been closed before: torch then waits five seconds for each worker, and kills it.
    """
    for reader in readers if os.getpid() == owner else ():
        if (running := reader._iterator) is not None and hasattr(running, "_shutdown_workers"):
            running._shutdown_workers()


def _each_whole(items: Iterator[A]) -> Iterator[A]:
    """The same items; a signal that comes while one is taken from a worker acts when it is there."""
    while True:
        with held_signals():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


Loader = ResidentLoader | StreamLoader

WORKERS = 4
"""Worker processes where nobody says how many, and reading is worth some; no more than there are processors."""
SECONDS_PER_FILE, SECONDS_PER_BYTE = 6e-5, 1.5e-8
"""What decoding a file takes: 65 µs for a PNG of 16 pixels and 467 bytes, 0.34 ms for a JPEG of 224 pixels and 17 kB,
1.8 ms for one of 500 pixels and 77 kB, within a factor of two of what these say (benchmarks/read_folder.py)."""
START_SECONDS, SPAWN_SECONDS = 0.1, 3.0
"""What starting and ending workers takes: forked, and where each of them imports torch."""
MOST_SECONDS = 5.0
"""Seconds of decoding up to which files are decoded at once: nothing else is done meanwhile."""


@dataclass(frozen=True)
class Reading:
    """How a split is read. why: in words, for plans and records."""

    kind: Literal["resident", "stream"]
    workers: int
    why: str


def choose_reading(
    split: Split, *, kind: str = "auto", workers: int | None = None, passes: float = 1, decode: str = "cpu"
) -> Reading:
    """How to read a split: what is asked for, and otherwise the way that takes the least time.

    passes: how often every image is read, about. A folder that takes less time to decode than workers take to start
    and to read it so often is decoded once, into memory, if it fits (:data:`SMALL`).

    >>> images = ArraySplit(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4))
    >>> choose_reading(images).kind
    'resident'
    """
    stays = isinstance(split, ArraySplit) or (isinstance(split, ItemSplit) and split.small)
    if kind == "resident" or (kind == "auto" and stays):
        return Reading("resident", 0, "in memory")
    if workers is not None:
        return Reading("stream", workers, "as asked for")
    usual = min(WORKERS, usable_cores())
    cost = decoding_seconds(split)
    if kind == "stream" or decode != "cpu" or cost is None:
        return Reading("stream", usual, "read while they are needed")
    # To ask for the method would set it for good; the first of all is the default.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    start = START_SECONDS if method == "fork" else SPAWN_SECONDS
    shared, size = start + passes * cost / max(2, usual), len(split) * prod(split.shape)
    told = f"{len(split):,} files take about {cost:.2g} s to decode"
    if size <= SMALL and cost <= min(MOST_SECONDS, shared):
        return Reading("resident", 0, f"decoded once, into memory: {told}, and {size / 2**20:,.1f} MB")
    return Reading("stream", 0 if passes * cost <= shared else usual, told)


SAMPLED = 64
"""Files whose size stands for all."""


def decoding_seconds(split: Split) -> float | None:
    """About how long one process decodes all files of a split; None for what is not in files on this machine."""
    while isinstance(split, WrappedSplit):
        split = split.inner
    if not isinstance(split, FileSplit) or isinstance(split.paths, Members):
        return None
    shown = evenly(len(split), SAMPLED).tolist()
    try:
        sizes = [os.stat(split.paths[i]).st_size for i in shown]
    except OSError:
        return None  # whoever reads it says what is wrong
    return len(split) * (SECONDS_PER_FILE + SECONDS_PER_BYTE * sum(sizes) / max(1, len(sizes)))


def make_loader(
    split: Split,
    *,
    batch_size: int,
    device: torch.device,
    kind: str = "auto",
    workers: int | None = 0,
    share: tuple[int, int] = (0, 1),
    decode: str = "cpu",
    passes: float = 1,
) -> Loader:
    """The loader for a split: ``resident``, ``stream``, or ``auto`` (arrays stay, files stream unless there are few).

    workers: None leaves that open, see :func:`choose_reading`, as for passes. share: as in :class:`StreamLoader`.
    decode: cpu or gpu, where streamed JPEG files are decoded.
    """
    require(batch_size >= 1, f"batch_size must be >= 1, got {batch_size}")
    require(workers is None or workers >= 0, f"workers must be >= 0, got {workers}")
    reading = choose_reading(split, kind=kind, workers=workers, passes=passes, decode=decode)
    if reading.kind == "resident":
        return ResidentLoader(split, batch_size=batch_size, device=device)
    able = decode == "cpu" or device.type == "cuda"
    require(able, f"decode gpu needs a CUDA device, and the device is {device}; use --decode cpu")
    made: dict[str, Any] = {"batch_size": batch_size, "device": device, "workers": reading.workers, "share": share}
    return StreamLoader(split, **made, on_device=decode == "gpu")


def check_images(images: Images) -> None:
    """Refuse what is neither a tensor nor a split, such as an array of numpy's."""
    known = isinstance(images, Tensor) or isinstance(getattr(images, "labels", None), Tensor)
    given = f"a tensor or a split of a data set, got {type(images).__name__}"
    require(known, f"images must be {given}; torch.from_numpy takes arrays")


def float_batches(
    images: Images, device: torch.device, *, batch_size: int | None = None, workers: int | None = 0
) -> Iterator[Tensor]:
    """Checked float images in [0, 1] on a device, a batch at a time; files as :func:`choose_reading` says.

    batch_size: by default that of :func:`evaluation_batch`.
    """
    check_images(images)
    if batch_size is None:
        shape = images.shape[-3:] if isinstance(images, Tensor) else images.shape
        batch_size = evaluation_batch(shape, device) if len(shape) == 3 else BATCH
    first = 0
    if isinstance(images, Tensor):
        raw = (part.to(device) for part in torch.split(images, batch_size) if len(part))
    else:
        loader = make_loader(images, batch_size=batch_size, device=device, workers=workers)
        raw = (batch.x for batch in loader.batches(torch.arange(len(images))))
    for x in raw:
        shaped = f"images must be (N, C, H, W) with C 1 or 3, got {tuple(x.shape)}; add the axis of channels"
        require(x.ndim == 4 and x.shape[1] in (1, 3), shaped)
        if x.dtype != torch.uint8:
            require(x.is_floating_point(), f"images must be uint8 or float in [0, 1], got {x.dtype}; convert them")
            bad = ~torch.isfinite(x).flatten(1).all(1)
            if bad.any():
                at = first + int(bad.nonzero()[0])
                raise HoldfastError(f"image {at} has NaN or infinite pixels; repair or remove it")
            low, high = float(x.min()), float(x.max())
            require(low >= 0 and high <= 1, f"images have values from {low:g} to {high:g}; scale them to [0, 1]")
        yield to_float(x) if x.dtype == torch.uint8 else x.float()
        first += len(x)


class _Positions:
    """Positions of every batch of an epoch; Python's numbers are made of those of one batch at a time."""

    def __init__(self) -> None:
        self.batches: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (index.tolist() for index in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Decoded(Dataset[Read]):
    """Whole batches by position. An unreadable file comes back as its error: torch would bury the message."""

    def __init__(self, split: Split, *, encoded: bool = False) -> None:
        self.split, self.encoded = split, encoded

    def __getitem__(self, positions: list[int]) -> Read:
        try:
            if self.encoded and isinstance(self.split, FileSplit):
                return [encoded(self.split, i) for i in positions]
            return self.split.read(torch.tensor(positions))
        except HoldfastError as error:
            return error
