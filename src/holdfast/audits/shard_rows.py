"""Rows of tensors as Parquet, one row per sample, its id first; and how an audit finds again what its shards computed.
Open this to change how shards of an audit are kept.

A column of vectors, such as logits, is a list of fixed length, so no number is ever a Python object. Rows are written
and read a group at a time: memory holds one group beside what the caller keeps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

import holdfast
from holdfast.audits.sample_passes import Rows, SamplePass
from holdfast.audits.subject import PREDICTIONS, Subject
from holdfast.errors import require
from holdfast.files import replacing

ID: Final = "id"
ABOUT: Final = b"holdfast"
"""Under which key a file says what its rows are."""


@contextmanager
def growing_rows(path: Path, about: Mapping[str, Any]) -> Iterator[Callable[[Tensor, Rows], None]]:
    """Write rows group by group: yields the function that takes ids (N,) and columns (N,) or (N, D) on the CPU.

    The file appears when all rows are there. about: plain values that :func:`rows_about` gives back.
    """
    import pyarrow
    from pyarrow import parquet

    writer: parquet.ParquetWriter | None = None

    def write(ids: Tensor, columns: Rows) -> None:
        nonlocal writer
        arrays = {ID: pyarrow.array(ids.numpy())}
        for name, values in columns.items():
            require(values.ndim in (1, 2), f"rows of {name} must be numbers or vectors, got {tuple(values.shape)}")
            flat = pyarrow.array(values.contiguous().flatten().numpy())
            arrays[name] = flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        table = pyarrow.table(arrays).replace_schema_metadata({ABOUT: json.dumps(dict(about))})
        if writer is None:
            how: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
            writer = parquet.ParquetWriter(temporary, table.schema, **how)
        writer.write_table(table)

    with replacing(path) as temporary:
        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


def rows_about(path: Path) -> dict[str, Any] | None:
    """What a file says its rows are; None where it is missing, damaged or not one of ours."""
    import pyarrow
    from pyarrow import parquet

    try:
        found = (parquet.read_schema(path).metadata or {}).get(ABOUT)
        about = None if found is None else json.loads(found)
    except (OSError, ValueError, pyarrow.ArrowException):
        return None
    return about if isinstance(about, dict) else None


def read_rows(path: Path) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Ids and columns as they were written, a group at a time; an error where the file has been damaged since."""
    from pyarrow import parquet, types

    def tensor(column: Any) -> Tensor:
        values = column.combine_chunks()
        if not types.is_fixed_size_list(values.type):
            return torch.from_numpy(np.array(values.to_numpy(zero_copy_only=False)))
        flat = np.array(values.flatten().to_numpy(zero_copy_only=False))
        return torch.from_numpy(flat).view(len(values), values.type.list_size)

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            columns = {name: tensor(table.column(name)) for name in table.column_names}
            yield columns.pop(ID), columns


@dataclass(frozen=True)
class ShardRows:
    """Gives the rows of a pass of one model that all shards together have computed; None where some are missing.

    bases: what rows depend on beside the pass, for predictions and for all others. Every row is written into its place
    in one tensor per column, so memory holds that and one group of rows of a file.
    """

    folder: Path
    model: str
    shards: int
    bases: tuple[Mapping[str, Any], Mapping[str, Any]]

    def key(self, subject: Subject, one: SamplePass) -> str:
        order = one.positions.cpu().contiguous().numpy().tobytes()
        own = {"pass": one.name, "size": one.size, "about": dict(one.about), "batch_size": subject.batch_size}
        own["positions"] = hashlib.sha256(order).hexdigest()
        return hash_of([holdfast.__version__, dict(self.bases[one.name != PREDICTIONS]), own])

    def __call__(self, subject: Subject, one: SamplePass) -> dict[str, Tensor] | None:
        key, stage = self.key(subject, one), stage_of(one)
        found: dict[int, Path] = {}
        for shard in range(self.shards):
            path = self.folder / shard_name(stage, shard, self.shards) / self.model / f"{one.name}.parquet"
            about = rows_about(path)
            if about is not None and about.get("key") == key:
                found |= dict.fromkeys(about["blocks"], path)
        if not found or sorted(found) != list(range(one.blocks)):
            return None
        try:
            return _read_joined(one, found)
        except Exception:  # a damaged file, in whatever way; the rows are computed anew
            return None


def _read_joined(one: SamplePass, found: Mapping[int, Path]) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = {}
    for path in dict.fromkeys(found.values()):
        own = [block for block in sorted(found) if found[block] == path]
        places = torch.cat([torch.arange(b * one.size, b * one.size + len(one.of(b))) for b in own])
        first = 0
        for ids, columns in read_rows(path):
            at = places[first : first + len(ids)]
            require(torch.equal(ids, one.positions[at]), f"{path} holds other samples than it says")
            for name, values in columns.items():
                if name not in rows:
                    rows[name] = values.new_empty(len(one.positions), *values.shape[1:])
                rows[name][at] = values
            first += len(ids)
        require(first == len(places), f"{path} holds {first} rows instead of {len(places)}")
    return rows


def stage_of(one: SamplePass) -> str:
    return PREDICTIONS if one.name == PREDICTIONS else "checks"


def shard_name(stage: str, shard: int, shards: int) -> str:
    """
    >>> shard_name("checks", 0, 4)
    'checks-1-of-4'
    """
    return f"{stage}-{shard + 1}-of-{shards}"


def hash_of(values: Any) -> str:
    """SHA-256 of plain values, whatever the order of mappings."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
