"""The traffic of each host of a run with the others, as its gateway writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowtrain.config.checks import ConfigError
from flowtrain.config.tree import build
from flowtrain.train.state import atomic
from flowtrain.train.state.files import RunFileError, read_object

TRAFFIC = "traffic"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTraffic:
    """Traffic of one host with another, since its gateway started.

    Attributes:
        peer: Name of the other host.
        connected: Whether there is a link now.
        stalled_s: Time for which the peer has taken nothing that waits for it.
        sent_items: Items that it has got.
        sent_bytes: Their payloads.
        received_items: Items that came from it.
        received_bytes: Their payloads.
        waiting: Items of it that wait for a slab here.
        staged_items: Items for it that were copied from a device into page-locked memory first.
        lost_items: Items for it in memory of a device, of producers that died before their stream
            had written them.
    """

    peer: str
    connected: bool
    stalled_s: float
    sent_items: int
    sent_bytes: int
    received_items: int
    received_bytes: int
    waiting: int
    staged_items: int = 0
    lost_items: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class HostTraffic:
    """The traffic of a host.

    Attributes:
        host: Its name.
        path: How payloads go, and its address.
        peers: The other hosts.
    """

    host: str
    path: str
    peers: tuple[PeerTraffic, ...]


def traffic_of(host: str, path: str, peers: Sequence[Mapping[str, Any]]) -> HostTraffic:
    """The traffic that `Gateway.traffic` has told."""
    names = PeerTraffic.__slots__
    found = (PeerTraffic(**{name: each[name] for name in names}) for each in peers)
    return HostTraffic(host=host, path=path, peers=tuple(found))


def write_traffic(run: Path, traffic: HostTraffic) -> None:
    """Write the traffic of a host to `RUN/traffic/HOST.json`."""
    folder = run / TRAFFIC
    folder.mkdir(exist_ok=True)
    atomic.write_text(folder / f"{traffic.host}.json", json.dumps(asdict(traffic)) + "\n")


def read_traffic(run: Path) -> list[HostTraffic]:
    """The traffic of each host that shares the folder of a run.

    Raises:
        RunFileError: A file is damaged.
    """
    found, way_out = [], "delete it"
    for path in sorted(run.joinpath(TRAFFIC).glob("*.json")):
        tree = read_object(path, ["host", "path", "peers"], way_out=way_out)
        try:
            found.append(build(HostTraffic, tree, source=str(path)))
        except ConfigError as error:
            raise RunFileError(f"{error}; {way_out}") from error
    return found
