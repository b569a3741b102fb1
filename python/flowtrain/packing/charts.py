"""Pictures of a step: what each rank computes in its slots, and for what it waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from flowtrain.pages.charts.spec import Row, Spec, axis, parts_legend, row_heights, rows_of, spec
from flowtrain_core.packing import Assignment

USED, LOST = "#33a089", "#e4572e"
"""Colors of what is used, and of waits and padding."""
_MAX_RANKS = 24
_MAX_SLOTS = 64

Floats = NDArray[numpy.float64]


@dataclass(frozen=True, slots=True)
class Words:
    """What a picture says of a slot."""

    used: str
    lost: str
    axis: str


def shown_ranks(ranks: int) -> list[int]:
    """Numbers of the ranks in a picture, at equal distances."""
    every = -(-ranks // _MAX_RANKS)
    return list(range(0, ranks, every))


def shown_slots(slots: int) -> int:
    """Number of the slots in a picture, from the first."""
    return min(slots, _MAX_SLOTS)


def length(loads: Floats) -> float:
    """Length of the slots in a picture: each as long as that of its slowest rank."""
    return float(loads[:_MAX_SLOTS].max(axis=1).sum())


def balanced(loads: Floats) -> float:
    """The same, if all ranks had the same in each slot."""
    return float(loads[:_MAX_SLOTS].mean(axis=1).sum())


def slots_in_time(plan: Assignment, loads: Floats, *, unit: float) -> list[Row]:
    """What is used of each slot of a rank, and what is lost as another rank has more.

    Args:
        plan: The schedule of a step.
        loads: Its cost, or its tokens, shape [microbatches, ranks].
        unit: What counts as 1.
    """
    counts = numpy.zeros(loads.shape, "i8")
    placed = plan.slot >= 0
    numpy.add.at(counts, (plan.slot[placed], plan.rank[placed]), 1)
    tokens = plan.bin_tokens
    slowest = loads[:_MAX_SLOTS].max(axis=1)
    starts = numpy.cumsum(slowest) - slowest
    rows: list[Row] = []
    for rank in shown_ranks(plan.ranks):
        for slot, (start, most) in enumerate(zip(starts.tolist(), slowest.tolist(), strict=True)):
            own = float(loads[slot, rank])
            said = {
                "rank": f"rank {rank}",
                "microbatch": slot,
                "samples": int(counts[slot, rank]),
                "tokens": int(tokens[slot, rank]),
            }
            ends = {"used": (start, start + own), "lost": (start + own, start + most)}
            rows += [
                {**said, "part": part, "from": _short(first / unit), "to": _short(end / unit)}
                for part, (first, end) in ends.items()
                if end > first
            ]
    return rows


def picture(plan: Assignment, loads: Floats, *, unit: float, top: float, words: Words) -> Spec:
    """Slots in a row for each rank.

    Args:
        plan: The schedule of a step.
        loads: Its cost, or its tokens, shape [microbatches, ranks].
        unit: What counts as 1.
        top: End of the axis.
        words: What it says.
    """
    said = {"used": words.used, "lost": words.lost}
    rows = [{**row, "part": said[row["part"]]} for row in slots_in_time(plan, loads, unit=unit)]
    slowest = loads[:_MAX_SLOTS].max(axis=1)
    ranks = [f"rank {rank}" for rank in shown_ranks(plan.ranks)]
    bars = {
        "mark": {"type": "bar", "clip": True},
        "encoding": {
            "y": rows_of("rank", ranks),
            "x": axis(words.axis, field="from", scale={"domain": [0, top], "nice": False}),
            "x2": {"field": "to"},
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": list(said.values()), "range": [USED, LOST]},
                "legend": parts_legend(list(said.values())),
            },
            "tooltip": [
                *({"field": name, "type": "nominal"} for name in ("rank", "part")),
                *(
                    {"field": name, "type": "quantitative", "format": ",d"}
                    for name in ("microbatch", "samples", "tokens")
                ),
            ],
        },
    }
    ends = numpy.cumsum(slowest)[:-1] / unit
    dividers = {
        "data": {"values": [{"at": _short(end)} for end in ends.tolist()]},
        "mark": {"type": "rule", "strokeWidth": 1, "opacity": 0.9},
        "encoding": {"x": {"field": "at", "type": "quantitative"}},
    }
    return spec(rows, height=row_heights(len(ranks), 22), layer=[bars, dividers])


def _short(value: float) -> float:
    return round(value, 5)
