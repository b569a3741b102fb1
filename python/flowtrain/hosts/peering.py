"""Messages of two gateways over their control connection, before and while items move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from flowtrain.hosts.connect import check_reach
from flowtrain.hosts.control import Control
from flowtrain.hosts.guests import Guests
from flowtrain.hosts.handshake import HostError, Session
from flowtrain_core import Gateway

# A link that never stands has an error after 10 s.
_STANDS_S = 12.0
_FACTS, _READY, _RANKS, _PEERS = "gateway", "ready", "ranks", "peers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A gateway, as its peer needs to know it."""

    address: str
    """Of the payload path."""
    path: str
    """Of payloads: tcp or ucx."""
    pool: int
    """Nonce of the pool."""
    process: int
    """Number that the process has drawn for the peer."""
    max_cells: int
    """Of the pool."""
    rings: Sequence[str]
    """Of the pool, in order; both pools have the same."""
    listens: str
    """Where other hosts of the job can join it, `address:port`."""

    @staticmethod
    def parse(given: Any) -> Facts:
        """Facts as they were sent.

        Raises:
            HostError: A field is missing, or of another type.
        """
        try:
            found = Facts(**given)
        except TypeError as error:
            raise HostError("its facts cannot be read; it may have another version") from error
        for each in fields(found):
            value = getattr(found, each.name)
            if each.type == "Sequence[str]":
                is_valid = isinstance(value, list) and all(isinstance(ring, str) for ring in value)
            else:
                is_valid = type(value).__name__ == each.type
            if not is_valid:
                raise HostError(f"its {each.name} is {value!r}, which is no {each.type}")
        return found


class Peering:
    """One connection to a peer: agrees upon the payload links, which last as long.

    Each side tells its facts, admits the other one when it knows them, says that it is ready once
    it reaches the other's payload port, and connects once both are: so no link arrives before it is
    expected, and a peer that is connected can be reached.

    Args:
        gateway: Of this host.
        facts: Of it.
        enter: Called with the facts of the peer before it is admitted.
        guests: Takes the ranks of the peer.
        meet: Takes where the peer says that other hosts listen, by their names.
        tell: Takes what people should know.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: Session,
        *,
        gateway: Gateway,
        facts: Facts,
        enter: Callable[[Peering, Facts], None],
        guests: Guests,
        meet: Callable[[dict[str, str]], None],
        connected: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self.name = session.peer.host
        self.facts: Facts | None = None  # Of the peer.
        self.is_connected = False
        self.is_stalled = False
        self._since_s = 0.0
        self._gateway, self._own = gateway, facts
        self._enter, self._guests, self._meet, self._tell = enter, guests, meet, tell
        self._connected = connected
        self._told: dict[str, object] = {}
        self._session = session
        self._is_admitted, self._is_ready = asyncio.Event(), asyncio.Event()  # By either side.
        self._control = Control(
            reader, writer, session, on_message=self._take, on_stall=self._note_stall
        )

    async def run(self) -> None:
        """Last as long as the connection, as `Control.run`."""
        await self._control.run(self._link)

    async def _link(self) -> None:
        self._control.send({_FACTS: asdict(self._own)})
        await self._is_admitted.wait()
        assert self.facts is not None
        if self._own.path == "tcp":  # Other paths have no port that takes any connection.
            try:
                await check_reach(self.facts.address)
            except OSError as error:
                raise HostError(str(error)) from error
        self._control.send({_READY: True})
        await self._is_ready.wait()
        self.is_connected = self._gateway.connect(self.name)
        if self.is_connected:
            self._since_s = time.monotonic()
            self._tell(f"host {self.name} is connected ({self._control.path})")
            self._connected()

    @property
    def has_stood(self) -> bool:
        """Whether the payload link has stood; over UCX this is known late."""
        is_known = self._own.path == "tcp" or time.monotonic() - self._since_s > _STANDS_S
        return self.is_connected and is_known

    def tell_ranks(self, ranks: object) -> None:
        """Tell the ranks of this host, if they are others than before."""
        self._tell_new(_RANKS, ranks)

    def tell_peers(self, listen: dict[str, str]) -> None:
        """Tell where other hosts listen, by their names, if these are others than before."""
        self._tell_new(_PEERS, listen)

    def _tell_new(self, what: str, value: object) -> None:
        if self.facts is not None and value != self._told.get(what):
            self._told[what] = value
            self._control.send({what: value})

    def close(self, why: str, *, for_good: bool = True) -> None:
        """As `Control.close`."""
        self._control.close(why, for_good=for_good)

    def _take(self, message: dict[str, Any]) -> None:
        if _FACTS in message and self.facts is None:
            self._admit(Facts.parse(message[_FACTS]))
        elif _READY in message and self.facts is not None:
            self._is_ready.set()
        elif _RANKS in message and self.facts is not None:
            self._guests.take(self.name, message[_RANKS])
        elif _PEERS in message and self.facts is not None:
            self._meet(_peers(message[_PEERS]))
        else:
            raise HostError(f"a message that cannot come now: {str(message)[:80]}")

    def _admit(self, facts: Facts) -> None:
        own = self._own
        if facts.path != own.path:
            raise HostError(
                f"its payloads go by {facts.path}, and those of this host by {own.path}; give "
                "flowtrain host the same --path on all hosts"
            )
        if list(facts.rings) != list(own.rings):
            raise HostError(
                f"its pool has the rings {', '.join(facts.rings)}, and this one "
                f"{', '.join(own.rings)}; both must be of one configuration"
            )
        self._enter(self, facts)
        self._gateway.admit(
            self.name,
            address=facts.address,
            pool=facts.pool,
            process=facts.process,
            max_cells=facts.max_cells,
            to_peer=self._session.to_peer,
            from_peer=self._session.from_peer,
        )
        self.facts = facts
        self._is_admitted.set()

    def _note_stall(self, stalled: bool) -> None:
        self.is_stalled = stalled
        does = "does not answer; waiting for it" if stalled else "answers again"
        self._tell(f"host {self.name} {does} ({self._control.path})")


def _peers(told: Any) -> dict[str, str]:
    """Addresses of other hosts as they were sent.

    Raises:
        HostError: It is no such message.
    """
    if not isinstance(told, dict) or not all(isinstance(at, str) for at in told.values()):
        raise HostError(f"its peers cannot be read: {str(told)[:80]}")
    return told
