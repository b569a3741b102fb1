"""Who waited for whom, from the waits among the events of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy

from flowtrain.events import KINDS, TRACKS, WAITS
from flowtrain.observe.trace.records import other_end
from flowtrain.observe.trace.run import TracedRun

_ON_ACTIONS, _ON_WAITS = TRACKS.index("actions"), TRACKS.index("waits")
_EXCHANGE = KINDS.index("exchange")
_OF_PLANNER = (KINDS.index("load"), KINDS.index("plan"))
PLANNER, OTHERS = "planner", "others"
"""What a rank waits for beside other ranks: plans, texts and samples; and what no other rank
causes, such as the time that a collective itself takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Waits of the ranks in the steps of the last attempt whose events are kept."""

    ranks: list[str]
    seconds: float
    """Time of these steps, which is that of each rank."""
    steps: int
    waited: Mapping[tuple[str, str], float]
    """Seconds that the first rank waited for the second one, for `PLANNER` or for `OTHERS`."""


def waits_between(run: TracedRun) -> Waits:
    """Seconds that the ranks waited, by what they waited for.

    The event of a wait for a record or a free slab names the other rank. Where ranks meet, in sums
    of gradients and in the exchange of reports, a wait counts for the rank that came last: the one
    that waited least there in the step.
    """
    attempt = max(run.windows)
    waited: dict[tuple[str, str], float] = defaultdict(float)
    meetings: dict[tuple[int, int, str], dict[str, float]] = defaultdict(dict)
    kept = [step for steps in run.steps for step in steps]
    steps: set[int] = set()
    times: list[int] = []
    exchanging = []
    for rank in run.ranks:
        own = rank.records[rank.records["attempt"] == attempt]
        own = own[numpy.isin(own["step"], kept)]
        if ((own["track"] == _ON_ACTIONS) & (own["kind"] == _EXCHANGE)).any():
            exchanging.append(rank.label)
        steps.update(numpy.unique(own["step"]).tolist())
        own = own[numpy.isin(own["track"], (_ON_ACTIONS, _ON_WAITS))]
        if len(own):
            times += [int(own["start_ns"].min()), int(own["end_ns"].max())]
        names = ("step", "kind", "module", "wait", "peer", "own_ns")
        for step, kind, module, wait, peer, ns in zip(
            *(own[own["track"] == _ON_WAITS][name].tolist() for name in names), strict=True
        ):
            world = rank.label.rpartition(".")[0]
            if WAITS[wait] in ("record", "slab") and module:
                waited[rank.label, other_end(rank.label, module, peer)] += ns / 1e9
            elif WAITS[wait] == "ranks" or kind == _EXCHANGE:
                met = meetings[step, kind, world if WAITS[wait] == "ranks" else ""]
                met[rank.label] = met.get(rank.label, 0.0) + ns / 1e9
            else:
                waited[rank.label, PLANNER if kind in _OF_PLANNER else OTHERS] += ns / 1e9
    labels = [rank.label for rank in run.ranks]
    for (_, _, world), met in meetings.items():
        there = [each for each in labels if each.startswith(f"{world}.")] if world else exchanging
        _count(waited, met, there)
    seconds = (max(times) - min(times)) / 1e9
    return Waits(ranks=labels, seconds=seconds, steps=len(steps), waited=dict(waited))


def _count(
    waited: dict[tuple[str, str], float], met: Mapping[str, float], there: Iterable[str]
) -> None:
    """Add what ranks waited in a meeting, for the last of those that came there."""
    last = min(there, key=lambda each: met.get(each, 0.0), default=OTHERS)
    for label, seconds in met.items():
        waited[label, last if last != label else OTHERS] += seconds
