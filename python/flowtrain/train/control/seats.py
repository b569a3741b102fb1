"""Seats: the names of encoder ranks that come and go, and who has them now."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace

from flowtrain.config.checks import ConfigError
from flowtrain.train.control.job import GATEWAY_LABEL
from flowtrain.train.control.store import JobStore

ENCODERS = "encoders"
"""Key of the names of the encoder ranks that are there, which the host of the job writes."""
NO_ENCODERS = "no_encoders"
"""Key that the host sets once no encoder rank has been there for too long: the reason to end."""
WORLD = "encoder"
_FREE = "free"
_CLAIMANTS = "claimants"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """An encoder rank that has a name.

    Attributes:
        rank: Number in the name; the lowest ones that are free are given first.
        claimant: Number that no other process of the job ever has; 0 until the process has joined.
        pid: Its process, or until it has joined, the one that starts it.
        is_ready: Whether it has its weights.
    """

    rank: int
    claimant: int
    pid: int
    is_ready: bool = False

    @property
    def label(self) -> str:
        """Name of the rank."""
        return label_of(self.rank)


def label_of(rank: int) -> str:
    """Name of an encoder rank."""
    return f"{WORLD}.{rank}"


def comes_and_goes(label: str) -> bool:
    """Whether a name is that of an encoder rank, or of a gateway to further ones."""
    return label.startswith(f"{WORLD}.") or label == GATEWAY_LABEL


class Seats:
    """The seats of a job.

    Args:
        store: The job's store.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def make(self, ranks: int) -> None:
        """Make the first seats, reserved for processes that are started with their numbers."""
        for rank in range(ranks):
            self._store.put_text(_key(rank), _text(Seat(rank=rank, claimant=0, pid=os.getpid())))

    def all(self) -> list[Seat]:
        """The seats that are taken."""
        found, rank = [], 0
        while (text := self._store.peek(_key(rank))) is not None:
            if text != _FREE:
                found.append(Seat(**json.loads(text)))
            rank += 1
        return found

    def reserve(self) -> Seat:
        """Reserve the lowest free seat for a process that this one starts."""
        rank = 0
        while True:
            text = self._store.peek(_key(rank))
            seat = Seat(rank=rank, claimant=0, pid=os.getpid())
            if text in (None, _FREE) and self._put(text, seat):
                return seat
            rank += 1

    def take(self, rank: int) -> Seat:
        """Take a seat that is free or reserved, for this process.

        Raises:
            ConfigError: A process has it.
        """
        text = self._store.peek(_key(rank))
        if text not in (None, _FREE) and Seat(**json.loads(text)).claimant:
            raise ConfigError(
                f"{label_of(rank)} has joined already, with process {json.loads(text)['pid']}; "
                "start each rank once, or use `flowtrain encoder`, which takes a free name"
            )
        seat = Seat(rank=rank, claimant=self._store.count(_CLAIMANTS, 1), pid=os.getpid())
        if not self._put(text, seat):
            raise ConfigError(f"{label_of(rank)}: another process has just joined with this name")
        return seat

    def renew(self, seat: Seat) -> Seat:
        """The seat with another claimant, for a process whose items were returned."""
        new = replace(seat, claimant=self._store.count(_CLAIMANTS, 1))
        self._put(_text(seat), new)
        return new

    def ready(self, seat: Seat) -> Seat:
        """Tell that the process of a seat has its weights."""
        new = replace(seat, is_ready=True)
        self._put(_text(seat), new)
        return new

    def free(self, seat: Seat) -> None:
        """Free a seat, if it has not changed."""
        self._store.swap(_key(seat.rank), _text(seat), _FREE)

    def _put(self, text: str | None, seat: Seat) -> bool:
        return self._store.swap(_key(seat.rank), text, _text(seat)) == _text(seat)


def _key(rank: int) -> str:
    return f"seat/{rank}"


def _text(seat: Seat) -> str:
    return json.dumps(asdict(seat), separators=(",", ":"))
