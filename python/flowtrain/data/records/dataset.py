"""Samples of a run: the records of one data set, or of several side by side."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from flowtrain.config.data import DataConfig
from flowtrain.config.sources import SourceConfig
from flowtrain.data.errors import DataError
from flowtrain.data.records.base import Records, State, check_exists
from flowtrain.data.records.imported import ImportedDataset, is_iterable_only
from flowtrain.data.records.json_array import JsonArrayFile
from flowtrain.data.records.jsonl import JsonlFile
from flowtrain.data.records.parquet import ParquetRecords, share_groups
from flowtrain.data.records.saved import SavedDataset
from flowtrain.data.records.spool import Spool
from flowtrain.data.records.stream import STREAM, DirectStream, is_stream

FORMATS: dict[str, Callable[[Path, State | None], Records]] = {
    ".jsonl": JsonlFile,
    ".ndjson": JsonlFile,
    ".json": JsonArrayFile,
    ".parquet": ParquetRecords,
}
"""Format of a file by its suffix. A folder is a `SavedDataset`."""


SIZES = ".sizes"
"""Suffix of a file that has the sizes of the samples of a data set, and is none itself."""

_NO_DATA = (SIZES, f"{SIZES}.part")

_HASHED_BYTES = 4 << 30


class Dataset:
    """Records of all data sets of a run. Each thread or process opens its own.

    Sample numbers count from 0 through the data sets in the order in which they are configured.

    Args:
        data: Names the data sets.
        state: State that they must have; None takes their state now.
        spool: Folder with the records of a stream; without it a stream is read from its start.

    Raises:
        DataError: A data set is missing, empty, of no known format or in another state, the
            package that reads it is not installed, or a stream is one of several data sets.
        ConfigError: A function that returns a data set cannot be imported.
    """

    def __init__(
        self, data: DataConfig, state: State | None = None, spool: Path | None = None
    ) -> None:
        self.name = data.name
        self.names = [source.name for source in data.all_sources]
        """Path, pattern or import path of each data set."""
        files = [_files(source) for source in data.all_sources]
        each = list(chain(*files))
        states = [None] * len(each) if state is None else json.loads(state)
        if len(states) != len(each):
            raise DataError(
                f"{data.name}: {len(each)} files, but {len(states)} when the run started; restore "
                "them and continue with --resume, or start another run"
            )
        self.parts = [_open(*pair, spool) for pair in zip(each, states, strict=True)]
        """Records of each file."""
        self._bounds = list(accumulate(map(len, files), initial=0))
        self._ends = list(accumulate(map(len, self.parts)))
        self._roots = [source.root for source in each]
        self.sizes = [sum(map(len, parts)) for parts in self._of_sources()]
        """Samples of each data set."""
        if self.is_stream:
            _check_alone(data)
        share_groups([part for part in self.parts if isinstance(part, ParquetRecords)])

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def state(self) -> State:
        """State of the data sets together."""
        return json.dumps([part.state for part in self.parts])

    @property
    def is_stream(self) -> bool:
        """Whether the samples are a stream: they have no known number, and only one order."""
        return is_stream(self.state)

    def record(self, sample: int) -> dict[str, Any]:
        """The record of a sample, as `Records.record`.

        Raises:
            DataError: As `Records.record`.
        """
        check_exists(self.name, sample, len(self))
        number, place = self._find(sample)
        return self.parts[number].record(place)

    def where(self, sample: int) -> str:
        """Data set and place of a sample, for error messages."""
        number, place = self._find(sample)
        return self.parts[number].where(place)

    def line(self, sample: int) -> int | None:
        """Line of a sample in its file, from 1; None in a format without lines."""
        number, place = self._find(sample)
        return self.parts[number].line(place)

    def root(self, sample: int) -> Path | None:
        """Folder that relative image paths of a sample start from; None if there is none."""
        return self._roots[self._find(sample)[0]]

    def contents(self) -> list[str]:
        """Hash of the contents of each data set, as `Records.contents`.

        At most 4 GiB of each are read, in blocks spread over its files.

        Raises:
            DataError: A data set has changed since it was opened.
        """
        hashes = []
        for parts in self._of_sources():
            every = max(1, -(-sum(part.num_bytes for part in parts) // _HASHED_BYTES))
            hashes.append(_joined([part.contents(every=every) for part in parts]))
        return hashes

    def check_state(self) -> None:
        """Check that no data set has changed.

        Raises:
            DataError: A data set has changed.
        """
        for part in self.parts:
            part.check_state()

    def _of_sources(self) -> list[list[Records]]:
        """The files of each data set."""
        return [self.parts[start:end] for start, end in pairwise(self._bounds)]

    def _find(self, sample: int) -> tuple[int, int]:
        """File of a sample, and the number of the sample in it."""
        number = min(bisect_right(self._ends, sample), len(self.parts) - 1)
        return number, sample - (self._ends[number - 1] if number else 0)


def index_for_forks(data: DataConfig, state: State) -> None:
    """Find the records of text files, so that processes forked from this one need not.

    Other formats are opened by each process, as their libraries may start threads.

    Raises:
        DataError: As `Dataset`.
    """
    files = chain(*map(_files, data.all_sources))
    for source, its_state in zip(files, json.loads(state), strict=True):
        if source.path is not None and source.path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
            _open(source, its_state, None)


def _files(source: SourceConfig) -> list[SourceConfig]:
    """The source, or one for each file that its pattern names, in the order of their names.

    Raises:
        DataError: No file has such a name.
    """
    path = source.path
    if path is None or path.exists() or not set(path.name) & set("*?["):
        return [source]
    named = sorted(path.parent.glob(path.name))
    if not (found := [file for file in named if not file.name.endswith(_NO_DATA)]):
        raise DataError(
            f"{path}: no file has such a name; correct the pattern, of which *, ? and [] may stand "
            "only behind the last slash"
        )
    return [replace(source, path=file) for file in found]


def _check_alone(data: DataConfig) -> None:
    """Require that a stream is not mixed, as shares of what has no known length are undefined.

    Raises:
        DataError: There are other data sets, or the stream has a weight.
    """
    if len(data.sources) > 1 or data.all_sources[0].weight != 1:
        weights = ", ".join(f"{source.name} (weight {source.weight:g})" for source in data.sources)
        raise DataError(
            f"data.sources: {weights}: one of them is a stream, which has no known length and so "
            "no share of an epoch; give it alone and with weight 1, and mix streams in Python, "
            "such as with datasets.interleave_datasets"
        )


def _joined(contents: list[str]) -> str:
    """Hash of the contents of several files."""
    if len(contents) == 1:
        return contents[0]
    return hashlib.sha256("".join(contents).encode()).hexdigest()


def _open(source: SourceConfig, state: State | None, spool: Path | None) -> Records:
    if source.path is None:
        assert source.dataset is not None
        if state == STREAM and spool is not None:
            # Only the process that writes the spool creates the data set.
            return Spool(source.dataset, spool)
        if is_iterable_only(source.dataset):
            return DirectStream(source.dataset)
        return ImportedDataset(source.dataset, state)
    if source.path.is_dir():
        return SavedDataset(source.path, state)
    known = FORMATS.get(source.path.suffix.lower())
    if known is None and not source.path.exists():
        raise DataError(f"{source.path}: there is no such file or folder")
    if known is None:
        raise DataError(
            f"{source.path}: the suffix {source.path.suffix!r} names no known format; "
            f"it must be one of {', '.join(FORMATS)}, or a folder written by save_to_disk of "
            "datasets: rename or convert the file, or read it in Python with data.dataset"
        )
    return known(source.path, state)
