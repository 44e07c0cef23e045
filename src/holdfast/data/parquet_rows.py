"""Rows of tensors as Parquet: one row per sample, its id first. Open this to change how shards of an audit are kept.

A column of vectors, such as logits, is a list of fixed length, so no number is ever a Python object. Rows are written
and read a group at a time: memory holds one group beside what the caller keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import require
from holdfast.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

    Rows = Mapping[str, Tensor]

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
    import numpy as np
    import torch
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
