from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flowtrain.data import DataError
from flowtrain.data.records import parquet
from flowtrain.data.records.parquet import ParquetRecords


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    arrow, module = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    module.write_table(arrow.Table.from_pylist(rows), path, **options)
    return path


def test_rows_of_all_groups_are_read_in_any_order_with_few_groups_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"messages": [{"role": "user", "content": str(n)}], "image": None} for n in range(10)]
    file = ParquetRecords(write(tmp_path / "a.parquet", rows, row_group_size=3))
    assert len(file) == 10
    monkeypatch.setattr(parquet, "_CACHE_BYTES", 2 * file._table(0, "").nbytes)
    for sample in (9, 0, 5, 3, 8, 1, 2, 4, 6, 7):
        assert file.record(sample) == rows[sample]
        assert len(file._decoded) <= 3


def test_a_row_group_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_MAX_GROUP_BYTES", 1000)
    path = write(tmp_path / "a.parquet", [{"a": os.urandom(100).hex()}] * 1)
    ParquetRecords(path)
    write(path, [{"a": os.urandom(100).hex()} for _ in range(20)])
    with pytest.raises(DataError, match=r"row group 0 has \d+ bytes, more than the 1000 .*=1000"):
        ParquetRecords(path)


def test_a_file_that_is_not_parquet_or_changes_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"a": 1}, {"a": 2}], row_group_size=1)
    file = ParquetRecords(path)
    assert file.record(0) == {"a": 1}
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"a\.parquet: the data changed during the run"):
        file.record(1)
    with pytest.raises(DataError, match=r"a\.parquet: not a Parquet file \("):
        ParquetRecords(path)


def test_without_pyarrow_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"read with pyarrow.*pip install pyarrow"):
        ParquetRecords(tmp_path / "a.parquet")
