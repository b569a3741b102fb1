"""An encoder rank that comes and goes: it takes the next free items, whichever they are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext

from flowtrain.events import Wait
from flowtrain.schedule import Action
from flowtrain.steps import StepPlan, step_name
from flowtrain.train.control.board import Board
from flowtrain.train.control.job import STOP
from flowtrain.train.control.seats import Seat, Seats
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.ranks.encoder import EncoderPart
from flowtrain.train.ranks.memory import record_memory
from flowtrain.train.ranks.open_plans import OpenPlans
from flowtrain.train.ranks.profiler import Profiler
from flowtrain.train.ranks.run_ahead import RunAhead
from flowtrain.train.ranks.step import Delays, inference
from flowtrain_core.edges import Explanation

# A wait for an item or for a slab looks again, at first soon and then less often.
_SOON_S, _LATE_S = 0.001, 0.02
# A signal to leave may be one to the whole job, which is then saved, and needs this rank.
_LEAVE_AFTER_S = 1.0

_Claim = tuple[StepPlan, int]


class ElasticEncoder:
    """Encodes items of a frozen run until all readers are done, or until it is to leave.

    It takes an item only if its segment has room for it. One largest item of the segment is kept
    for the item that all readers wait for, in front of which everything is published: so that one
    can always be made, also if it comes free again after later ones were encoded.

    Args:
        context: Connections and services of this rank.
        encoder: Encodes and sends items.
        seat: The name of this rank.
        board: The board of the job.
        plans: The plans with free items.
        run_ahead: Size of the segment.
        readers: Names of the ranks that read the records.
        ahead: Items that are claimed before they are encoded, so that their images are read.
        profiler: Traces some steps.
        delays: Pauses before items.
        explained: The error that says more than the one that an action raised, or None.

    Attributes:
        leave_at: Time of a signal to leave, on the monotonic clock; None while there is none.
    """

    def __init__(
        self,
        context: RankContext,
        encoder: EncoderPart,
        seat: Seat,
        board: Board,
        plans: OpenPlans,
        run_ahead: RunAhead,
        *,
        readers: list[str],
        ahead: int,
        profiler: Profiler,
        delays: Delays,
        explained: Callable[[Action, Exception], Exception | None],
    ) -> None:
        self._context = context
        self._encoder = encoder
        self._seats = Seats(context.store)
        self._seat = seat
        self._board = board
        self._plans = plans
        self._run_ahead = run_ahead
        self._done = f"done/{readers[0]}"
        self._ahead = ahead
        self._profiler = profiler
        self._delays = delays
        self._explained = explained
        self._events = context.activity.events
        self._claims: deque[_Claim] = deque()
        self._returns = self._largest = 0
        self._step = -1
        self.leave_at: float | None = None

    def run(self) -> None:
        """Encode until the run is done, or until this rank is to leave."""
        self._seat = self._seats.ready(self._seat)
        self._returns = self._board.returns()
        self._events.restart()
        with self._events.span("run"):
            while not self._leaves() and self._fill():
                self._make(*self._claims.popleft())
            self._give_back()
        self._profiler.close()
        self._encoder.sender.drain()
        self._encoder.close()

    def edges(self) -> list[Explanation]:
        """Current state of the edges from this rank."""
        return self._encoder.sender.edges()

    def _leaves(self) -> bool:
        if self.leave_at is None or time.monotonic() - self.leave_at < _LEAVE_AFTER_S:
            return False
        if not self._context.store.has(STOP):
            return True
        self.leave_at = None  # Encode what is planned, so that the run can be saved.
        return False

    def _fill(self) -> bool:
        """Claim items until enough are claimed; wait for one if none is.

        Returns:
            False if none is claimed, as there is no other or this rank is to leave.
        """
        while len(self._claims) <= self._ahead:
            claim = self._claim()
            if isinstance(claim, tuple):
                self._claims.append(claim)
                self._encoder.read(*claim)
            elif self._claims:
                break
            elif not self._wait(claim):
                return bool(self._claims)
        return True

    def _wait(self, reason: Wait) -> bool:
        """Wait for an item that can be claimed; False if there is none any more."""
        activity, pause_s = self._context.activity, _SOON_S
        awaited = "a free slab" if reason == "slab" else "a free item"
        with (
            self._events.span("put" if reason == "slab" else "plan"),
            activity.waiting(awaited, reason),
        ):
            while True:
                activity.check()
                if self._context.store.has(self._done) or self._leaves():
                    return False
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LATE_S)
                self._refresh()
                claim = self._claim()
                if isinstance(claim, tuple):
                    break
        self._claims.append(claim)
        self._encoder.read(*claim)
        return True

    def _claim(self) -> _Claim | Wait:
        """Claim the lowest free item, or return what to wait for."""
        if (returns := self._board.returns()) != self._returns:
            self._returns = returns
            self._refresh()
            if self._board.is_gone(self._seat.claimant):
                self._renew()
        is_head = True
        for plan in self._plans:
            row = self._plans.row(plan.step)
            while row is not None and (item := row.next_free()) is not None:
                if not self._has_room(plan, item, is_head=is_head and row.is_published(item)):
                    return "slab"
                taken, row = self._board.claim(plan.step, row, item, self._seat.claimant)
                self._plans.seen(plan.step, row)
                if taken:
                    return plan, item
            is_head = is_head and row is not None and row.is_published()
        self._refresh()
        return "store"

    def _has_room(self, plan: StepPlan, item: int, *, is_head: bool) -> bool:
        sender, parts = self._encoder.sender, self._run_ahead.parts
        if (slabs := self._run_ahead.slabs(plan, sender.slabs)) != sender.slabs:
            sender.reserve(slabs)
        claimed = sum(parts(plan.items[item]) for plan, item in self._claims)
        self._largest = max(self._largest, *map(parts, plan.items))
        kept = 0 if is_head else self._largest
        return sender.free_slabs - claimed - kept >= parts(plan.items[item])

    def _refresh(self) -> None:
        """Look which plans are open, and drop what is kept of the others."""
        for plan in self._plans.refresh():
            # If this rank was stopped, others may have encoded what it has claimed.
            self._claims = deque(claim for claim in self._claims if claim[0] is not plan)
            if plan.kind != "end":
                self._encoder.drop(plan)
            if plan.is_step:
                self._events.begin_action(Action(plan.step, "forget"))
                self._events.end()
                record_memory(self._events, self._context.world.device, step=plan.step)
                self._events.step_ended()

    def _make(self, plan: StepPlan, item: int) -> None:
        """Encode an item, and send its record unless it is another rank's by now."""
        if plan.is_step and plan.step != self._step:
            self._step = plan.step
            self._profiler.begin_step(plan.step)
        self._encoder.version = plan.step
        put = Action(plan.step, "put", "encoder", item, plan.items[item].reader)
        self._delays.pause()
        is_training = plan.kind == "train"
        with nullcontext() if is_training else inference(self._encoder.module.module):
            self._execute(plan, Action(plan.step, "encode", "encoder", item), self._encoder.encode)
        self._execute(plan, put, self._put)

    def _put(self, plan: StepPlan, action: Action) -> None:
        assert action.index is not None
        if self._board.publish(plan.step, action.index, self._seat.claimant):
            self._encoder.put(plan, action)
        else:
            self._encoder.refused(plan, action)
            self._renew()

    def _renew(self) -> None:
        """Go on as another claimant: items of this one were returned, while it was stopped."""
        self._give_back()
        self._seat = self._seats.renew(self._seat)

    def _give_back(self) -> None:
        while self._claims:
            plan, item = self._claims.pop()
            self._board.give_back(plan.step, item, self._seat.claimant)

    def _execute(
        self, plan: StepPlan, action: Action, handler: Callable[[StepPlan, Action], None]
    ) -> None:
        self._events.begin_action(action)
        try:
            with self._profiler.named(action):
                handler(plan, action)
        except Exception as error:
            self._wait_for_readers(plan)
            if isinstance(error, RuntimeError) and (cause := self._explained(action, error)):
                raise cause from error
            raise
        finally:
            self._events.end()

    def _wait_for_readers(self, plan: StepPlan) -> None:
        """Wait until the steps before a plan are done, which an error in it must not end."""
        activity = self._context.activity
        with activity.waiting(f"the steps before {step_name(plan.step)}"):
            while plan.step > (self._plans.step if plan.is_step else self._plans.batch):
                activity.check()
                if activity.given_up or self._context.store.has(self._done):
                    return
                time.sleep(_LATE_S)
                self._plans.refresh()
