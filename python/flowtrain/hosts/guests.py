"""Ranks of other hosts, as lanes of this host's pool: so whoever watches the pool sees them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from flowtrain.hosts.handshake import HostError
from flowtrain_core import Gateway, Pool

_ALIVE, _DEAD, _READS = "alive", "dead", "reads"
# A participant: its label, and its process on its host.
_Rank = tuple[str, int]


class Guests:
    """The ranks of each peer, and those of this host as a peer needs to know them.

    Args:
        pool: Pool of this host.
        gateway: Its gateway.
    """

    def __init__(self, pool: Pool, gateway: Gateway) -> None:
        self._pool, self._gateway = pool, gateway
        self._lanes: dict[str, dict[_Rank, int]] = {}

    def own(self) -> Mapping[str, Any]:
        """Ranks of this host, alive or dead in the pool, and the rings that have readers here."""
        guests = {lane for lanes in self._lanes.values() for lane in lanes.values()}
        ranks: dict[str, list[_Rank]] = {_ALIVE: [], _DEAD: []}
        for lane in self._pool.lanes():
            is_rank = lane.role == "pool" and lane.label and lane.index != self._pool.lane
            if is_rank and lane.state in ranks and lane.index not in guests:
                ranks[lane.state].append((lane.label, lane.pid))
        return {**ranks, _READS: self._read_here()}

    def own_ranks(self) -> Sequence[_Rank]:
        """The ranks of this host that live."""
        ranks: Sequence[_Rank] = self.own()[_ALIVE]
        return ranks

    def labels(self) -> Sequence[str]:
        """Labels of all peers' ranks."""
        return sorted(label for lanes in self._lanes.values() for label, _ in lanes)

    def _read_here(self) -> Sequence[str]:
        """The rings that other processes of this host read; the gateway reads those of peers."""
        rings = {
            lane.ring
            for lane in self._pool.lanes()
            if lane.role == "consumer" and lane.state == _ALIVE and lane.pid != os.getpid()
        }
        return [ring for number, ring in enumerate(self._pool.rings) if number in rings]

    def take(self, peer: str, told: object) -> None:
        """Let the lanes of a peer's ranks be as it has told, and rings lead to their readers.

        Raises:
            HostError: It is no such message, or a ring has readers elsewhere.
        """
        alive, dead = (set(_ranks(told, state)) for state in (_ALIVE, _DEAD))
        self._lead(peer, told)
        lanes = self._lanes.setdefault(peer, {})
        for rank in lanes.keys() - alive:
            self._gateway.remove_guest(lanes.pop(rank), died=rank in dead)
        for label, pid in sorted(alive - lanes.keys()):
            lanes[label, pid] = self._gateway.add_guest(label, pid)

    def _lead(self, peer: str, told: Any) -> None:
        """Let rings lead to the peer that reads them."""
        rings = told.get(_READS)
        if not isinstance(rings, list) or any(ring not in self._pool.rings for ring in rings):
            raise HostError(f"it reads {str(rings)[:80]}, which are no rings of the pool")
        if both := sorted(set(rings) & set(self._read_here())):
            raise HostError(f"{', '.join(both)}: rings with readers at both hosts; give each one")
        try:
            self._gateway.route(peer, rings)
        except ValueError as error:
            raise HostError(str(error)) from error

    def lose(self, peer: str, *, died: bool) -> Sequence[str]:
        """End the lanes of a peer that is gone; its labels."""
        lanes = self._lanes.pop(peer, {})
        for lane in lanes.values():
            self._gateway.remove_guest(lane, died=died)
        return sorted(label for label, _ in lanes)


def _ranks(told: object, state: str) -> list[_Rank]:
    ranks = told.get(state) if isinstance(told, dict) else None
    if not isinstance(ranks, list) or not all(
        isinstance(rank, list) and [type(each) for each in rank] == [str, int] for rank in ranks
    ):
        raise HostError(f"its ranks cannot be read: {str(told)[:80]}")
    return [(label, pid) for label, pid in ranks]
