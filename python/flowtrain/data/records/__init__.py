"""Records of data sets: one file per format, all behind `Records`."""

from __future__ import annotations

from flowtrain.data.records.base import FileState, Records, State, file_state
from flowtrain.data.records.dataset import FORMATS, SIZES, Dataset, index_for_forks
from flowtrain.data.records.imported import ImportedDataset
from flowtrain.data.records.json_array import JsonArrayFile
from flowtrain.data.records.jsonl import JsonlFile
from flowtrain.data.records.parquet import ParquetRecords
from flowtrain.data.records.saved import SavedDataset
from flowtrain.data.records.spool import SEGMENT_RECORDS, Spool, drop_before, segment_of
from flowtrain.data.records.stream import Place, Stream, is_stream, json_line

__all__ = [
    "FORMATS",
    "SEGMENT_RECORDS",
    "SIZES",
    "Dataset",
    "FileState",
    "ImportedDataset",
    "JsonArrayFile",
    "JsonlFile",
    "ParquetRecords",
    "Place",
    "Records",
    "SavedDataset",
    "Spool",
    "State",
    "Stream",
    "drop_before",
    "file_state",
    "index_for_forks",
    "is_stream",
    "json_line",
    "segment_of",
]
