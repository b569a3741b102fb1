"""Records of data sets: one file per format, all behind `Records`."""

from __future__ import annotations

from flowtrain.data.records.base import FileState, Records, State, file_state
from flowtrain.data.records.dataset import FORMATS, Dataset, index_for_forks
from flowtrain.data.records.imported import ImportedDataset
from flowtrain.data.records.json_array import JsonArrayFile
from flowtrain.data.records.jsonl import JsonlFile
from flowtrain.data.records.parquet import ParquetRecords
from flowtrain.data.records.saved import SavedDataset

__all__ = [
    "FORMATS",
    "Dataset",
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
]
