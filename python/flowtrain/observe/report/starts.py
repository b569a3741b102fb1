"""The starts of a run, from what its launcher has recorded and from the events of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest

import numpy

from flowtrain.events import KINDS, RankEvents
from flowtrain.steps import FIRST_EVALUATION
from flowtrain.train.state.ending import KILLED, RecordedStart

_FORGET = KINDS.index("forget")


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of a run."""

    began: datetime
    """Of an older FlowTrain, the time of the first event that is kept."""
    ranks: int
    """Number of its ranks of which events are kept."""
    steps: range
    """From the first to the last step that a rank has ended, of those whose events are kept."""
    end: str | None
    """How it ended; None if it is not recorded: the last one may go on, or have been killed."""


def starts_of(ranks: Sequence[RankEvents], recorded: Sequence[RecordedStart]) -> list[Start]:
    """The starts of a run, in their order.

    Args:
        ranks: The events of its ranks.
        recorded: What its launcher has recorded, with times unless an older one has.
    """
    numbers = sorted({attempt.number for rank in ranks for attempt in rank.attempts})
    found = [start for n in numbers if (start := _start(ranks, n)) is not None]
    times = [start.began for start in recorded if start.began is not None]
    if len(times) < len(recorded):
        return found
    starts = []
    for each, began, following in zip_longest(recorded, times, times[1:]):
        # An attempt belongs to the last start before its events.
        own = [s for s in found if began <= s.began and (following is None or s.began < following)]
        count, steps = (own[0].ranks, own[0].steps) if own else (0, range(0))
        end = each.end or (None if following is None else KILLED)
        starts.append(Start(began=began, ranks=count, steps=steps, end=end))
    return starts


def _start(ranks: Sequence[RankEvents], number: int) -> Start | None:
    """An attempt that has events."""
    began, steps = [], []
    for rank in ranks:
        own = rank.records[rank.records["attempt"] == number]
        offset = [each.clock_offset_ns for each in rank.attempts if each.number == number]
        if not len(own) or not offset:
            continue
        began.append((int(own["start_ns"].min()) + offset[0]) / 1e9)
        steps.append(own["step"][(own["kind"] == _FORGET) & (own["step"] < FIRST_EVALUATION)])
    if not began:
        return None
    every = numpy.concatenate(steps)
    kept = range(int(every.min()), int(every.max()) + 1) if len(every) else range(0)
    first = datetime.fromtimestamp(min(began), UTC)
    return Start(began=first, ranks=len(began), steps=kept, end=None)
