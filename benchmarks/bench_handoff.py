"""How long does an item take from one Python process to another, in FlowTrain and in its peers?

One way, without a copy, between processes on two cores: half of a round trip if both sides spin,
and the age of the item on arrival if the reader sleeps. Peers are measured in the same run, slice
by slice in turn with FlowTrain; each figure is the median of the medians of its slices. A peer that
is not installed is null, with the reason. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any, Protocol

from peers.echo import Echo
from peers.iceoryx import Iceoryx
from peers.mp_queue import MpQueue
from peers.raw_futex import RawFutex
from peers.torch_shared import TorchShared
from peers.zmq_ipc import ZmqIpc
from tqdm import tqdm

from flowtrain.bench.conditions import conditions, pinned
from flowtrain.bench.handoff import Handoff, sleeping, spinning

SMALL, LARGE = 64, 4 << 20
PEERS: dict[str, tuple[type[Echo], int]] = {
    "mp_queue": (MpQueue, SMALL),
    "torch_shared": (TorchShared, LARGE),
    "zmq_ipc": (ZmqIpc, SMALL),
    "iceoryx2": (Iceoryx, SMALL),
}
PAUSE_S = 0.003


class Link(Protocol):
    def round_trip(self) -> None: ...


def one_way_us(link: Link, rounds: int) -> float:
    """Median one-way time over a slice, with the other peers paused."""
    if isinstance(link, Echo):
        link.resume()
    times = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        link.round_trip()
        times.append(time.perf_counter_ns() - started)
    if isinstance(link, Echo):
        link.pause()
    return median(times[rounds // 10 :]) / 2000


def alternate(measures: dict[str, Callable[[], float]], slices: int) -> dict[str, list[float]]:
    """Figures of every measure, each of which runs once per slice."""
    out: dict[str, list[float]] = {name: [] for name in measures}
    for _ in tqdm(range(slices), desc="slices", disable=not sys.stderr.isatty()):
        for name, measure in measures.items():
            out[name].append(measure())
    return out


def spin(core: int, slices: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """One-way times in us of FlowTrain and the installed peers, and why other peers are missing."""
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        links: dict[str, Link] = {
            "small": stack.enter_context(Handoff(core, SMALL)),
            "large": stack.enter_context(Handoff(core, LARGE)),
        }
        for name, (kind, item_bytes) in PEERS.items():
            if (reason := kind.missing()) is not None:
                missing[name] = reason
            else:
                peer = stack.enter_context(kind(core, item_bytes))
                peer.pause()
                links[name] = peer
        for link in links.values():
            one_way_us(link, rounds)  # Warm-up.
        times = alternate(
            {name: lambda link=link: one_way_us(link, rounds) for name, link in links.items()},
            slices,
        )
        for name in ("small", "large"):
            ours = links[name]
            assert isinstance(ours, Handoff)
            ours.finish()
    return times, missing


def sleep(core: int, slices: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """One-way times in us to a sleeping reader, of FlowTrain and of a bare futex."""
    measures = {"ours": lambda: median(sleeping(core, rounds, PAUSE_S)) / 1000}
    if (reason := RawFutex.missing()) is not None:
        return alternate(measures, slices), {"raw_futex": reason}
    [here] = os.sched_getaffinity(0)
    with RawFutex() as futex:
        measures["raw_futex"] = lambda: median(futex.ages_ns(rounds, PAUSE_S, here, core)) / 1000
        return alternate(measures, slices), {}


def ratio(theirs: list[float] | None, ours: list[float]) -> float | None:
    return None if theirs is None else round(median(theirs) / median(ours), 2)


def measure(slices: int, rounds: int) -> dict[str, Any]:
    with pinned() as core:
        _, same = spinning(core, LARGE, 100)
        spun, absent = spin(core, slices, rounds)
        slept, no_futex = sleep(core, slices, max(50, rounds // 10))
    futex = ratio(slept.get("raw_futex"), slept["ours"])
    return {
        "p50_us_spin": round(max(median(spun["small"]), median(spun["large"])), 3),
        "p50_us_sleep": round(median(slept["ours"]), 2),
        "sleep_vs_raw_futex": None if futex is None else round(1 / futex, 3),
        "vs_mp_queue": ratio(spun.get("mp_queue"), spun["small"]),
        "vs_torch_shared": ratio(spun.get("torch_shared"), spun["large"]),
        "vs_zmq_ipc": ratio(spun.get("zmq_ipc"), spun["small"]),
        "vs_iceoryx2": ratio(spun.get("iceoryx2"), spun["small"]),
        "same_physical_pages": same,
        "us": {name: round(median(values), 3) for name, values in (spun | slept).items()},
        "missing": {**absent, **no_futex},
        "slices": slices,
        "rounds": rounds,
        **conditions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=1000, help="round trips per slice")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    result = measure(given.slices, given.rounds)
    if not given.json:
        for key, value in result.items():
            print(f"{key:>20}  {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
