"""The starts of a run, from the events of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.events import KINDS, RankEvents
from flowtrain.steps import FIRST_EVALUATION

_FORGET = KINDS.index("forget")


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of a run, as far as events of it are kept."""

    number: int
    ranks: int
    began_s: float
    """Unix time of its first event that is kept."""
    steps: range
    """From the first to the last step that a rank has ended, of those whose events are kept."""


def starts_of(ranks: Sequence[RankEvents]) -> list[Start]:
    """The starts of a run that have events, in their order."""
    numbers = sorted({attempt.number for rank in ranks for attempt in rank.attempts})
    found = [_start(ranks, number) for number in numbers]
    return [start for start in found if start is not None]


def _start(ranks: Sequence[RankEvents], number: int) -> Start | None:
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
    return Start(number=number, ranks=len(began), began_s=min(began), steps=kept)
