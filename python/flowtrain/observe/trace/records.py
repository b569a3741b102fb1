"""Records in a trace: from which `put` to which `get`; and bytes: in the pool, and of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from flowtrain.events import KINDS, MEMORY, MODULES, TRACKS
from flowtrain.observe.trace.run import Event, TracedRun, Window, overlaps

_PUT, _GET = KINDS.index("put"), KINDS.index("get")
_ON_ACTIONS, _ON_MEMORY = TRACKS.index("actions"), TRACKS.index("memory")
_ENCODER, _BACKBONE = MODULES.index("encoder"), MODULES.index("backbone")
_OTHER = {_ENCODER: _BACKBONE, _BACKBONE: _ENCODER}

Key = tuple[int, int, int, int]
"""Attempt, step, module that puts, and item."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A record, from the rank that puts it to the one that gets it."""

    sender: str
    reader: str
    put: Event
    get: Event | None
    """None if it was not got."""


def transfers(run: TracedRun) -> list[Transfer]:
    """All records of a run whose `put` is kept."""
    puts: dict[Key, tuple[str, Event]] = {}
    gets: dict[Key, Event] = {}
    for rank in run.ranks:
        records = rank.records[rank.records["track"] == _ON_ACTIONS]
        for values in records[(records["kind"] == _PUT) | (records["kind"] == _GET)].tolist():
            event = Event(*values)
            if not event.module:
                continue  # A rank that waits for a slab, before it has an item.
            if event.kind == _PUT:
                puts[event.attempt, event.step, event.module, event.index] = rank.label, event
            else:
                gets[event.attempt, event.step, _OTHER[event.module], event.index] = event
    return [
        Transfer(sender, other_end(sender, put.module, put.peer), put, gets.get(key))
        for key, (sender, put) in puts.items()
    ]


def other_end(label: str, module: int, peer: int) -> str:
    """Name of the rank at the other end of a record.

    Args:
        label: Name of the rank that puts or gets it.
        module: Code of the module of this rank that does so.
        peer: Number of the other rank among those of the other module.
    """
    world = label.rpartition(".")[0]
    return f"{world if world == 'colocated' else MODULES[_OTHER[module]]}.{peer}"


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes over time, as (unix time in ns, bytes) whenever they change."""

    label: str
    name: str
    points: list[tuple[int, int]]


def counts(run: TracedRun, found: list[Transfer]) -> Iterator[Counts]:
    """For each rank, bytes of its records in the pool, and of those that it has not read yet.

    A record counts from the end of its `put` to the end of its `get`, in the attempt that put it.
    Records of a rank to itself do not cross the pool.
    """
    changes: dict[tuple[str, str], dict[int, list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for transfer in found:
        if transfer.sender == transfer.reader:
            continue
        put, get = transfer.put, transfer.get
        for key in ((transfer.sender, "records in the pool"), (transfer.reader, "records to read")):
            points = changes[key][put.attempt]
            # Its reader may be done before the sender takes note that it is published.
            points.append((min(put.end_ns, get.end_ns if get else put.end_ns), put.bytes))
            if get is not None:
                points.append((get.end_ns, -put.bytes))
    last = max(run.windows)
    for (label, name), attempts in changes.items():
        points = []
        for attempt, window in sorted(run.windows.items()):
            points += _within(window, attempts.get(attempt, []))
            if attempt < last:  # The pool of a run that was killed has gone.
                points.append((window[1], 0))
        yield Counts(label, name, points)


def memory(run: TracedRun) -> Iterator[Counts]:
    """Memory of each rank at the ends of the steps that are shown, by kind."""
    for rank in run.ranks:
        own = rank.records[rank.shown & (rank.records["track"] == _ON_MEMORY)]
        for kind in MEMORY:
            found = own[own["kind"] == KINDS.index(kind)]
            if len(found):
                points = list(zip(found["end_ns"].tolist(), found["bytes"].tolist(), strict=True))
                yield Counts(rank.label, f"memory: {kind}", points)


def _within(window: Window, changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The sums of changes over a window."""
    total, sums = 0, {}
    for time_ns, change in sorted(changes):
        total += change
        sums[max(time_ns, window[0])] = total
    return [(time_ns, now) for time_ns, now in sums.items() if overlaps(window, time_ns, time_ns)]
