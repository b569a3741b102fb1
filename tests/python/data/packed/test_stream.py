"""Streams with a state of their own, and streams that are read again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from python.data.packed.kinds import (
    ROWS,
    STEPS,
    Restarted,
    Resumable,
    Rows,
    Sample,
    batches_of,
    ids,
    loader,
)

from flowtrain.data import PackedLoader
from flowtrain.data.packed import streamed
from flowtrain.packing import PackingError


class IteratorState(Restarted):
    """Like streams of Hugging Face, whose state is that of the last iterator."""

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


class Wrapping(Restarted):
    """A stream whose state is in the object that it wraps."""

    def __init__(self) -> None:
        self.held = Resumable()

    def __iter__(self) -> Iterator[Sample]:
        yield from self.held

    def state_dict(self) -> dict[str, int]:
        return self.held.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.held.load_state_dict(state)


@pytest.mark.parametrize("kind", [IteratorState, Wrapping])
def test_a_dropped_iterator_does_not_change_the_state_of_the_data_set(kind: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "max_tokens": 320, "collate_fn": ids}
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


class SharedState(Restarted):
    """A stream that changes the state object that it was given."""

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
def test_a_resumed_loop_can_be_resumed_again(steps: str) -> None:
    def made() -> PackedLoader:
        return PackedLoader(SharedState(), collate_fn=ids, **STEPS[steps])

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


def test_a_stream_with_a_state_that_cannot_be_copied_is_refused() -> None:
    held = Resumable()
    held.lines = (row for row in ROWS)
    with pytest.raises(PackingError, match=r"dataset \(Resumable\): .*cannot .*num_workers"):
        list(PackedLoader(held, 4, max_tokens=320))


def test_a_stream_that_can_be_read_only_once_is_refused() -> None:
    with pytest.raises(PackingError, match=r"dataset \(generator\): an iterator can be read once"):
        list(PackedLoader((row for row in ROWS), 4, max_tokens=320, collate_fn=ids))


def test_workers_are_sent_no_options_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(reading: Any, **options: Any) -> Any:
        return pickle.loads(pickle.dumps(reading))

    whole = batches_of(loader("restarted", "exact"))
    monkeypatch.setattr(streamed, "DataLoader", sent)
    assert batches_of(loader("restarted", "exact", worker_init_fn=lambda worker: None)) == whole


def test_a_stream_that_is_shorter_than_its_state_is_refused() -> None:
    whole = loader("restarted", "exact")
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


def test_a_stream_whose_waiting_samples_have_changed_is_refused() -> None:
    whole = loader("restarted", "stream")
    next(batches := iter(whole))
    next(batches)
    state = whole.state_dict()
    assert state["place"]["streams"][0]["waiting"]
    rest = PackedLoader(Rows(ROWS[::-1]), collate_fn=ids, ranks=2, rank=0, **STEPS["stream"])
    rest.load_state_dict(state)
    with pytest.raises(PackingError, match=r"tokens, but \d+ when this state was saved"):
        list(rest)


def test_a_stream_in_another_order_without_waiting_samples_is_refused() -> None:
    class Rotating(Restarted):
        times = 0

        def __iter__(self) -> Iterator[Sample]:
            self.times += 1
            yield from ROWS[self.times :] + ROWS[: self.times]

    whole = PackedLoader(Rotating(), 4, max_tokens=320, collate_fn=ids)
    next(batches := iter(whole))
    next(batches)
    state = whole.state_dict()
    assert not state["place"]["streams"][0]["waiting"]
    rest = PackedLoader(Rotating(), 4, max_tokens=320, collate_fn=ids)
    rest.load_state_dict(state)
    next(iter(rest))
    rest = PackedLoader(whole.dataset, 4, max_tokens=320, collate_fn=ids)
    rest.load_state_dict(state)
    with pytest.raises(PackingError, match=r"samples 0 to 7: their lengths have checksum"):
        next(iter(rest))


def test_set_epoch_of_a_stream_is_called() -> None:
    class FromEpoch(Restarted):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[Sample]:
            yield from ROWS[self.epoch :]

    made = PackedLoader(FromEpoch(), 103, max_tokens=10_000, collate_fn=ids)
    assert [batch[0] for _ in range(3) for batch in batches_of(made)] == [0, 1, 2]
