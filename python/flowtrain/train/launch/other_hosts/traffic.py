"""Traffic of a host's gateway, written into the folder of the run; stalls are printed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from flowtrain.train.control.job import GATEWAY_LABEL
from flowtrain.train.launch.stops import say
from flowtrain.train.state import atomic
from flowtrain.train.state.run_folder import EDGES
from flowtrain.train.state.traffic import HostTraffic, traffic_of, write_traffic
from flowtrain_core import Gateway

_RECORD_S = 1.0
# A live peer that has taken no payload for this long is told.
_STALL_S = 10.0


async def record_traffic(folder: Path, host: str, gateway: Gateway) -> None:
    """Write what a gateway moves into the folder, again and again, and say where nothing moves."""
    written, told, stalls = None, False, Stalls()
    while True:
        traffic = _traffic(host, gateway)
        for text in stalls.new(traffic):
            say(text)
        if traffic != written:
            try:
                write_traffic(folder, traffic)
                written = traffic
            except OSError as error:  # Of a full disk, for example; the run goes on.
                if not told:
                    say(f"{error}: `flowtrain top` and reports lack the links of this host")
                told = True
        await asyncio.sleep(_RECORD_S)


class Stalls:
    """Peers that live and take no payloads; each stall is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def new(self, traffic: HostTraffic) -> Sequence[str]:
        """Messages on the peers that have stalled since the last call."""
        stalled = {each.peer: each.stalled_s for each in traffic.peers if each.connected}
        stalled = {peer: since_s for peer, since_s in stalled.items() if since_s >= _STALL_S}
        new = sorted(stalled.keys() - self._told)
        self._told = set(stalled)
        return [
            f"host {peer} has taken no payload for {stalled[peer]:.0f} s: it is stopped, or the "
            "network drops large packets (MTU)"
            for peer in new
        ]


def end_record(folder: Path, host: str, gateway: Gateway) -> None:
    """Say and write what a gateway has moved, and by which path."""
    text, edges = gateway.explain(), folder / EDGES
    say(text)
    try:
        write_traffic(folder, _traffic(host, gateway))
        edges.mkdir(exist_ok=True)
        atomic.write_text(edges / f"{GATEWAY_LABEL}.{host}.txt", text + "\n")
    except OSError as error:
        say(f"{error}: the folder lacks the path and the links of this host")


def _traffic(host: str, gateway: Gateway) -> HostTraffic:
    return traffic_of(host, gateway.explain().partition("\n")[0], gateway.traffic())
