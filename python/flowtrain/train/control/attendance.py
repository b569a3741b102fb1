"""Which encoder ranks are there: returns the items of those that are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowtrain.train.control.board import Board
from flowtrain.train.control.seats import ENCODERS, NO_ENCODERS, Seat, Seats
from flowtrain.train.control.store import JobStore
from flowtrain_core import Pool

_PERIOD_S = 0.2
# However long the whole job is stopped, so much time passes for it.
_LONGEST_S = 1.0


@dataclass(slots=True)
class _Seen:
    """The process of a seat, as it was last seen."""

    at: float
    beat: Any
    has_joined: bool = False
    returned: int = 0
    """Claimant whose items were returned while the process lived."""


class Attendance:
    """Follows the encoder ranks of a job; the process that hosts it calls `poll` all the time.

    A rank is gone if its process has ended, or has not beaten for `timeout_s`. A process that is
    stopped may go on later: what it had claimed is refused then, and it claims other items.

    Args:
        store: The job's store.
        pool: The job's pool, in which each rank has a lane.
        first: First step of this start of the run.
        timeout_s: `flow.timeout_s`.
        start_timeout_s: `flow.start_timeout_s`.
        say: Prints a line.
    """

    def __init__(
        self,
        store: JobStore,
        pool: Pool,
        *,
        first: int,
        timeout_s: float,
        start_timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._pool = pool
        self._seats = Seats(store)
        self._board = Board(store, first=first)
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._say = say
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._ended: set[int] = set()
        self._were_ready: set[int] = set()
        self._present: list[str] | None = None
        self._polled_at = time.monotonic()
        self._clock = self._attended_at = 0.0
        self.given_up: str | None = None

    def poll(self) -> None:
        """Look which ranks are there, a few times a second."""
        if time.monotonic() - self._polled_at >= _PERIOD_S:
            self._look()

    def ended(self, pid: int) -> bool:
        """Take in that a process has ended; return whether it was ready to encode."""
        self._ended.add(pid)
        self._look()
        return pid in self._were_ready

    def num_left(self) -> int:
        """Ranks whose processes live, or are being started."""
        self._look()
        return len(self._seen)

    def _look(self) -> None:
        now = time.monotonic()
        self._clock += min(now - self._polled_at, _LONGEST_S)
        self._polled_at = now
        states = {(lane.label, lane.pid): lane.state for lane in self._pool.lanes()}
        seats = self._seats.all()
        present = [seat.label for seat in seats if self._is_there(seat, states)]
        for gone in self._seen.keys() - {(seat.rank, seat.pid) for seat in seats}:
            del self._seen[gone]
        if present != self._present:
            self._present = present
            self._store.put(ENCODERS, present)
        if present:
            self._attended_at = self._clock
        elif self.given_up is None:
            self._give_up_in_time()

    def _is_there(self, seat: Seat, states: Mapping[tuple[str, int], str]) -> bool:
        [beat] = self._store.read([f"beat/{seat.label}"])
        seen = self._seen.setdefault((seat.rank, seat.pid), _Seen(at=self._clock, beat=beat))
        if beat != seen.beat:
            seen.at, seen.beat, seen.returned = self._clock, beat, 0
        state = states.get((seat.label, seat.pid))
        seen.has_joined |= state is not None
        if seat.is_ready:
            self._were_ready.add(seat.pid)
        if seat.pid in self._ended or (seen.has_joined and state != "alive"):
            self._leave(seat, "has left" if state == "left" else "died")
            return False
        limit = self._timeout_s if seen.has_joined else self._start_timeout_s
        if self._clock - seen.at <= limit:
            return True
        if not seen.has_joined:
            self._leave(seat, "did not join")
        elif seen.returned != seat.claimant:
            seen.returned = seat.claimant
            self._tell(seat, f"has not beaten for flow.timeout_s={limit:g} s")
        return False

    def _leave(self, seat: Seat, how: str) -> None:
        self._tell(seat, how)
        self._seats.free(seat)
        del self._seen[seat.rank, seat.pid]

    def _tell(self, seat: Seat, how: str) -> None:
        items = self._board.reap(seat.claimant) if seat.claimant else 0
        if how != "has left" or items:
            others = f"; {items} items are free for other encoder ranks" if items else ""
            self._say(f"rank {seat.label} (pid {seat.pid}) {how}{others}")

    def _give_up_in_time(self) -> None:
        """End a run without encoder ranks, once that has lasted too long."""
        limit, name = self._timeout_s, "flow.timeout_s"
        if not self._were_ready:
            limit, name = max(limit, self._start_timeout_s), "flow.start_timeout_s"
        if self._clock - self._attended_at > limit:
            self.given_up = f"no encoder rank was there for {name}={limit:g} s"
            self._store.put(NO_ENCODERS, self.given_up)
