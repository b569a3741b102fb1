"""The part of a run that a trace shows: its ranks, on one clock, and the times of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy

from flowtrain.config.layout import RankLayout
from flowtrain.events import KINDS, TRACKS, RankEvents, read_run
from flowtrain.events.file import Records
from flowtrain.schedule import KINDS as ACTIONS
from flowtrain.steps import FIRST_EVALUATION

Window = tuple[int, int]
"""Start and end, as unix time in ns."""
Mask = numpy.ndarray[Any, numpy.dtype[numpy.bool_]]
_LOAD, _RUN = KINDS.index("load"), KINDS.index("run")
_ON_ACTIONS = TRACKS.index("actions")
# In the order in which a layout names them.
_MODULES = {
    world.name: len(world.modules)
    for layout in (RankLayout.colocated_on(1), RankLayout.decoupled(1, 1))
    for world in layout.worlds
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a rank, as its file has it, in unix time."""

    start_ns: int
    end_ns: int
    own_ns: int
    cpu_ns: int
    bytes: int
    step: int
    index: int
    peer: int
    attempt: int
    track: int
    kind: int
    module: int
    wait: int
    last: int
    pad: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRank:
    """A rank, in a trace."""

    label: str
    """Its name, such as `encoder.0`."""
    records: Records
    """All of its events that are kept, in unix time."""
    shown: Mask
    """Whether each of them is shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRun:
    """A run, in a trace."""

    folder: Path
    ranks: list[TracedRank]
    """In the order of its layout."""
    windows: dict[int, Window]
    """The time that is shown, by the number of the attempt; one without is not shown."""
    started_ns: int
    """Start of the first step that is shown."""
    steps: list[range]
    """Steps that are shown."""


def read_traced(folder: Path, steps: range | None) -> TracedRun:
    """The events of a run.

    Args:
        folder: Folder of the run.
        steps: Steps to show; None shows all that is kept.

    Raises:
        ValueError: It is no folder of a run, it has no events, or those of the steps are not kept.
        EventsError: A file of events is damaged.
    """
    if not folder.joinpath("config.yaml").is_file():
        raise ValueError(f"{folder}: no run has started there; give the folder of a run")
    ranks = [
        (rank.label, records)
        for rank in sorted(read_run(folder), key=lambda rank: place_of(rank.label))
        if len(records := _in_unix_time(rank))
    ]
    if not ranks:
        raise ValueError(
            f"{folder}: no events; its ranks have not begun to train, or an older FlowTrain has "
            "trained it: start it with this one"
        )
    everything = numpy.concatenate([records for _, records in ranks])
    kept = _kept(ranks)
    if steps is not None and (missing := _without(steps, kept)):
        raise ValueError(
            f"{folder}: no events of {_listed(missing)}; kept are those of {_listed(kept)} "
            f"(track.event_steps in {folder / 'config.yaml'} says how many)"
        )
    windows = _windows(everything, steps)
    shown = [] if steps is None else [steps]
    actions = everything[_of_steps(everything, steps)]
    if len(actions):
        first = actions["step"] == actions["step"].min()
        started = int(actions["start_ns"][first].min())
    else:
        started = min(start for start, _ in windows.values())
    return TracedRun(
        folder=folder,
        ranks=[
            TracedRank(label=label, records=records, shown=_shown(records, windows, steps))
            for label, records in ranks
        ],
        windows=windows,
        started_ns=started,
        steps=shown or kept,
    )


def overlaps(window: Window, start_ns: int, end_ns: int) -> bool:
    """Whether a span overlaps a window."""
    return start_ns <= window[1] and end_ns >= window[0]


def place_of(label: str) -> tuple[int, int]:
    """Place of a rank in the order of its layout."""
    world, _, number = label.rpartition(".")
    return list(_MODULES).index(world), int(number)


def _in_unix_time(rank: RankEvents) -> Records:
    """The records of a rank, without those of attempts whose clock is no longer known."""
    records = rank.records.copy()
    known = numpy.zeros(len(records), bool)
    for attempt in rank.attempts:
        own = records["attempt"] == attempt.number
        for name in ("start_ns", "end_ns"):
            records[name][own] += numpy.uint64(attempt.clock_offset_ns)
        known |= own
    return records[known]


def _of_steps(records: Records, steps: range | None = None) -> Mask:
    """Which records are actions of training steps, or of some of them."""
    step = records["step"]
    found: Mask = (records["track"] == _ON_ACTIONS) & (records["kind"] < len(ACTIONS))
    found &= (step >= 0) & (step < FIRST_EVALUATION)
    if steps is not None:
        found &= (step >= steps.start) & (step < steps.stop)
    return found


def _windows(records: Records, steps: range | None) -> dict[int, Window]:
    """The time of the steps in each attempt, over all ranks."""
    if steps is not None:
        records = records[_of_steps(records, steps)]
    windows = {}
    for attempt in numpy.unique(records["attempt"]).tolist():
        own = records[records["attempt"] == attempt]
        windows[attempt] = (int(own["start_ns"].min()), int(own["end_ns"].max()))
    return windows


def _shown(records: Records, windows: dict[int, Window], steps: range | None) -> Mask:
    shown = numpy.zeros(len(records), bool)
    for attempt, (start, end) in windows.items():
        own = records["attempt"] == attempt
        shown |= own & (records["start_ns"] <= end) & (records["end_ns"] >= start)
    if steps is not None:
        shown &= records["kind"] != _RUN  # It would make the time axis that of the whole run.
    return shown


def _kept(ranks: list[tuple[str, Records]]) -> list[range]:
    """The steps whose events are all kept: ranges in order, with gaps between them."""
    kept: set[int] = set()
    for attempt in {int(n) for _, records in ranks for n in numpy.unique(records["attempt"])}:
        whole: list[set[int]] = []
        for label, records in ranks:
            own = records[_of_steps(records) & (records["attempt"] == attempt)]
            # A step begins with one load for each module; of older steps, the end may be left.
            steps, reads = numpy.unique(own["step"][own["kind"] == _LOAD], return_counts=True)
            modules = _MODULES[label.rpartition(".")[0]]
            whole.append({int(n) for n in steps[reads >= modules]})
        whole = [steps for steps in whole if steps]
        if whole:
            kept |= set(range(max(map(min, whole)), max(map(max, whole)) + 1))
    return reduce(_with_step, sorted(kept), [])


def _with_step(ranges: list[range], step: int) -> list[range]:
    if ranges and ranges[-1].stop == step:
        return [*ranges[:-1], range(ranges[-1].start, step + 1)]
    return [*ranges, range(step, step + 1)]


def _without(steps: range, kept: list[range]) -> list[range]:
    """Which of these steps are not kept."""
    missing = [step for step in steps if not any(step in each for each in kept)]
    return reduce(_with_step, missing, [])


def _listed(ranges: list[range]) -> str:
    if not ranges:
        return "no step"
    texts = [
        f"{each.start}" if len(each) == 1 else f"{each.start} to {each.stop - 1}" for each in ranges
    ]
    return f"step{'s' * (texts != [str(ranges[0].start)])} {' and '.join(texts)}"
