"""Parquet files, read by row group."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowtrain.data.errors import DataError
from flowtrain.data.records.base import FileRecords, State

_CACHE_BYTES = 256 << 20
_MAX_GROUP_BYTES = 1 << 30


class ParquetRecords(FileRecords):
    """Records of a Parquet file: a row is a record, and a column is a field of it.

    A reader holds decoded row groups of up to 256 MiB together, and at least one; see
    `share_groups` for several files.

    Raises:
        DataError: pyarrow is not installed; the file is missing, no Parquet, without rows or no
            regular file; a row group has more than 1 GiB; or the file has another state.
    """

    def __init__(self, path: Path, state: State | None = None) -> None:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise DataError(
                f"{path}: Parquet files are read with pyarrow, which cannot be imported "
                f"({error}); install it: pip install pyarrow"
            ) from error
        super().__init__(path, state)
        try:
            self._parquet = parquet.ParquetFile(self._file)
        # Errors of Arrow derive from several built-in ones.
        except Exception as error:
            raise DataError(f"{path}: not a Parquet file ({error}); restore it") from error
        metadata = self._parquet.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        for number, group in enumerate(groups):
            if group.total_byte_size > _MAX_GROUP_BYTES:
                raise DataError(
                    f"{path}: row group {number} has {group.total_byte_size} bytes, more than the "
                    f"{_MAX_GROUP_BYTES} that a reader decodes at once; write the file with fewer "
                    "rows per group, such as pyarrow.parquet.write_table(..., row_group_size=1000)"
                )
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        if len(self) == 0:
            raise DataError(f"{path}: no samples; write one row per sample")
        self._decoded: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _read(self, sample: int) -> Any:
        self.check_state()
        group = int(np.searchsorted(self._ends, sample, side="right"))
        table = self._table(group, self.where(sample))
        self.check_state()
        return table.slice(sample - int(self._ends[group]) + table.num_rows, 1).to_pylist()[0]

    def _table(self, group: int, where: str) -> Any:
        """The rows of a group."""
        key = self.name, group
        if key in self._decoded:
            self._decoded.move_to_end(key)
            return self._decoded[key]
        while self._decoded and sum(t.nbytes for t in self._decoded.values()) >= _CACHE_BYTES:
            self._decoded.popitem(last=False)
        try:
            # Readers share the cores with the ranks.
            table = self._parquet.read_row_group(group, use_threads=False)
        except Exception as error:
            raise DataError(
                f"{where}: row group {group} cannot be read ({error}); restore the file"
            ) from error
        self._decoded[key] = table
        return table


def share_groups(files: Sequence[ParquetRecords]) -> None:
    """Let files with different names, read by one thread, hold so many groups together."""
    for file in files:
        file._decoded = files[0]._decoded
