"""Ranks of other hosts, as lanes of this host's pool: so whoever watches the pool sees them."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.hosts.handshake import HostError
from flowtrain_core import Gateway, Pool

_ALIVE, _DEAD = "alive", "dead"
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

    def own(self) -> dict[str, list[_Rank]]:
        """The ranks of this host that live, and those that died and are still in the pool."""
        guests = {lane for lanes in self._lanes.values() for lane in lanes.values()}
        own: dict[str, list[_Rank]] = {_ALIVE: [], _DEAD: []}
        for lane in self._pool.lanes():
            is_rank = lane.role == "pool" and lane.label and lane.index != self._pool.lane
            if is_rank and lane.state in own and lane.index not in guests:
                own[lane.state].append((lane.label, lane.pid))
        return own

    def take(self, peer: str, told: object) -> None:
        """Let the lanes of a peer's ranks be as it has told.

        Raises:
            HostError: It is no such message.
        """
        alive, dead = (set(_ranks(told, state)) for state in (_ALIVE, _DEAD))
        lanes = self._lanes.setdefault(peer, {})
        for rank in lanes.keys() - alive:
            self._gateway.remove_guest(lanes.pop(rank), died=rank in dead)
        for label, pid in sorted(alive - lanes.keys()):
            lanes[label, pid] = self._gateway.add_guest(label, pid)

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
