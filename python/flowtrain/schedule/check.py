"""Whether the ranks can execute a program, and how much they keep at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from flowtrain.config.layout import ModuleName
from flowtrain.schedule.action import Action, Kind, ScheduleError
from flowtrain.schedule.program import Program


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most that a rank may keep at once; None is no limit."""

    items: int | None = None
    """Items whose graphs it keeps, from their encoding to their backward."""
    slots: int | None = None
    """Slots whose graphs it keeps, from their forward to their backward."""
    records: int | None = None
    """Records to other ranks that these have not got: at this limit of the pool a `put` waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HighWater:
    """The most that each rank keeps at once, as `Limits` counts it, by the name of the rank."""

    items: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)


def check(program: Program, limits: Limits | None = None, *, late: bool = False) -> HighWater:
    """Execute a program in thought, each rank as far as the others let it.

    Args:
        program: The actions of all ranks; steps before the first of them are complete.
        limits: What a rank may keep.
        late: Whether ranks that hold the backbone alone update with the encoder's report of
            the step before, as in `bounded`.

    Returns:
        What the ranks keep at once.

    Raises:
        ScheduleError: An action lacks what it needs, comes twice or too late, or exceeds a limit;
            or ranks wait for each other. The message names rank, action and cause.
    """
    return _Execution(program, limits or Limits(), late=late).run()


_CLOSE: tuple[Kind, ...] = ("norm", "exchange", "apply")
_BACKWARD: dict[ModuleName, Kind] = {"backbone": "backward", "encoder": "encoder_backward"}


class _Rank:
    """What one rank has done."""

    def __init__(self, label: str, actions: tuple[Action, ...]) -> None:
        self.label = label
        self.world, _, number = label.rpartition(".")
        self.number = int(number) if number.isdecimal() else None
        self.todo = list(reversed(actions))
        self.steps = sorted({action.step for action in actions})
        self.updates = {action.step for action in actions if action.kind == "norm"}
        self.trains_encoder = any(action.kind == "encoder_backward" for action in actions)
        self.unread = 0
        self.items: set[tuple[int, int | None]] = set()
        self.slots: set[tuple[int, int | None]] = set()
        self._done: set[tuple[int, Kind, ModuleName | None, int | None]] = set()
        self._ended: dict[tuple[int, ModuleName], str] = {}

    def holds(self, module: ModuleName) -> bool:
        return self.world in (module, "colocated")

    def did(
        self, step: int, kind: Kind, module: ModuleName | None = None, index: int | None = None
    ) -> bool:
        return (step, kind, module, index) in self._done

    def fault(self, action: Action, cause: str) -> ScheduleError:
        return ScheduleError(f"{self.label}, '{action}': {cause}")

    def do(self, action: Action) -> None:
        """Take an action as done, if the actions of this rank before it allow it."""
        for cause in self._faults(action):
            raise self.fault(action, cause)
        self._done.add((action.step, action.kind, action.module, action.index))
        if action.module is not None and (action.last or action.kind == "reduce"):
            self._ended[action.step, action.module] = f"'{action}'"
        place = action.step, action.index
        if action.kind == "encode" and self.trains_encoder:
            self.items.add(place)
        elif action.kind == "forward" and self.updates:
            self.slots.add(place)
        elif action.kind == "encoder_backward":
            self.items.discard(place)
        elif action.kind == "backward":
            self.slots.discard(place)

    def _faults(self, action: Action) -> Iterator[str]:
        step, kind, module, index = action.step, action.kind, action.module, action.index
        if self.did(step, kind, module, index):
            yield "it comes a second time"
        if self.did(step, "forget"):
            yield f"the rank has forgotten step {step}"
        if module is not None and not self.holds(module):
            yield f"the rank does not hold the {module}"
        if kind == "put" and module == "encoder" and not self.did(step, "encode", module, index):
            yield f"item {index} was not encoded before"
        if kind == "put" and module == "backbone" and not self.did(step, "get", module, index):
            yield f"there is no gradient of item {index}, whose record was not got"
        if kind == "backward" and not self.did(step, "forward", module, index):
            yield f"the forward of slot {index} has not run"
        if kind == "encoder_backward" and not self.did(step, "encode", module, index):
            yield f"item {index} was not encoded before"
        # An item that was not put is a dummy, to which no gradient returns.
        is_put = self.did(step, "put", module, index)
        if kind == "encoder_backward" and is_put and not self.did(step, "get", module, index):
            yield f"the gradient of item {index} was not got before"
        if module is not None and kind == _BACKWARD[module] and (step, module) in self._ended:
            yield f"the sums over the ranks have started with {self._ended[step, module]}"
        reduced = not self.holds("backbone") or self.did(step, "reduce", "backbone")
        if action.last and module == "encoder" and not reduced:
            yield "the sums of the encoder would start before those of the backbone"
        if kind == "norm" and not reduced:
            yield "the gradients of the backbone are not reduced"
        if kind in _CLOSE[1:]:
            before = _CLOSE[_CLOSE.index(kind) - 1]
            if not self.did(step, before):
                yield f"it needs {before} before it"
        if kind == "apply" and any(s < step and not self.did(s, "apply") for s in self.updates):
            yield "a step before it is not applied"
        if kind == "forget" and step in self.updates and not self.did(step, "apply"):
            yield "the step is not applied"


class _Execution:
    """All ranks, and the records between them."""

    def __init__(self, program: Program, limits: Limits, *, late: bool) -> None:
        self._ranks = [_Rank(label, actions) for label, actions in program.ranks.items()]
        self._limits = limits
        self._late = late
        self._first = min((rank.steps[0] for rank in self._ranks if rank.steps), default=0)
        self._records: dict[tuple[int, ModuleName, int], tuple[_Rank, _Rank, Action]] = {}
        self._high = HighWater()

    def run(self) -> HighWater:
        moved = True
        while moved:
            moved = False
            for rank in self._ranks:
                while rank.todo and self._awaited(rank, rank.todo[-1]) is None:
                    self._do(rank, rank.todo.pop())
                    moved = True
        if any(rank.todo for rank in self._ranks):
            waiting = [
                f"{rank.label}, '{rank.todo[-1]}' waits for {self._awaited(rank, rank.todo[-1])}"
                for rank in self._ranks
                if rank.todo
            ]
            raise ScheduleError(f"no rank can go on: {'; '.join(waiting)}")
        for producer, _, action in self._records.values():
            raise producer.fault(action, "nobody gets this record")
        for rank in self._ranks:
            for unit, kept in (("item", rank.items), ("slot", rank.slots)):
                for step, index in kept:
                    raise ScheduleError(f"{rank.label}, step {step}: no backward of {unit} {index}")
        return self._high

    def _peer(self, rank: _Rank, action: Action) -> _Rank:
        other: ModuleName = "backbone" if action.module == "encoder" else "encoder"
        for peer in self._ranks:
            if peer.holds(other) and peer.number == action.peer:
                return peer
        raise rank.fault(action, f"there is no rank {action.peer} that holds the {other}")

    def _awaited(self, rank: _Rank, action: Action) -> str | None:
        """What an action waits for, or None if it can be done."""
        step, limit = action.step, self._limits.records
        is_full = limit is not None and rank.unread >= limit
        if action.kind == "get" and action.record not in self._records:
            return f"{self._peer(rank, action).label} to put it"
        if action.kind == "put" and is_full and self._peer(rank, action) is not rank:
            return f"room in the pool (unread records: {limit})"
        if action.kind == "norm":
            for module in ("encoder", "backbone"):
                for other in self._ranks:
                    if (
                        rank.did(step, "reduce", module)
                        and other.world == rank.world
                        and not other.did(step, "reduce", module)
                    ):
                        return f"{other.label} to reduce the {module}"
        if action.kind == "exchange":
            for other in self._ranks:
                is_late = self._late and rank.world == "backbone" != other.world
                needed = step - 1 if is_late and step > self._first else step
                if other.updates and not other.did(needed, "norm"):
                    return f"{other.label} to report step {needed}"
        return None

    def _do(self, rank: _Rank, action: Action) -> None:
        rank.do(action)
        if action.kind == "put":
            reader = self._peer(rank, action)
            self._records[action.record] = rank, reader, action
            rank.unread += reader is not rank
            self._keep("records", rank, action, rank.unread)
        elif action.kind == "get":
            producer, reader, put = self._records.pop(action.record)
            if producer is not self._peer(rank, action):
                raise rank.fault(action, f"{producer.label} puts this record")
            if reader is not rank:
                raise rank.fault(action, f"{producer.label}, '{put}', puts it to another rank")
            producer.unread -= reader is not producer
        self._keep("items", rank, action, len(rank.items))
        self._keep("slots", rank, action, len(rank.slots))

    def _keep(self, what: str, rank: _Rank, action: Action, count: int) -> None:
        limit = getattr(self._limits, what)
        if limit is not None and count > limit:
            raise rank.fault(action, f"it would keep {count} {what}, of at most {limit}")
        high: Counter[str] = getattr(self._high, what)
        high[rank.label] = max(high[rank.label], count)
