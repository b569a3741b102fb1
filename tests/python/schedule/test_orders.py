from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_plans import COLOCATED, DECOUPLED, WITH_DUMMY, program

from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import Meets
from flowtrain.schedule import Action, Program, ScheduleError, Template, check

GOLDEN = Path(__file__).parent / "golden"

ORDERS = {
    "colocated": (COLOCATED, Template(), True, 1),
    "colocated-frozen": (COLOCATED, Template(), False, 1),
    "colocated-chunks": (COLOCATED, Template(chunk_slots=1), True, 1),
    "colocated-bounded": (COLOCATED, Template(staleness=1), True, 2),
    "decoupled": (DECOUPLED, Template(), True, 1),
    "decoupled-frozen": (
        DECOUPLED,
        Template(evaluates=lambda step: step == 1, saves=lambda step: step == 1),
        False,
        2,
    ),
    "decoupled-bounded": (DECOUPLED, Template(staleness=2), True, 3),
}


@pytest.mark.parametrize("name", ORDERS)
def test_each_layout_and_mode_has_the_order_of_its_golden_text(name: str) -> None:
    layout, template, trains, steps = ORDERS[name]
    made = program(layout, template, trains_encoder=trains, steps=steps)
    check(made, late=bool(template.staleness))
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(str(made))
    written = Program.parse(golden.read_text())
    assert list(written.diff(made)) == []
    assert written == made


def test_a_chunk_keeps_the_items_of_its_slots_alone() -> None:
    whole = check(program(COLOCATED, Template()))
    chunks = check(program(COLOCATED, Template(chunk_slots=1)))
    assert whole.items == {"colocated.0": 2, "colocated.1": 2}
    assert chunks.items == {"colocated.0": 1, "colocated.1": 1}
    assert check(program(COLOCATED, Template(chunk_slots=2))) == whole


def test_a_run_ahead_keeps_the_items_of_its_steps() -> None:
    kept = check(program(DECOUPLED, Template(staleness=2), steps=5), late=True)
    assert kept.items["encoder.0"] == 3 * 4


@pytest.mark.parametrize("layout", [COLOCATED, DECOUPLED], ids=str)
def test_the_end_of_the_plans_ends_every_order(layout: RankLayout) -> None:
    for staleness in range(4):
        made = program(layout, Template(staleness=staleness), steps=2)
        check(made, late=True)
        assert {action.step for own in made.ranks.values() for action in own} == {0, 1}


@pytest.mark.parametrize("meets", ["once", "always"])
def test_ranks_that_meet_begin_and_end_in_the_same_chunks(meets: Meets) -> None:
    # The second rank has documents in the first slot alone.
    made = program(COLOCATED, Template(chunk_slots=1), meets=meets, items=WITH_DUMMY)
    check(made)
    for own in made.ranks.values():
        backwards = [a for a in own if a.kind == "backward"]
        assert [a.index for a in backwards if a.last] == [1]
        assert backwards[0].index == 0
        assert sum(a.last for a in own if a.kind == "encoder_backward") == 1


def test_ranks_that_meet_run_empty_slots_and_dummies() -> None:
    made = program(COLOCATED, Template(chunk_slots=1), meets="always", items=WITH_DUMMY)
    check(made)
    slots, passes = (
        {
            label: [(a.index, a.last) for a in own if a.kind == kind]
            for label, own in made.ranks.items()
        }
        for kind in ("backward", "encoder_backward")
    )
    # Slot 1 of the second rank is empty.
    assert slots == {key: [(0, False), (1, True)] for key in made.ranks}
    assert passes == {
        "colocated.0": [(0, False), (2, True)],
        "colocated.1": [(1, False), (3, True)],
    }
    records = {a.index for own in made.ranks.values() for a in own if a.kind in ("put", "get")}
    assert records == {0, 1, 2}
    once = program(COLOCATED, Template(), meets="once", items=WITH_DUMMY)
    assert [a.index for a in once.ranks["colocated.1"] if a.kind == "forward"] == [0]


@pytest.mark.parametrize(
    "line",
    [
        "0 encode encoder item 3",
        "12 put backbone item 0 to 1",
        "12 get backbone item 0 from 1",
        "4 backward backbone slot 2 last",
        "4 reduce backbone",
        "4 exchange",
    ],
)
def test_an_action_is_its_text(line: str) -> None:
    assert str(Action.parse(line)) == line


@pytest.mark.parametrize(
    "line",
    [
        "encode encoder item 3",
        "0 encode encoder item",
        "0 bake encoder item 3",
        "0 put encoder item 3 from 1",
        "0 forward backbone item 3",
        "0 exchange please",
    ],
)
def test_a_line_that_is_no_action_is_named_with_its_number(line: str) -> None:
    with pytest.raises(ScheduleError, match=f"^line 2: '{line}' is no action: write STEP KIND"):
        Program.parse(f"encoder.0:\n  {line}\n")
