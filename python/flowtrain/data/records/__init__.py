"""Records of data sets: one file per format, all behind `Records`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowtrain.config.schema import DataConfig
from flowtrain.data.errors import DataError
from flowtrain.data.records.base import FileState, Records, State, file_state
from flowtrain.data.records.imported import ImportedDataset
from flowtrain.data.records.json_array import JsonArrayFile
from flowtrain.data.records.jsonl import JsonlFile
from flowtrain.data.records.parquet import ParquetRecords
from flowtrain.data.records.saved import SavedDataset

__all__ = [
    "FORMATS",
    "FileState",
    "ImportedDataset",
    "JsonArrayFile",
    "JsonlFile",
    "ParquetRecords",
    "Records",
    "SavedDataset",
    "State",
    "file_state",
    "index_for_forks",
    "open_records",
]

FORMATS: dict[str, Callable[[Path, State | None], Records]] = {
    ".jsonl": JsonlFile,
    ".ndjson": JsonlFile,
    ".json": JsonArrayFile,
    ".parquet": ParquetRecords,
}
"""Format of a file by its suffix. A folder is a `SavedDataset`."""


def open_records(data: DataConfig, state: State | None = None) -> Records:
    """Open the data set of a run.

    Args:
        data: Names the data set.
        state: State that the data set must have; None takes its state now.

    Raises:
        DataError: The data set is missing, empty, of no known format or in another state, or the
            package that reads it is not installed.
        ConfigError: `data.dataset` cannot be imported.
    """
    if data.path is None:
        assert data.dataset is not None
        return ImportedDataset(data.dataset, state)
    if data.path.is_dir():
        return SavedDataset(data.path, state)
    known = FORMATS.get(data.path.suffix.lower())
    if known is None and not data.path.exists():
        raise DataError(f"data.path={data.path}: there is no such file or folder")
    if known is None:
        raise DataError(
            f"data.path={data.path}: the suffix {data.path.suffix!r} names no known format; "
            f"it must be one of {', '.join(FORMATS)}, or a folder written by save_to_disk of "
            "datasets: rename or convert the file, or read it in Python with data.dataset"
        )
    return known(data.path, state)


def index_for_forks(data: DataConfig, state: State) -> None:
    """Find the records of a text file, so that processes forked from this one need not.

    Other formats are opened by each process, as their libraries may start threads.

    Raises:
        DataError: As `open_records`.
    """
    if data.path is not None and data.path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        open_records(data, state)
