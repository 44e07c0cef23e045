"""Rows of tensors as Parquet: what was written comes back bit for bit, and only what is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.audits.shard_rows import growing_rows, read_rows, rows_about

pytest.importorskip("pyarrow")


def test_rows_come_back_as_they_were_in_their_groups(tmp_path: Path) -> None:
    drawn = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    columns = {
        "logits": drawn,
        "right": drawn[:, 0] > 0,
        "value": drawn[:, 1].double() / 3,
        "place": torch.arange(7) - 3,
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, 1, 2, 3]),
    }
    ids = torch.tensor([9, 4, 7, 1, 0, 2, 5])
    path = tmp_path / "deep" / "rows.parquet"
    with growing_rows(path, {"key": "ü", "blocks": [1, 2]}) as write:
        write(ids[:4], {name: values[:4] for name, values in columns.items()})
        assert not path.exists(), "it appears when it is whole"
        write(ids[4:], {name: values[4:] for name, values in columns.items()})
    assert rows_about(path) == {"key": "ü", "blocks": [1, 2]}
    groups = list(read_rows(path))
    assert [len(own) for own, _ in groups] == [4, 3], "memory holds a group at a time"
    assert torch.equal(torch.cat([own for own, _ in groups]), ids)
    for name, values in columns.items():
        found = torch.cat([rows[name] for _, rows in groups])
        assert found.dtype == values.dtype
        assert found.numpy().tobytes() == values.numpy().tobytes()


def test_other_programs_read_them(tmp_path: Path) -> None:
    from pyarrow import parquet

    with growing_rows(tmp_path / "r.parquet", {}) as write:
        write(torch.tensor([5, 6]), {"logits": torch.tensor([[0.5, 1.5], [2.5, 3.5]])})
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.to_pydict() == {"id": [5, 6], "logits": [[0.5, 1.5], [2.5, 3.5]]}


def test_what_is_not_whole_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"

    def broken() -> None:
        with growing_rows(path, {"key": 1}) as write:
            write(torch.arange(2), {"value": torch.arange(2)})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert list(tmp_path.iterdir()) == []
    assert rows_about(path) is None
    with growing_rows(path, {"key": 1}) as write:
        write(torch.arange(2), {"value": torch.arange(2)})
    whole = path.read_bytes()
    path.write_bytes(whole.replace(torch.arange(2).numpy().tobytes(), torch.tensor([0, 5]).numpy().tobytes()))
    assert rows_about(path) == {"key": 1}, "the file says what it did"
    with pytest.raises(OSError, match="CRC"):
        list(read_rows(path))
    path.write_bytes(whole[:-20])
    assert rows_about(path) is None
    path.write_bytes(b"not Parquet")
    assert rows_about(path) is None
