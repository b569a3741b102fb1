"""Time of the ranks of a run by kind of activity, and their memory, from their events."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from flowtrain.events.codes import ACTIVITIES, ACTIVITY_OF, KINDS, MEMORY, TRACKS, MemoryKind
from flowtrain.events.file import RankEvents, Records, read_run, sum_of
from flowtrain.steps import FIRST_EVALUATION

_RUN, _FORGET = KINDS.index("run"), KINDS.index("forget")
_ACTIONS, _WAITS, _PLANNER, _MEMORY = map(TRACKS.index, ("actions", "waits", "planner", "memory"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Time of a rank in its steps, in the last attempt."""

    started_at: float
    """Unix time of the start of its first step; 0 if the attempt was killed."""
    seconds: dict[str, float]
    """By kind of activity; they sum to the time from the start of the first step to the end of the
    last one."""
    cpu_seconds: dict[str, float]
    """Of these, the time in which the rank's thread ran on a core."""
    planner_cpu_seconds: float
    """Time in which its planner, if it has one, ran on a core."""


def read_accounts(run: Path) -> dict[str, Account]:
    """Accounts of the ranks of the last attempt, by their names.

    Raises:
        EventsError: A file of events is damaged.
    """
    return {rank.label: _account(rank) for rank in _of_last_attempt(run)}


def read_shares(run: Path, *, steps: int) -> dict[str, dict[str, float]]:
    """Seconds by kind of activity, summed over the ranks of each world, in the last steps.

    Args:
        run: Folder of the run.
        steps: Number of steps.

    Raises:
        EventsError: A file of events is damaged.
    """
    worlds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for rank in _of_last_attempt(run):
        found = _of_attempt(rank)
        found = found[(found["step"] >= 0) & (found["step"] < FIRST_EVALUATION)]
        ended = found["step"][found["kind"] == _FORGET]
        if not len(ended):
            continue
        found = found[(found["step"] > ended[-1] - steps) & (found["step"] <= ended[-1])]
        seconds = worlds[rank.label.rpartition(".")[0]]
        for (_, track, kind, wait), (_, own_ns, _, _) in sum_of(found, {}).items():
            if track in (_ACTIONS, _WAITS):
                seconds[ACTIVITY_OF[kind][wait != 0]] += own_ns / 1e9
    return worlds


def read_memory(run: Path) -> dict[str, dict[MemoryKind, int]]:
    """Bytes by kind of memory, at the end of the last step of each rank of the last attempt.

    A rank that has ended no step is left out, and so is a kind that it does not have.

    Raises:
        EventsError: A file of events is damaged.
    """
    found: dict[str, dict[MemoryKind, int]] = {}
    for rank in _of_last_attempt(run):
        records = _of_attempt(rank)
        records = records[records["track"] == _MEMORY]
        for kind in MEMORY:
            sizes = records["bytes"][records["kind"] == KINDS.index(kind)]
            if len(sizes):
                found.setdefault(rank.label, {})[kind] = int(sizes[-1])
    return found


def _of_last_attempt(run: Path) -> list[RankEvents]:
    """The ranks that the last start of a run has started."""
    ranks = read_run(run)
    last = max((rank.attempts[-1].number for rank in ranks), default=0)
    return [rank for rank in ranks if rank.attempts[-1].number == last]


def _of_attempt(rank: RankEvents) -> Records:
    return rank.records[rank.records["attempt"] == rank.attempts[-1].number]


def _account(rank: RankEvents) -> Account:
    records, attempt = _of_attempt(rank), rank.attempts[-1]
    wall, cpu, planner = dict.fromkeys(ACTIVITIES, 0), dict.fromkeys(ACTIVITIES, 0), 0
    for (number, track, kind, wait), (_, own_ns, cpu_ns, _) in sum_of(records, rank.sums).items():
        if number != attempt.number:
            continue
        if track in (_ACTIONS, _WAITS):
            activity = ACTIVITY_OF[kind][wait != 0]
            wall[activity] += own_ns
            cpu[activity] += cpu_ns
        elif track == _PLANNER:
            planner += cpu_ns
    begun = records["start_ns"][records["kind"] == _RUN]
    return Account(
        started_at=(int(begun[-1]) + attempt.clock_offset_ns) / 1e9 if len(begun) else 0.0,
        seconds={activity: ns / 1e9 for activity, ns in wall.items()},
        cpu_seconds={activity: ns / 1e9 for activity, ns in cpu.items()},
        planner_cpu_seconds=planner / 1e9,
    )
