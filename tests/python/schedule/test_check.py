"""`check` refuses schedules that ranks could not execute, with rank, action and cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from small_plans import COLOCATED, DECOUPLED, program

from flowtrain.config.layout import RankLayout
from flowtrain.schedule import Action, Limits, Program, ScheduleError, Template, check

Fault = Callable[[dict[str, list[Action]]], None]


def move(label: str, line: str, *, before: str) -> Fault:
    """Move an action of a rank in front of another one."""

    def fault(ranks: dict[str, list[Action]]) -> None:
        actions = ranks[label]
        actions.remove(Action.parse(line))
        actions.insert(actions.index(Action.parse(before)), Action.parse(line))

    return fault


def drop(label: str, line: str) -> Fault:
    return lambda ranks: ranks[label].remove(Action.parse(line))


def add(label: str, line: str, *, before: str) -> Fault:
    def fault(ranks: dict[str, list[Action]]) -> None:
        actions = ranks[label]
        actions.insert(actions.index(Action.parse(before)), Action.parse(line))

    return fault


def change(label: str, line: str, other: str) -> Fault:
    def fault(ranks: dict[str, list[Action]]) -> None:
        actions = ranks[label]
        actions[actions.index(Action.parse(line))] = Action.parse(other)

    return fault


def both(*faults: Fault) -> Fault:
    def fault(ranks: dict[str, list[Action]]) -> None:
        for each in faults:
            each(ranks)

    return fault


# A get before its put: the rank waits for itself.
EARLY_GET = move("colocated.0", "0 get backbone item 0 from 0", before="0 encode encoder item 0")
# Each rank wants the other one's record before it puts its own.
CYCLE = both(
    add("colocated.0", "0 get backbone item 3 from 1", before="0 encode encoder item 0"),
    add("colocated.1", "0 get encoder item 1 from 1", before="0 encode encoder item 1"),
)

PLANTED: dict[str, tuple[Fault, str]] = {
    "a get before its put": (
        EARLY_GET,
        "no rank can go on: colocated.0, '0 get backbone item 0 from 0' waits for colocated.0 to "
        "put it; colocated.1, '0 get encoder item 3 from 0' waits for colocated.0 to put it",
    ),
    "a cycle over ranks": (
        CYCLE,
        "no rank can go on: colocated.0, '0 get backbone item 3 from 1' waits for colocated.1 to "
        "put it; colocated.1, '0 get encoder item 1 from 1' waits for colocated.1 to put it",
    ),
    "two closes": (
        add("colocated.1", "0 apply", before="0 forget"),
        "colocated.1, '0 apply': it comes a second time",
    ),
    "a slot twice": (
        add("colocated.0", "0 forward backbone slot 0", before="0 reduce backbone"),
        "colocated.0, '0 forward backbone slot 0': it comes a second time",
    ),
    "a backward without its forward": (
        drop("colocated.0", "0 forward backbone slot 1"),
        "colocated.0, '0 backward backbone slot 1 last': the forward of slot 1 has not run",
    ),
    "a put of an item that was not encoded": (
        drop("colocated.1", "0 encode encoder item 3"),
        "colocated.1, '0 put encoder item 3 to 0': item 3 was not encoded before",
    ),
    "a backward before its gradient": (
        move(
            "colocated.1",
            "0 encoder_backward encoder item 1",
            before="0 get encoder item 1 from 1",
        ),
        "colocated.1, '0 encoder_backward encoder item 1': the gradient of item 1 was not got "
        "before",
    ),
    "a record for another rank": (
        change("colocated.1", "0 put encoder item 3 to 0", "0 put encoder item 3 to 1"),
        "colocated.0, '0 get backbone item 3 from 1': colocated.1, '0 put encoder item 3 to 1', "
        "puts it to another rank",
    ),
    "a record that nobody gets": (
        both(
            add("colocated.0", "0 encode encoder item 9", before="0 reduce encoder"),
            add("colocated.0", "0 put encoder item 9 to 1", before="0 reduce encoder"),
        ),
        "colocated.0, '0 put encoder item 9 to 1': nobody gets this record",
    ),
    "an item without a backward": (
        both(
            drop("colocated.0", "0 encoder_backward encoder item 0"),
            drop("colocated.0", "0 get encoder item 0 from 0"),
            drop("colocated.0", "0 put backbone item 0 to 0"),
        ),
        "colocated.0, step 0: no backward of item 0",
    ),
    "a rank that does not reduce": (
        drop("colocated.1", "0 reduce encoder"),
        "no rank can go on: colocated.0, '0 norm' waits for colocated.1 to reduce the encoder; "
        "colocated.1, '0 exchange' waits for colocated.0 to report step 0",
    ),
    "sums before the last backward": (
        move("colocated.0", "0 reduce backbone", before="0 backward backbone slot 1 last"),
        "colocated.0, '0 backward backbone slot 1 last': the sums over the ranks have started "
        "with '0 reduce backbone'",
    ),
    "sums of the encoder first": (
        move("colocated.0", "0 reduce backbone", before="0 reduce encoder"),
        "colocated.0, '0 encoder_backward encoder item 2 last': the sums of the encoder would "
        "start before those of the backbone",
    ),
    "an update without agreement": (
        drop("colocated.0", "0 exchange"),
        "colocated.0, '0 apply': it needs exchange before it",
    ),
    "an action of a step that is over": (
        move("colocated.0", "0 forget", before="0 norm"),
        "colocated.0, '0 forget': the step is not applied",
    ),
    "a peer that is not there": (
        change("colocated.1", "0 put encoder item 3 to 0", "0 put encoder item 3 to 7"),
        "colocated.1, '0 put encoder item 3 to 7': there is no rank 7 that holds the backbone",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_with_rank_action_and_cause(name: str) -> None:
    fault, message = PLANTED[name]
    ranks = {label: list(own) for label, own in program(COLOCATED, Template()).ranks.items()}
    fault(ranks)
    with pytest.raises(ScheduleError) as error:
        check(Program({label: tuple(own) for label, own in ranks.items()}))
    assert str(error.value) == message


def test_memory_above_a_limit_is_named() -> None:
    made = program(COLOCATED, Template())
    with pytest.raises(ScheduleError) as error:
        check(made, Limits(items=1))
    assert str(error.value) == (
        "colocated.0, '0 encode encoder item 2': it would keep 2 items, of at most 1"
    )
    check(program(COLOCATED, Template(chunk_slots=1)), Limits(items=1, slots=1))


def test_ranks_that_wait_for_room_in_the_pool_are_a_deadlock_unless_readers_free_it() -> None:
    # A frozen encoder waits for its readers. One that trains takes no gradient before it has sent
    # all records of a step, so that a reader whose gradients fill the pool reads no further.
    frozen = program(DECOUPLED, Template(), trains_encoder=False, steps=3)
    assert check(frozen, Limits(records=1)).records["encoder.0"] == 1
    layout = RankLayout.decoupled(1, 1)
    of_one = [(0, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 1)]
    strict = program(layout, Template(), items=of_one)
    assert check(strict, Limits(records=2)).records == {"encoder.0": 2, "backbone.0": 2}
    with pytest.raises(ScheduleError) as error:
        check(strict, Limits(records=1))
    assert str(error.value) == (
        "no rank can go on: backbone.0, '0 put backbone item 1 to 0' waits for room in the pool "
        "(unread records: 1); encoder.0, '0 put encoder item 3 to 0' waits for room in the pool "
        "(unread records: 1)"
    )
