"""A timeline of one or two runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

from flowtrain.events import ACTIVITY_OF, KINDS, MODULES, TRACKS, WAITS
from flowtrain.observe.trace.profiled import profiled
from flowtrain.observe.trace.records import counts, memory, transfers
from flowtrain.observe.trace.run import Event, TracedRank, TracedRun, overlaps, read_traced
from flowtrain.schedule import unit_of
from flowtrain.steps import FIRST_EVALUATION, step_name

_PLANNER, _WORKERS = TRACKS.index("planner"), TRACKS.index("workers")
_ON_ACTIONS, _MEMORY = TRACKS.index("actions"), TRACKS.index("memory")
# Times are in us, with fractions.
_US = 1000

Entry = dict[str, Any]


def write_trace(runs: Sequence[Path], out: Path, *, steps: range | None = None) -> str:
    """Write a timeline of runs in Chrome's trace format, which ui.perfetto.dev shows.

    Each rank is a process; its tracks are what its main thread does, its waits, its planner, its
    workers, and what torch's profiler has traced. Runs begin at the same time: that of their first
    step.

    Args:
        runs: Folders of the runs.
        out: File to write; compressed if its name ends with `.gz`.
        steps: Steps to show; None shows all whose events are kept.

    Returns:
        What was written, in a line.

    Raises:
        ValueError: A run has no events, or none of these steps; or a profile cannot be read.
        OSError: The file cannot be written.
    """
    traced = [read_traced(run, steps) for run in runs]
    written = 0
    with _writer(out) as file:
        encode = json.JSONEncoder(separators=(",", ":")).encode
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for entry in _entries(traced):
            file.write(f"{',' if written else ''}{encode(entry)}\n")
            written += 1
        file.write("]}\n")
    of_steps = "; ".join(
        ", ".join(f"{each.start}:{each.stop}" for each in run.steps) or "none" for run in traced
    )
    return f"{out}: steps {of_steps}, {written} entries; open it in https://ui.perfetto.dev"


@contextmanager
def _writer(out: Path) -> Iterator[IO[str]]:
    try:
        is_compressed = out.suffix == ".gz"
        with gzip.open(out, "wt", compresslevel=4) if is_compressed else out.open("w") as file:
            yield file
    except OSError as error:
        raise OSError(
            f"--out {out}: it cannot be written ({error.strerror or error}); name another file"
        ) from error


def _entries(runs: list[TracedRun]) -> Iterator[Entry]:
    """All entries of the timeline. Times are at least 0, as Perfetto expects."""
    zero = max(run.started_ns - _first_ns(run) for run in runs)
    pids, ids = count(1), count(1)
    for run, prefix in zip(runs, _prefixes(runs), strict=True):
        processes = {
            rank.label: _Process(next(pids), f"{prefix}{rank.label}", run.started_ns - zero)
            for rank in run.ranks
        }
        for rank in run.ranks:
            process = processes[rank.label]
            yield from process.named()
            yield from _slices(process, rank)
            yield from _profile(process, run, rank.label, ids)
        yield from _records(processes, run, ids)


def _prefixes(runs: list[TracedRun]) -> list[str]:
    """Prefix of the ranks of a run beside another one: the name of its folder, or its path."""
    if len(runs) == 1:
        return [""]
    names = [run.folder.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    return [f"{name} " for name in names]


def _first_ns(run: TracedRun) -> int:
    """Start of all that is shown of a run."""
    return min(
        int(rank.records["start_ns"][rank.shown].min()) for rank in run.ranks if rank.shown.any()
    )


class _Process:
    """The process of a rank, in a timeline: makes its entries.

    Args:
        pid: Its number, from 1.
        name: Its name.
        zero_ns: Unix time of the start of the timeline.
    """

    def __init__(self, pid: int, name: str, zero_ns: int) -> None:
        self._pid = pid
        self._name = name
        self._zero_ns = zero_ns
        self._tids: dict[str, int] = {}

    def named(self) -> Iterator[Entry]:
        yield self._meta("process_name", {"name": self._name})
        yield self._meta("process_sort_index", {"sort_index": self._pid})

    def track(self, name: str) -> Iterator[Entry]:
        """Entries that make a track of this name, if there is none yet."""
        if name in self._tids:
            return
        place = len(self._tids) + 1
        # Numbers of threads differ over all processes, and from those of processes.
        self._tids[name] = (self._pid << 16) + place
        yield self._meta("thread_name", {"name": name}, name)
        yield self._meta("thread_sort_index", {"sort_index": place}, name)

    def entry(self, phase: str, track: str, at_ns: int, **fields: Any) -> Entry:
        """An entry on a track, at a unix time."""
        place = {"ph": phase, "pid": self._pid, "tid": self._tids[track]}
        return {**fields, **place, "ts": self._us(at_ns)}

    def counter(self, name: str, at_ns: int, size: int) -> Entry:
        args = {"bytes": size}
        return {"ph": "C", "pid": self._pid, "ts": self._us(at_ns), "name": name, "args": args}

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._zero_ns) / _US

    def _meta(self, name: str, args: Entry, track: str | None = None) -> Entry:
        tid = {} if track is None else {"tid": self._tids[track]}
        return {"ph": "M", "pid": self._pid, **tid, "name": name, "args": args}


def _slices(process: _Process, rank: TracedRank) -> Iterator[Entry]:
    """One slice for each event; on a track, those that enclose others come first."""
    shown = rank.records[rank.shown & (rank.records["track"] != _MEMORY)]
    events = [Event(*values) for values in shown.tolist()]
    # Among equal starts, what ended later encloses the other; records are in the order of ends.
    events.reverse()
    events.sort(key=lambda event: (_track_order(event), event.start_ns, -event.end_ns))
    for event in events:
        track = _track_of(event)
        yield from process.track(track)
        yield process.entry(
            "X",
            track,
            event.start_ns,
            name=_name(event),
            cat=ACTIVITY_OF[event.kind][event.wait != 0],
            dur=(event.end_ns - event.start_ns) / _US,
            args=_args(event),
        )


def _track_order(event: Event) -> tuple[int, bool, int]:
    of_evaluation = event.track == _PLANNER and event.step >= FIRST_EVALUATION
    return event.track, of_evaluation, event.index if event.track == _WORKERS else 0


def _track_of(event: Event) -> str:
    if event.track == _WORKERS:
        return f"worker {event.index}"
    if event.track == _PLANNER and event.step >= FIRST_EVALUATION:
        return "planner of evaluations"  # A thread of its own.
    return TRACKS[event.track]


def _name(event: Event) -> str:
    kind = KINDS[event.kind]
    words: list[str] = [kind]
    if event.index >= 0 and event.track != _WORKERS:
        words += [unit_of(kind), str(event.index)]
    elif event.module:
        words.append(MODULES[event.module])
    name = " ".join(words)
    return f"{WAITS[event.wait]}: {name}" if event.wait else name


def _args(event: Event) -> Entry:
    args: Entry = {"attempt": event.attempt}
    if event.step >= 0:
        of_training = event.step < FIRST_EVALUATION
        args["step"] = event.step if of_training else step_name(event.step)
    if event.module:
        args["module"] = MODULES[event.module]
    if event.wait:
        args["wait"] = WAITS[event.wait]
    args |= {name: getattr(event, name) for name in ("index", "peer") if getattr(event, name) >= 0}
    if event.bytes:
        args["bytes"] = event.bytes
    if event.last:
        args["last"] = True
    return {**args, "own_us": event.own_ns / _US, "cpu_us": event.cpu_ns / _US}


def _records(processes: dict[str, _Process], run: TracedRun, ids: Iterator[int]) -> Iterator[Entry]:
    """An arrow for each record whose ends are shown, and counters of bytes."""
    found = transfers(run)
    for transfer in found:
        put, get = transfer.put, transfer.get
        window = run.windows.get(put.attempt)
        if get is None or window is None:
            continue
        if all(overlaps(window, each.start_ns, each.end_ns) for each in (put, get)):
            shared = {"name": "record", "cat": "record", "id": next(ids)}
            # A reader may have it before the sender's slice ends, but never before it starts. An
            # arrow belongs to the slice in which its end lies.
            track = TRACKS[_ON_ACTIONS]
            yield processes[transfer.sender].entry("s", track, put.start_ns, **shared)
            at_ns = max(get.start_ns, get.end_ns - 1)
            yield processes[transfer.reader].entry("f", track, at_ns, bp="e", **shared)
    for counted in chain(counts(run, found), memory(run)):
        if counted.label not in processes:  # A reader that has written no events.
            continue
        for at_ns, size in counted.points:
            yield processes[counted.label].counter(counted.name, at_ns, size)


def _profile(process: _Process, run: TracedRun, label: str, ids: Iterator[int]) -> Iterator[Entry]:
    """Events of the profiler in the time that is shown, on tracks of their own."""
    own_ids: dict[Any, int] = {}
    for at_ns, thread, event in profiled(run.folder, label):
        end_ns = at_ns + round(event.get("dur", 0) * _US)
        if not any(overlaps(window, at_ns, end_ns) for window in run.windows.values()):
            continue
        track = f"profiler: {thread}"
        yield from process.track(track)
        fields = {name: value for name, value in event.items() if name not in _PLACED}
        if "id" in fields:  # Those of another rank's profile may be the same.
            key = fields.get("cat"), fields["id"]
            fields["id"] = own_ids[key] = own_ids.get(key) or next(ids)
        yield process.entry(event["ph"], track, at_ns, **fields)


_PLACED = ("ph", "pid", "tid", "ts")
