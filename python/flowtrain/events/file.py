"""The file of a rank's events: fixed records, appended to a mapped file.

The number of records is stored last, so that SIGKILL loses none that was complete. Layout, little
endian: the header (`_HEAD`, and from byte 64 on JSON of at most `_JSON_BYTES`), and from byte
`_START` on records of 64 bytes (`RECORD`).
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from dataclasses import asdict, dataclass, field
from operator import add
from pathlib import Path
from typing import Any

import numpy

from flowtrain.events.codes import KINDS, MODULES, TRACKS, WAITS
from flowtrain_core import FlowTrainError

VERSION = 1
FOLDER, SUFFIX = "events", ".events"

RECORD = numpy.dtype(
    [
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),
        ("own_ns", "<u8"),
        ("cpu_ns", "<u8"),
        ("bytes", "<u8"),
        ("step", "<i8"),
        ("index", "<i4"),
        ("peer", "<i2"),
        ("attempt", "<u2"),
        ("track", "u1"),
        ("kind", "u1"),
        ("module", "u1"),
        ("wait", "u1"),
        ("last", "u1"),
        ("pad", "V3"),
    ]
)
"""An event. Times are of the monotonic clock, which the processes of a host share. `own_ns` is
without the events nested in it, and so is `cpu_ns`, in which the thread ran on a core. `step`,
`index` and `peer` are -1 where there is none."""
_CODES = {
    "track": len(TRACKS),
    "kind": len(KINDS),
    "module": len(MODULES),
    "wait": len(WAITS),
}
"""Fields that are codes, with the number of their values."""
_PACK = struct.Struct("<QQQQQqihHBBBBB3x")
_HEAD = struct.Struct("<8sIIQI")
_COUNT_AT = 16
_MAGIC = b"FTEVENTS"
_JSON_AT, _START = 64, 1 << 16
_JSON_BYTES = _START - _JSON_AT
_GROW_BYTES = 1 << 20
_MAX_ATTEMPTS = 16

assert RECORD.itemsize == _PACK.size == 64


Records = numpy.ndarray[Any, numpy.dtype[numpy.void]]
Sums = dict[tuple[int, int, int, int], tuple[int, int, int, int]]
"""Count of events, and sums of `own_ns`, `cpu_ns` and `bytes`, by attempt, track, kind and wait."""
_SUMMED_BY = ("attempt", "track", "kind", "wait")


class EventsError(FlowTrainError, ValueError):
    """A file of events cannot be read; the message names it and the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of a rank."""

    number: int
    """Number of the run's start, from 0; the same for all ranks that it has started."""
    pid: int
    clock_offset_ns: int
    """Unix time minus the time of events, when the attempt began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEvents:
    """The events of a rank."""

    label: str
    """Name of the rank, such as `encoder.0`."""
    attempts: list[Attempt]
    sums: Sums
    """Of the events that are no longer kept."""
    records: Records
    """Events in the order in which they ended, of dtype `RECORD`."""


def sum_of(records: Records, before: Sums) -> Sums:
    """Sums of events, and of those before them."""
    keys, places = numpy.unique(records[[*_SUMMED_BY]], return_inverse=True)
    found = dict(before)
    for place, key in enumerate(keys.tolist()):
        same = records[places == place]
        own = [len(same), *(int(same[name].sum()) for name in ("own_ns", "cpu_ns", "bytes"))]
        found[key] = tuple(map(add, own, found.get(key, (0, 0, 0, 0))))
    return found


@dataclass(slots=True)
class _Header:
    label: str
    attempts: list[Attempt] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)

    def to_bytes(self, count: int) -> bytes:
        attempts = self.attempts[-_MAX_ATTEMPTS:]
        sums = [item for item in self.sums.items() if item[0][0] >= attempts[0].number]
        text = json.dumps(
            {"label": self.label, "attempts": list(map(asdict, attempts)), "sums": sums}
        ).encode()
        assert len(text) <= _JSON_BYTES, len(text)
        head = _HEAD.pack(_MAGIC, VERSION, RECORD.itemsize, count, len(text))
        return (head.ljust(_JSON_AT, b"\0") + text).ljust(_START, b"\0")


def read_events(path: Path) -> RankEvents:
    """Read the file of a rank, also while the rank writes it.

    Raises:
        EventsError: It is no file of events, or of another version.
        OSError: It cannot be read.
    """
    # One open file, since the rank may put another one in its place in the meantime.
    with path.open("rb") as file:
        header, count = _read_header(path, file.read(_START))
        records = numpy.fromfile(file, RECORD, count)
    for name, known in _CODES.items():
        if (bad := numpy.flatnonzero(records[name] >= known)).size:
            raise EventsError(
                f"{path}: record {bad[0]} has {name} {records[name][bad[0]]}, and there are "
                f"{known}; read it with the FlowTrain that wrote it, or remove it if it is damaged"
            )
    return RankEvents(
        label=header.label, attempts=header.attempts, sums=header.sums, records=records
    )


def read_run(run: Path) -> list[RankEvents]:
    """The events of all ranks of a run, by their names; none if the run has written no events.

    Raises:
        EventsError: A file is damaged, or of another version.
    """
    return [read_events(path) for path in sorted(run.joinpath(FOLDER).glob(f"*{SUFFIX}"))]


def path_of(run: Path, label: str) -> Path:
    """The file of a rank."""
    return run / FOLDER / f"{label}{SUFFIX}"


def next_attempt(run: Path) -> int:
    """Number of the next start of a run."""
    numbers = [attempt.number for rank in read_run(run) for attempt in rank.attempts]
    return max(numbers, default=-1) + 1


def _read_header(path: Path, raw: bytes) -> tuple[_Header, int]:
    if len(raw) < _START or not raw.startswith(_MAGIC):
        raise EventsError(f"{path}: not a file of events; remove it")
    _, version, size, count, length = _HEAD.unpack_from(raw)
    if (version, size) != (VERSION, RECORD.itemsize):
        raise EventsError(
            f"{path}: version {version} with records of {size} bytes, and this is version "
            f"{VERSION} with {RECORD.itemsize}; read it with the FlowTrain that wrote it"
        )
    said = json.loads(raw[_JSON_AT : _JSON_AT + length])
    sums = {tuple(key): tuple(values) for key, values in said["sums"]}
    return _Header(said["label"], [Attempt(**each) for each in said["attempts"]], sums), count


class EventFile:
    """Appends the events of one attempt of a rank.

    Any thread may append. All events of at least the last `keep_steps` steps are kept, and sums of
    the others.

    Args:
        path: The file. Events of earlier attempts stay in it.
        label: Name of the rank.
        attempt: The attempt.
        keep_steps: Steps whose events are kept, at least 1.

    Raises:
        EventsError: The file holds something else.
        OSError: It cannot be written.
    """

    def __init__(self, path: Path, label: str, attempt: Attempt, *, keep_steps: int) -> None:
        self._path = path
        self._keep_steps = keep_steps
        self.attempt = attempt.number
        self._lock = threading.Lock()
        self._steps: list[int] = []
        self._fd = -1
        self._map = mmap.mmap(-1, 8)
        self._words = memoryview(self._map).cast("Q")
        path.parent.mkdir(parents=True, exist_ok=True)
        header, records = _Header(label), numpy.empty(0, RECORD)
        if path.exists():
            before = read_events(path)
            header = _Header(before.label, before.attempts, before.sums)
            records = before.records
        header.attempts.append(attempt)
        self._header = header
        self._write(records)

    def append(self, *values: int) -> None:
        """Append an event: the fields of `RECORD` but for `pad`, in their order."""
        with self._lock:
            if self._end + 64 > self._size:
                if not self._size:
                    return  # Closed; a reader has ended after the rank's last step.
                self._grow()
            _PACK.pack_into(self._map, self._end, *values)
            self._end += 64
            self._count += 1
            self._words[_COUNT_AT >> 3] = self._count

    def step_ended(self, now_ns: int) -> None:
        """Tell the end of a step; now and then, drop events that are too old."""
        self._steps.append(now_ns)
        if len(self._steps) > 2 * self._keep_steps:
            del self._steps[: -self._keep_steps - 1]
            with self._lock:
                self._drop_before(self._steps[0])

    def close(self) -> None:
        """Unmap the file, and cut it to its records."""
        with self._lock:
            self._unmap()
            os.ftruncate(self._fd, self._end)
            os.close(self._fd)
            self._size = 0

    def _drop_before(self, start_ns: int) -> None:
        """Keep sums alone of what ended before a time, in this attempt and in earlier ones."""
        raw = numpy.frombuffer(self._map, RECORD, self._count, _START)
        old = (raw["attempt"] != self.attempt) | (raw["end_ns"] <= start_ns)
        dropped, kept = raw[old].copy(), raw[~old].copy()
        del raw  # The map cannot be closed while an array refers to it.
        if not self._is_in_place():
            return
        self._header.sums = sum_of(dropped, self._header.sums)
        self._unmap()
        self._write(kept)

    def _write(self, records: Records) -> None:
        """Write the file anew, and map it."""
        part = self._path.with_suffix(".part")
        with part.open("w+b") as file:
            file.write(self._header.to_bytes(len(records)))
            file.write(records.tobytes())
            file.flush()
            part.replace(self._path)
            before, self._fd = self._fd, os.dup(file.fileno())
        if before >= 0:
            os.close(before)
        self._count = len(records)
        self._size = self._end = _START + records.nbytes
        self._grow()

    def _grow(self) -> None:
        self._unmap()
        try:
            # A full disk is an error here, and not a fault in the mapped memory later.
            os.posix_fallocate(self._fd, self._size, _GROW_BYTES)
            self._size += _GROW_BYTES
            self._map = mmap.mmap(self._fd, self._size)
            self._words = memoryview(self._map).cast("Q")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def _is_in_place(self) -> bool:
        """Whether the path still is this file: a later attempt has put another one there."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _unmap(self) -> None:
        self._words.release()
        self._map.close()
