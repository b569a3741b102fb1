"""The board of a job: items are taken once, returned, and refused to late twins."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore

from flowtrain.steps import FIRST_EVALUATION, EncoderItem, StepPlan
from flowtrain.train.control.board import Board
from flowtrain.train.control.seats import Seats
from flowtrain.train.control.store import JobStore
from flowtrain.train.planning.plans import plan_key
from flowtrain.train.ranks.open_plans import OpenPlans


@pytest.fixture
def connect() -> Callable[[], JobStore]:
    """Returns connections to one store."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: JobStore(f"127.0.0.1:{server.port}", "test", timeout_s=10)


def plan_of(step: int, items: int = 2, kind: str = "train") -> StepPlan:
    made = [
        EncoderItem(index=i, encoder=0, reader=0, slot=0, row=i, num_rows=1, images=())
        for i in range(items)
    ]
    return StepPlan(step=step, kind=kind, items=tuple(made))  # type: ignore[arg-type]


def publish(store: JobStore, *plans: StepPlan) -> None:
    for plan in plans:
        Board(store, first=0).open(plan)
        store.put_text(plan_key(plan.step), plan.to_json())


def test_each_item_is_taken_by_one_claimant(connect: Callable[[], JobStore]) -> None:
    Board(connect(), first=0).open(plan_of(0, items=60))

    def take(claimant: int) -> list[int]:
        board, taken = Board(connect(), first=0), []
        row = board.row(0)
        while row is not None and (item := row.next_free()) is not None:
            is_taken, row = board.claim(0, row, item, claimant)
            if is_taken:
                taken.append(item)
                assert board.publish(0, item, claimant)
        return taken

    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(take, range(1, 5)))
    assert Counter(item for own in taken for item in own) == Counter(range(60))


def test_a_look_for_a_plan_does_not_end_the_waits_of_readers(
    connect: Callable[[], JobStore],
) -> None:
    key, store, reader = plan_key(0), connect(), connect()
    with ThreadPoolExecutor(1) as thread:
        wait = thread.submit(reader.get_text, key, writer="the planner")
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            assert store.peek(key) is None
        store.put_text(key, plan_of(0).to_json())
        assert StepPlan.from_json(wait.result()).step == 0


def test_a_late_twin_is_refused_and_a_record_that_is_lost_is_made_again(
    connect: Callable[[], JobStore],
) -> None:
    board = Board(connect(), first=0)
    board.open(plan_of(0))
    for item in (0, 1):
        row = board.row(0)
        assert row is not None and board.claim(0, row, item, 7)[0]
    assert board.publish(0, 0, 7)
    before = board.returns()
    assert board.gone_publisher(0, 0) is None
    # What it has published stays published.
    assert board.reap(7) == 1
    assert board.returns() != before
    row = board.row(0)
    assert row is not None and (row.words[0], row.next_free()) == ("published:7", 1)
    assert board.claim(0, row, 1, 8)[0]
    assert not board.publish(0, 1, 7)
    assert board.publish(0, 1, 8)
    # Only the reader knows that a record is not readable.
    assert board.gone_publisher(0, 0) == 7
    board.reissue(0, 0, 7)
    row = board.row(0)
    assert row is not None and row.next_free() == 0
    # A row that is done is not brought back.
    board.close(plan_of(0))
    assert not board.publish(0, 1, 8)
    assert board.claim(0, row, 0, 8) == (False, None)
    assert board.row(0) is None


def test_a_rank_that_joins_begins_where_the_readers_are(connect: Callable[[], JobStore]) -> None:
    store = connect()
    board = Board(store, first=3)
    batch = FIRST_EVALUATION
    # Evaluations follow steps 4 and 6.
    steps = [plan_of(step) for step in range(3, 8)]
    batches = [
        *(plan_of(batch, kind="eval"), plan_of(batch + 1, items=0, kind="end")),
        *(plan_of(batch + 2, kind="eval"), plan_of(batch + 3, kind="answer")),
    ]
    publish(store, *steps, *batches)

    def joined() -> list[int]:
        plans = OpenPlans(store, board, [4, 6])
        return [plan.step for plan in plans]

    # Behind the last batch the end of the evaluation is not known yet.
    assert joined() == [3, 4, batch, 5, 6, batch + 2, batch + 3]
    plans = OpenPlans(store, board, [4, 6])
    assert list(plans)
    for done in (*steps[:1], *batches[:2]):
        board.close(done)
        store.delete(plan_key(done.step))
    # The readers are in step 4, behind its evaluation.
    assert joined() == [4, 5, 6, batch + 2, batch + 3]
    assert [plan.step for plan in plans.refresh()] == [3, batch, batch + 1]
    assert next(iter(plans)).step == plans.step == 4
    publish(store, plan_of(batch + 4, items=0, kind="end"))
    assert joined() == [4, 5, 6, batch + 2, batch + 3, 7]


def test_names_are_given_once_and_again(connect: Callable[[], JobStore]) -> None:
    seats = Seats(connect())
    seats.make(2)
    first = seats.take(0)
    third = seats.take(seats.reserve().rank)
    assert [seat.label for seat in seats.all()] == ["encoder.0", "encoder.1", "encoder.2"]
    assert (third.rank, third.claimant != first.claimant) == (2, True)
    with pytest.raises(ValueError, match=r"encoder\.0 has joined already, with process"):
        seats.take(0)
    ready = seats.ready(first)
    seats.free(first)  # It has changed.
    assert ready in seats.all()
    seats.free(ready)
    assert seats.reserve().rank == 0
