"""Streams with a state, whose place is theirs, and streams that are read again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from python.data.packed.kinds import (
    ROWS,
    STEPS,
    Again,
    GoesOn,
    Rows,
    Sample,
    batches_of,
    ids,
    loader,
)

from flowtrain.data import PackedLoader
from flowtrain.data.packed import streamed
from flowtrain.packing import PackingError


class OfItsIterator(Again):
    """A stream as of Hugging Face: a state is the last iterator's, and is loaded for the next."""

    def __init__(self) -> None:
        self.start = self.state = None

    def __iter__(self) -> Iterator[Sample]:
        self.state = {"at": 0} if self.start is None else dict(self.start)
        while self.state["at"] < len(ROWS):
            self.state["at"] += 1
            yield ROWS[self.state["at"] - 1]

    def state_dict(self) -> Any:
        return None if self.state is None else dict(self.state)

    def load_state_dict(self, state: Any) -> None:
        self.start = state


class Around(Again):
    """A stream whose state is within what it holds."""

    def __init__(self) -> None:
        self.held = GoesOn()

    def __iter__(self) -> Iterator[Sample]:
        yield from self.held

    def state_dict(self) -> dict[str, int]:
        return self.held.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.held.load_state_dict(state)


@pytest.mark.parametrize("kind", [OfItsIterator, Around])
def test_a_dropped_iterator_moves_no_place_of_the_data_set(kind: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "token_cap": 320, "collate_fn": ids}
    whole = batches_of(PackedLoader(kind(), **options))
    read = kind()
    list(read)
    for made in (PackedLoader(kind(), **options), PackedLoader(read, **options)):
        for _ in range(2):
            assert next(iter(made))[0] == whole[0]
        state = made.state_dict()
        assert batches_of(made) == whole
        made.load_state_dict(state)
        assert batches_of(made) == whole[1:]
        made.set_epoch(0)
        assert batches_of(made) == whole


class InItsState(Again):
    """A stream that goes on in the very state that it was given."""

    def __init__(self) -> None:
        self.state = {"at": 0}

    def __iter__(self) -> Iterator[Sample]:
        while self.state["at"] < len(ROWS):
            self.state["at"] += 1
            yield ROWS[self.state["at"] - 1]

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


@pytest.mark.parametrize("steps", ["exact", "stream"])
def test_a_loop_that_went_on_goes_on_again(steps: str) -> None:
    def made() -> PackedLoader:
        return PackedLoader(InItsState(), collate_fn=ids, **STEPS[steps])

    first = made()
    whole, states = [], []
    for batch, _ in first:
        whole.append(batch)
        states.append(first.state_dict())
    for place, state in enumerate(states[:-1], start=1):
        second, third = made(), made()
        second.load_state_dict(state)
        next(iter(second))
        third.load_state_dict(second.state_dict())
        assert batches_of(second) == whole[place:]
        assert batches_of(third) == whole[place + 1 :]


def test_a_stream_that_keeps_its_place_and_cannot_be_copied_is_refused() -> None:
    held = GoesOn()
    held.lines = (row for row in ROWS)
    with pytest.raises(PackingError, match=r"dataset \(GoesOn\): .*cannot .*num_workers"):
        list(PackedLoader(held, 4, token_cap=320))


def test_a_stream_that_can_be_read_once_is_refused() -> None:
    with pytest.raises(PackingError, match=r"dataset \(generator\): an iterator is read once"):
        list(PackedLoader((row for row in ROWS), 4, token_cap=320, collate_fn=ids))


def test_workers_are_sent_no_options_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(reading: Any, **options: Any) -> Any:
        return pickle.loads(pickle.dumps(reading))

    whole = batches_of(loader("again", "exact"))
    monkeypatch.setattr(streamed, "DataLoader", sent)
    assert batches_of(loader("again", "exact", worker_init_fn=lambda worker: None)) == whole


def test_a_stream_that_is_shorter_than_its_state_says_so() -> None:
    whole = loader("again", "exact")
    list(whole)
    batches = iter(whole)
    for _ in range(12):
        next(batches)
    rest = PackedLoader(
        Rows(ROWS[:10]), targets="labels", ranks=2, rank=0, collate_fn=ids, **STEPS["exact"]
    )
    rest.load_state_dict(whole.state_dict())
    with pytest.raises(PackingError, match="ended after 10 samples"):
        list(rest)


def test_a_stream_that_is_another_one_when_it_is_read_again_says_so() -> None:
    whole = loader("again", "stream")
    next(batches := iter(whole))
    next(batches)
    state = whole.state_dict()
    assert state["place"]["streams"][0]["waiting"]
    rest = PackedLoader(Rows(ROWS[::-1]), collate_fn=ids, ranks=2, rank=0, **STEPS["stream"])
    rest.load_state_dict(state)
    with pytest.raises(PackingError, match=r"tokens, and \d+ when this state was saved"):
        list(rest)


def test_a_stream_that_comes_in_another_order_with_nothing_waiting_says_so() -> None:
    class Turning(Again):
        times = 0

        def __iter__(self) -> Iterator[Sample]:
            self.times += 1
            yield from ROWS[self.times :] + ROWS[: self.times]

    whole = PackedLoader(Turning(), 4, token_cap=320, collate_fn=ids)
    next(batches := iter(whole))
    next(batches)
    state = whole.state_dict()
    assert not state["place"]["streams"][0]["waiting"]
    rest = PackedLoader(Turning(), 4, token_cap=320, collate_fn=ids)
    rest.load_state_dict(state)
    next(iter(rest))
    rest = PackedLoader(whole.dataset, 4, token_cap=320, collate_fn=ids)
    rest.load_state_dict(state)
    with pytest.raises(PackingError, match=r"samples 0 to 7: their lengths have checksum"):
        next(iter(rest))


def test_a_stream_is_told_its_epoch() -> None:
    class Turned(Again):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[Sample]:
            yield from ROWS[self.epoch :]

    made = PackedLoader(Turned(), 103, token_cap=10_000, collate_fn=ids)
    assert [batch[0] for _ in range(3) for batch in batches_of(made)] == [0, 1, 2]
