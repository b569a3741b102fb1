"""How many descriptors per second go through the ring between processes, and through other queues?

Descriptors have 64 bytes, and every queue holds 1,024. FlowTrain's figure includes the whole life
of a cell: owned, written, published, taken, read, freed; `shared` owns each cell by a
compare-and-swap, as a pool does. Peers are measured in the same run and by the same harness, slice
by slice in turn with FlowTrain. Each slice lies between two ping-pong runs of one word, and only
slices with equal ping-pongs count. A peer that is not installed is null, with the reason. A waiting
process pauses once between two polls; `patient` pauses often, so that batches pile up and their
cache lines arrive as a stream, at the price of latency. Hand-offs move a pool's items between its
handles in two processes, with and without the records of lanes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from peers.queues import Queues

from flowtrain.bench.conditions import conditions
from flowtrain.bench.ring import RUN, Slice, comparable, flow, hand_off, round_trip

PATIENT = 64
"""Pauses between two polls of a patient process."""
PEERS = ("vyukov", "boost_queue", "message_queue")
RECORD_ROUNDS = 3
"""Rounds of hand-offs per round of the others: their difference of about a percent is smaller than
the noise of a slice."""


def measures(
    seconds: float, queues: Queues | None
) -> tuple[dict[str, Callable[[], Slice]], dict[str, str]]:
    """Measures that can run on this machine, and why the others cannot."""
    out: dict[str, Callable[[], Slice]] = {
        "ours": partial(flow, 1, 1, 1, seconds),
        "ours_runs": partial(flow, 1, 1, RUN, seconds),
        "ours_runs_shared": partial(flow, 1, 1, RUN, seconds, shared=True),
        "ours_runs_patient": partial(flow, 1, 1, RUN, seconds, pauses=PATIENT),
        "ours_runs_22": partial(flow, 2, 2, RUN, seconds),
        "ours_runs_44": partial(flow, 4, 4, RUN, seconds),
        "ours_rtt": partial(round_trip, seconds),
    }
    missing: dict[str, str] = {}
    for peer in PEERS:
        reason = Queues.missing() if queues is None else queues.lacks(peer)
        if queues is None or reason is not None:
            missing[peer] = str(reason)
            continue
        out[peer] = partial(queues.flow, peer, 1, 1, 1, seconds)
        if peer == "vyukov":
            out["vyukov_batch"] = partial(queues.flow, "vyukov", 1, 1, RUN, seconds)
            out["vyukov_batch_patient"] = partial(
                queues.flow, "vyukov", 1, 1, RUN, seconds, pauses=PATIENT
            )
            out["vyukov_rtt"] = partial(queues.round_trip, "vyukov", seconds)
    return out, missing


def hand_offs(seconds: float) -> dict[str, Callable[[], Slice]]:
    """Hand-offs of a pool's items, with and without records."""
    return {
        "hand_off": partial(hand_off, 1, seconds, records=True),
        "hand_off_without_records": partial(hand_off, 1, seconds, records=False),
        "hand_off_runs": partial(hand_off, RUN, seconds, records=True),
        "hand_off_runs_without_records": partial(hand_off, RUN, seconds, records=False),
    }


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        queues = stack.enter_context(Queues()) if Queues.missing() is None else None
        these, missing = measures(seconds, queues)
        for once in these.values():
            once()  # Warm-up.
        found = comparable(these, rounds)
    recorded = comparable(hand_offs(seconds), RECORD_ROUNDS * rounds)

    def ratio(above: str, below: str) -> float | None:
        a, b = found.medians.get(above), found.medians.get(below)
        return round(a / b, 2) if a and b else None

    def cost_percent(of: str) -> float | None:
        share = recorded.ratio(of, f"{of}_without_records")
        return share and round(100 * (1 - share), 1)

    return {
        "vs_boost_queue": ratio("ours_runs", "boost_queue"),
        "vs_message_queue": ratio("ours_runs", "message_queue"),
        "batch16_vs_vyukov_single": ratio("ours_runs", "vyukov"),
        "batch16_vs_vyukov_batch16": ratio("ours_runs", "vyukov_batch"),
        "patient_vs_vyukov_batch16": ratio("ours_runs_patient", "vyukov_batch_patient"),
        "shared_vs_vyukov_batch16": ratio("ours_runs_shared", "vyukov_batch"),
        "rtt_vs_vyukov": ratio("ours_rtt", "vyukov_rtt"),
        "mpmc44_vs_22": ratio("ours_runs_44", "ours_runs_22"),
        "metrics_cost_percent": cost_percent("hand_off"),
        "metrics_cost_percent_batch16": cost_percent("hand_off_runs"),
        "million_per_s": {
            name: value and round(value / 1e6, 2)
            for name, value in (found.medians | recorded.medians).items()
            if not name.endswith("_rtt")
        },
        "rtt_ns": {
            name.removesuffix("_rtt"): value and round(value)
            for name, value in found.medians.items()
            if name.endswith("_rtt")
        },
        "ping_ns": round(found.ping_ns),
        "slices_kept": found.kept | recorded.kept,
        "missing": missing,
        "rounds": rounds,
        "seconds": seconds,
        **conditions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="slices per measure")
    parser.add_argument("--seconds", type=float, default=0.06, help="time per slice")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    result = measure(given.rounds, given.seconds)
    if not given.json:
        for key, value in result.items():
            print(f"{key:>26}  {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
