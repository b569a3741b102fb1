"""Resuming: states, epochs, dropped iterators, other numbers of ranks."""

from __future__ import annotations

import json

import numpy
import pytest
from python.data.packed.kinds import KINDS, ROWS, STEPS, batches_of, loader

from flowtrain.packing import PackingError


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_resumes_from_any_batch(kind: str, steps: str, workers: int) -> None:
    options = {"num_workers": workers}
    whole = loader(kind, steps, **options)
    states, batches = [json.dumps(whole.state_dict())], []
    for _ in range(2):
        for batch, at in whole:
            batches.append(batch)
            states.append(json.dumps(whole.state_dict()))
            assert json.dumps(whole.state_dict(at)) == states[-1]
    # Every place; with workers, which start slowly, the ends and some places between.
    middle, end = len(states) // 2, len(states) - 1
    places = range(len(states)) if workers == 0 else [1, 2, 5, middle - 3, middle + 1, end]
    for place in places:
        rest = loader(kind, steps, **options)
        rest.load_state_dict(json.loads(states[place]))
        begun = rest.state_dict()["place"]["epoch"]
        assert [b for _ in range(begun, 2) for b in batches_of(rest)] == batches[place:], place


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_microbatch_keeps_weight_and_state_of_its_batch_behind_a_prefetcher(
    kind: str, workers: int
) -> None:
    whole = [(batch, at.mean_weight) for batch, at in loader(kind, "exact", num_workers=workers)]
    made = loader(kind, "exact", num_workers=workers)
    ahead = list(made)
    assert [(batch, at.mean_weight) for batch, at in ahead] == whole
    rest = loader(kind, "exact", num_workers=workers)
    rest.load_state_dict(made.state_dict(ahead[2][1]))
    assert batches_of(rest) == [batch for batch, _ in whole[3:]]


def test_set_epoch_sets_the_order_and_keeps_a_place_within_the_epoch() -> None:
    made = loader("indexed", "exact")
    zero, one = batches_of(made), batches_of(made)
    made.set_epoch(0)
    assert batches_of(made) == zero
    made.set_epoch(1)
    running = iter(made)
    assert next(running)[0] == one[0]
    state = made.state_dict()
    made = loader("indexed", "exact")
    made.load_state_dict(state)
    made.set_epoch(1)
    assert batches_of(made) == one[1:]
    with pytest.raises(PackingError, match="epoch=-1: it must be at least 0"):
        made.set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_iterator_does_not_change_the_epoch(kind: str, workers: int) -> None:
    made = loader(kind, "exact", num_workers=workers)
    first = next(iter(made))[0]
    whole = batches_of(made)
    assert whole[0] == first
    for batch, at in made:
        assert at.epoch == 1
        if kind != "indexed":
            assert batch == first
        break
    state = made.state_dict()
    assert [at.epoch for _, at in made] == [1] * len(whole)
    made.load_state_dict(state)
    next(iter(made))
    _, at = next(iter(made))
    assert (at.epoch, at.index) == (1, 1)


def test_the_next_epoch_begins_after_the_last_batch() -> None:
    made = loader("indexed", "exact")
    for epoch_ in range(2):
        assert {at.epoch for _, (_, at) in zip(range(len(made)), made, strict=False)} == {epoch_}


def test_a_second_iterator_ends_the_first() -> None:
    made = loader("indexed", "exact")
    first, second = iter(made), iter(made)
    batch = next(first)[0]
    assert next(second)[0] == batch
    with pytest.raises(RuntimeError, match="ended by a newer one"):
        next(first)
    assert next(second)[1].index == 1
    made.set_epoch(3)
    with pytest.raises(RuntimeError, match="set_epoch"):
        next(second)
    assert made.state_dict()["place"]["epoch"] == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_step_that_differs_from_the_one_that_had_begun_is_refused(workers: int) -> None:
    made = loader("restarted", "exact", num_workers=workers)
    states = [made.state_dict(at) for _, (_, at) in zip(range(2), made, strict=False)]
    # A state does not hold the sizes that a function returns.
    begun, rest = (
        loader("restarted", "exact", num_workers=workers, cost=lambda sample: sample["id"] + 1.0)
        for _ in states
    )
    begun.load_state_dict(states[0])
    with pytest.raises(PackingError, match="step 0 of epoch 0: it had begun when"):
        list(begun)
    rest.load_state_dict(states[1])
    assert next(iter(rest))[1].step == 1


def test_numpy_arguments_give_a_state_of_plain_numbers() -> None:
    changes = {"seed": 3, "batch_size": 4, "max_tokens": 320, "num_workers": 0}
    made = loader("indexed", "exact", **{name: numpy.int64(n) for name, n in changes.items()})
    made.set_epoch(numpy.int64(1))
    assert json.loads(json.dumps(made.state_dict()))["place"]["epoch"] == 1


def test_a_state_of_another_loader_is_refused() -> None:
    for kind in KINDS:  # The random numbers of a stream's workers depend on the seed, too.
        with pytest.raises(PackingError, match="seed=3, but this loader has 4"):
            state = loader(kind, "exact", seed=3).state_dict()
            loader(kind, "exact", seed=4).load_state_dict(state)
    state = loader("indexed", "exact").state_dict()
    with pytest.raises(PackingError, match="tokens=.*, but this loader has"):
        loader("indexed", "exact", length="id", oversize="drop").load_state_dict(state)
    stream = loader("restarted", "exact", num_workers=2).state_dict()
    with pytest.raises(PackingError, match="num_workers=2, but this loader has 0"):
        loader("restarted", "exact").load_state_dict(stream)
    with pytest.raises(PackingError, match="state: it has no order, plan"):
        loader("restarted", "exact").load_state_dict({"place": {}})


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_another_number_of_ranks_resumes_at_the_end_of_a_step(kind: str, steps: str) -> None:
    two = [loader(kind, steps, rank=rank) for rank in range(2)]
    used, state = [], two[0].state_dict()
    for made in two:
        for batch, at in made:
            used += [] if at.filler else batch
            if at.ends_step and at.step == 2:
                state = json.loads(json.dumps(made.state_dict()))
                break
    change = {"batch_size": 18} if steps == "fewest" else {"microbatches": 4}
    rest = loader(kind, steps, ranks=1, **change)
    rest.load_state_dict(state)
    went_on = list(rest)
    assert went_on[0][1].step == 3
    used += [i for batch, at in went_on if not at.filler for i in batch]
    assert sorted(used) == list(range(len(ROWS)))


def test_another_number_of_ranks_is_refused_if_samples_would_be_lost() -> None:
    made = loader("indexed", "exact")
    running = iter(made)
    next(running)
    with pytest.raises(
        PackingError, match="ranks=2, but this loader has 1, which changes the plan of"
    ):
        loader("indexed", "exact", ranks=1, microbatches=4).load_state_dict(made.state_dict())
    next(running)
    with pytest.raises(PackingError, match="step_samples=16, but this loader has 8"):
        loader("indexed", "exact", ranks=1).load_state_dict(made.state_dict())
    waiting = loader("indexed", "stream").state_dict()
    with pytest.raises(PackingError, match="step_bins=4, but this loader has 2"):
        loader("indexed", "stream", ranks=1).load_state_dict(waiting)
