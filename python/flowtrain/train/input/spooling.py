"""Reads a stream into a spool, so that a kill at any moment neither loses nor repeats a record."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from flowtrain.data.errors import DataError
from flowtrain.data.records import SEGMENT_RECORDS, Place, Spool, Stream, segment_of
from flowtrain.train.state.atomic import write_text
from flowtrain.train.state.files import read_object

_STATE = "state.json"
# A call answers after so long, so that its timeout is one for a record.
_ANSWER_S = 0.5
# Minimum number of records that a resumed reader compares with the spool.
_COMPARED = 16
_WAY_OUT = "restore it and continue with --resume, or start another run"


class StreamReader:
    """Appends records of a stream to its spool. Only one process of a run has it.

    `state.json` says how many records of the spool count. What was written after it, when a process
    was killed, is removed and read again. It also has a place in the stream from which a resumed
    reader reads: it compares the records from there with those in the spool, and so detects a
    stream that changed, and a `state_dict` that leaves out records.

    Args:
        spec: Import path of the data set.
        folder: Folder of the spool.

    Raises:
        ConfigError, DataError: As `make_dataset`; or another process reads the stream of this run,
            or the files of the spool do not fit together.
        RunFileError: `state.json` is damaged.
    """

    def __init__(self, spec: str, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder, spec)
        weakref.finalize(self, self._lock.close)
        self._spool = Spool(spec, folder)
        self._records = 0
        # Places behind the end: from the older one, the next start reads again.
        self._older = self._newer = Place()
        self._use(self._recover())
        self._stream = Stream(spec, self._older)
        self._was_replayed = self._records == 0

    def read_until(self, sample: int, end: int) -> tuple[int, int]:
        """Read until the spool has `end` records, for at most half a second or one record.

        Args:
            sample: Number of records that the caller knows to be in the spool.
            end: Number of records that it needs.

        Returns:
            Number of records in the spool, and of the longest epoch that has ended.

        Raises:
            DataError: The stream cannot be read at record `sample`, it has changed, or the spool
                has fewer records than `sample`.
            OSError: The disk cannot be written.
        """
        if sample > self._records:
            raise DataError(
                f"{self._folder}: it has {self._records} records of the stream, and the checkpoint "
                f"continues at record {sample}; restore the folder and continue with --resume, or "
                "start another run"
            )
        deadline = time.monotonic() + _ANSWER_S
        if self._was_replayed or self._replay(deadline):
            self._append(sample, end, deadline)
        return self._records, self._stream.longest

    def _replay(self, deadline: float) -> bool:
        """Read the records after the place again; return whether all were read."""
        while (sample := self._stream.records) < self._records:
            line, spooled = next(self._stream), self._spool.text(sample)
            if spooled is not None and line != spooled:
                self._replay_epoch(sample)
            if time.monotonic() >= deadline:
                return False
        self._was_replayed = True
        return True

    def _replay_epoch(self, sample: int) -> None:
        """Read the epoch from its start, if a state was used until now.

        Raises:
            DataError: None was used, so that the stream has changed.
        """
        if self._older.state is None:
            raise DataError(
                f"{self._spool.where(sample)} is another record than before this run was resumed: "
                "the data set has changed, or each time it is read it has another order; restore "
                "it and continue with --resume, or start another run (a data set that shuffles "
                "must do so with a fixed seed, and by the epoch of set_epoch)"
            )
        self._older = self._older.epoch_start
        print(
            f"{self._spool.name}: the record after its load_state_dict is not record {sample}, so "
            "that its state_dict is incomplete (most leave out a shuffle buffer); reading epoch "
            f"{self._older.epoch} from its start",
            file=sys.stderr,
            flush=True,
        )
        self._stream = Stream(self._spec, self._older)

    def _append(self, sample: int, end: int, deadline: float) -> None:
        before = self._records
        while self._records < end and (self._records == before or time.monotonic() < deadline):
            try:
                line = next(self._stream)
            except DataError:
                # The records before it can be used.
                if self._records == sample:
                    raise
                break
            if self._records % SEGMENT_RECORDS == 0:
                self._flush()
                self._close()
                self._use(segment_of(self._folder, self._records).open("wb"))
            self._file.write(line)
            self._records += 1
        if self._records > before:
            self._save()

    def _use(self, file: BinaryIO) -> None:
        """Write to a file from now on."""
        self._file = file
        self._close = weakref.finalize(self, file.close)

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _save(self) -> None:
        """Make the records in the files count."""
        self._flush()
        if self._records - self._newer.records >= _COMPARED:
            self._older, self._newer = self._newer, self._stream.place()
        state = {
            "records": self._records,
            "bytes": self._file.tell(),
            "older": asdict(self._older),
            "newer": asdict(self._newer),
        }
        write_text(self._folder / _STATE, json.dumps(state) + "\n")

    def _recover(self) -> BinaryIO:
        """Cut the files to the records that count, and open the last one."""
        path, state = self._folder / _STATE, dict[str, Any]()
        if path.exists():
            keys = ("records", "bytes", "older", "newer")
            state = read_object(path, keys, way_out=_WAY_OUT)
            self._records = state["records"]
            self._older, self._newer = Place(**state["older"]), Place(**state["newer"])
        # A full file is still the last one until the next record is written.
        last = segment_of(self._folder, max(0, self._records - 1))
        size, counted = last.stat().st_size if last.exists() else 0, state.get("bytes", 0)
        if size < counted:
            raise DataError(f"{last}: it has {size} bytes, and {path} says {counted}; {_WAY_OUT}")
        file = last.open("r+b" if last.exists() else "wb")
        file.truncate(counted)
        file.seek(counted)
        return file


def _locked(folder: Path, spec: str) -> BinaryIO:
    """An open file that keeps other processes from writing the spool.

    Raises:
        DataError: Another process has it.
    """
    lock = folder.joinpath("lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise DataError(
            f"data.dataset={spec}: another process writes {folder}, of an earlier start that has "
            "not ended yet; start again with --resume once it has"
        ) from error
    return lock
