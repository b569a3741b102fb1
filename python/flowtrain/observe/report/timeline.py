"""What the ranks did in a few steps, from their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from flowtrain.events import ACTIVITY_OF, KINDS, MODULES, TRACKS
from flowtrain.observe.report.columns import Columns
from flowtrain.observe.report.groups import group_of
from flowtrain.observe.trace.records import counts, transfers
from flowtrain.observe.trace.run import TracedRank, TracedRun, read_traced
from flowtrain.schedule import unit_of
from flowtrain.steps import FIRST_EVALUATION

_SHOWN_TRACKS = [TRACKS.index("actions"), TRACKS.index("waits")]
_STEPS = 3
_MAX_SLICES = 1500
_MAX_OF_RANK = 60
# Shorter ones than this share of the window are invisible.
_MIN_SHARE = 1 / 4000


@dataclass(frozen=True, slots=True)
class Slice:
    """What a rank did for a while; times are in ms, from the start of the timeline."""

    rank: str
    start: float
    end: float
    group: str
    what: str


@dataclass(frozen=True, slots=True)
class Level:
    """Bytes of a rank's records in the pool, from a time in ms on."""

    rank: str
    at: float
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Some steps of a run."""

    steps: range
    ranks: list[str]
    slices: list[Slice]
    """In the order in which they are drawn: what encloses others comes first."""
    shortest_ms: float
    """Shorter events are left out."""
    levels: list[Level]


def typical_steps(run: TracedRun, timing: Columns) -> range:
    """Three consecutive steps whose events are kept, of typical duration.

    Those are taken whose time is closest to three times the median.
    """
    kept = run.steps[-1]
    if len(kept) <= _STEPS:
        return kept
    found = dict(zip(timing["step"].tolist(), timing.get("seconds", ()), strict=False))
    seconds = numpy.array([found.get(step, numpy.nan) for step in kept])
    if not numpy.isfinite(seconds).any():
        return kept[:_STEPS]
    sums = numpy.convolve(seconds, numpy.ones(_STEPS), "valid")
    aims = numpy.abs(sums - _STEPS * numpy.nanmedian(seconds))
    # The first steps of a run warm it up, and a checkpoint may follow the last.
    if len(aims) > 1:
        aims = aims[:-1]
    first = min(2, len(aims) - 1)
    aims = numpy.where(numpy.isfinite(aims), aims, numpy.inf)
    start = first + int(numpy.argmin(aims[first:]))
    return kept[start : start + _STEPS]


def read_timeline(folder: Path, steps: range) -> Timeline:
    """What each rank did in these steps, with their waits.

    Raises:
        ValueError: The events of these steps are not kept.
        EventsError: A file of events is damaged.
    """
    run = read_traced(folder, steps)
    attempt = max(run.windows)
    start, end = run.windows[attempt]
    slices = [each for rank in run.ranks for each in _slices(rank, attempt, start, end)]
    shortest = (end - start) / 1e6 * _MIN_SHARE
    most = max(_MAX_SLICES, _MAX_OF_RANK * len(run.ranks))
    while len(kept := [each for each in slices if each.end - each.start >= shortest]) > most:
        shortest *= 2
    return Timeline(
        steps=steps,
        ranks=[rank.label for rank in run.ranks],
        slices=kept,
        shortest_ms=shortest,
        levels=_levels(run, start, end),
    )


def _slices(rank: TracedRank, attempt: int, start: int, end: int) -> Sequence[Slice]:
    records = rank.records[rank.shown & numpy.isin(rank.records["track"], _SHOWN_TRACKS)]
    records = records[records["attempt"] == attempt]
    order = numpy.lexsort((-records["end_ns"].astype("i8"), records["start_ns"]))
    names = ("start_ns", "end_ns", "kind", "module", "wait", "step", "index")
    columns = (records[order][name].tolist() for name in names)
    # The time between actions, over which they are drawn, counts as other work in all sums.
    between = Slice(rank.label, 0.0, (end - start) / 1e6, group_of("other"), "between actions")
    return [between] + [
        Slice(
            rank.label,
            max(first - start, 0) / 1e6,
            (min(last, end) - start) / 1e6,
            group_of(ACTIVITY_OF[kind][wait != 0]),
            _what(KINDS[kind], MODULES[module], step, index),
        )
        for first, last, kind, module, wait, step, index in zip(*columns, strict=True)
    ]


def _what(kind: str, module: str, step: int, index: int) -> str:
    words = [kind, module]
    if index >= 0:
        words += [unit_of(kind), str(index)]
    if 0 <= step < FIRST_EVALUATION:
        words.append(f"of step {step}")
    return " ".join(filter(None, words))


def _levels(run: TracedRun, start: int, end: int) -> list[Level]:
    levels = []
    for counted in counts(run, transfers(run)):
        if counted.name != "records in the pool":
            continue
        # What was there before the window is a point at its start.
        inside = [(at, size) for at, size in counted.points if start <= at <= end]
        if not inside or inside[0][0] > start:
            levels.append(Level(counted.label, 0.0, 0))
        levels += [Level(counted.label, (at - start) / 1e6, size) for at, size in inside]
        levels.append(Level(counted.label, (end - start) / 1e6, levels[-1].bytes))
    return levels
