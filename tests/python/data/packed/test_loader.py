"""One body for every kind of data set: what is loaded, what it weighs, and where it goes on."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from flowtrain.data import PackedLoader
from flowtrain.packing import PackingError

Sample = dict[str, Any]


def samples(count: int) -> list[Sample]:
    draw = random.Random(count)
    made = []
    for index in range(count):
        length = draw.choice([3, 8, 20, 60])
        labels = [draw.choice([-100, 5]) for _ in range(length)]
        made.append({"id": index, "input_ids": [7] * length, "labels": labels})
    return made


ROWS = samples(103)


class Again(IterableDataset[Sample]):
    """A stream without a state: it is read again from its start."""

    def mine(self) -> list[Sample]:
        """All of it, or one worker's share of two, of which one ends long before the other."""
        info = get_worker_info()
        return ROWS if info is None else [ROWS[:30], ROWS[30:]][info.id]

    def __iter__(self) -> Iterator[Sample]:
        yield from self.mine()


class GoesOn(Again):
    """A stream with a state of its own, which it forgets at its end."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Sample]:
        mine = self.mine()
        while self.at < len(mine):
            self.at += 1
            yield mine[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class OwnIterator(GoesOn):
    """The same, where data set and iterator are one object."""

    def __iter__(self) -> Iterator[Sample]:
        self.at = 0
        return self

    def __next__(self) -> Sample:
        self.at += 1
        if self.at > len(self.mine()):
            raise StopIteration
        return self.mine()[self.at - 1]


class Rows:
    """Anything that can be iterated is a stream."""

    def __init__(self, rows: list[Sample]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.rows)


KINDS = {"indexed": lambda: ROWS, "again": Again, "goes on": GoesOn, "own iterator": OwnIterator}
STEPS: dict[str, dict[str, Any]] = {
    "exact": {"batch_size": 4, "token_cap": 320, "microbatches": 2},
    "fewest": {"batch_size": 9, "token_cap": 150, "microbatches": None},
    "stream": {"max_age": 1, "token_cap": 120, "microbatches": 2},
}


def ids(batch: list[Sample]) -> list[int]:
    return [sample["id"] for sample in batch]


def loader(kind: str, steps: str, **changes: Any) -> PackedLoader:
    given = {"ranks": 2, "rank": 0, "collate_fn": ids, "targets": "labels"}
    if kind == "indexed":
        given |= {"shuffle": True, "seed": 3}
    return PackedLoader(KINDS[kind](), **{**given, **STEPS[steps], **changes})


def batches_of(made: PackedLoader) -> list[Any]:
    return [batch for batch, _ in made]


def epoch(made: PackedLoader) -> list[tuple[Any, ...]]:
    """What a loop sees: batches, and what they are."""
    return [
        (batch, at.epoch, at.step, at.index, at.ends_step, at.filler, at.targets, at.step_targets)
        for batch, at in made
    ]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_ranks_meet_and_an_epoch_has_every_sample_once(kind: str, steps: str) -> None:
    ranks = [loader(kind, steps, rank=rank) for rank in range(2)]
    first, second = (epoch(rank) for rank in ranks)
    assert [seen[1:5] + seen[7:] for seen in first] == [seen[1:5] + seen[7:] for seen in second]
    loaded = [i for seen in first + second if not seen[5] for i in seen[0]]
    assert sorted(loaded) == list(range(len(ROWS)))
    cap = STEPS[steps]["token_cap"]
    for batch, *_ in first + second:
        assert 0 < sum(len(ROWS[i]["input_ids"]) for i in batch) <= cap
    again = [seen[0] for seen in epoch(ranks[0])]
    assert (again == [seen[0] for seen in first]) == (kind != "indexed")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_goes_on_from_any_batch(kind: str, steps: str, workers: int) -> None:
    options = {"num_workers": workers}
    whole = loader(kind, steps, **options)
    states, batches = [json.dumps(whole.state_dict())], []
    for _ in range(2):
        for batch, at in whole:
            batches.append(batch)
            states.append(json.dumps(whole.state_dict()))
            assert json.dumps(whole.state_dict(at)) == states[-1]
    # Every place, but for workers, which take their time to start: the ends, and some between.
    middle, end = len(states) // 2, len(states) - 1
    places = range(len(states)) if workers == 0 else [1, 2, 5, middle - 3, middle + 1, end]
    for place in places:
        rest = loader(kind, steps, **options)
        rest.load_state_dict(json.loads(states[place]))
        begun = rest.state_dict()["place"]["epoch"]
        assert [b for _ in range(begun, 2) for b in batches_of(rest)] == batches[place:], place


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_weight_and_state_belong_to_a_batch_whatever_looks_ahead(kind: str, workers: int) -> None:
    whole = [(batch, at.mean_weight) for batch, at in loader(kind, "exact", num_workers=workers)]
    made = loader(kind, "exact", num_workers=workers)
    ahead = list(made)
    assert [(batch, at.mean_weight) for batch, at in ahead] == whole
    rest = loader(kind, "exact", num_workers=workers)
    rest.load_state_dict(made.state_dict(ahead[2][1]))
    assert batches_of(rest) == [batch for batch, _ in whole[3:]]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_weighted_means_add_up_to_the_mean_of_the_step(kind: str, steps: str) -> None:
    losses: dict[int, float] = {}
    sums: dict[int, tuple[float, int]] = {}
    for rank in range(2):
        made = loader(kind, steps, rank=rank)
        for batch, at in made:
            # A sample's id is the loss of each of its targets.
            targets = [sum(label != -100 for label in ROWS[i]["labels"][1:]) for i in batch]
            total = float(sum(i * n for i, n in zip(batch, targets, strict=True)))
            assert at.targets == sum(targets)
            weighted = at.mean_weight * total / max(1, sum(targets))
            assert at.sum_weight * total == pytest.approx(weighted)
            losses[at.step] = losses.get(at.step, 0.0) + weighted / 2
            if not at.filler:
                whole, count = sums.get(at.step, (0.0, 0))
                sums[at.step] = whole + total, count + sum(targets)
    for step, (whole, count) in sums.items():
        assert losses[step] == pytest.approx(whole / count)


@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_ranks_without_a_sample_get_one_that_weighs_nothing(kind: str) -> None:
    seen = [epoch(loader(kind, "exact", ranks=40, rank=rank, batch_size=1)) for rank in range(40)]
    # 103 samples on 40 ranks x 2 microbatches: 80, and 23 for 80 places.
    assert {len(rank) for rank in seen} == {4}
    assert sum(len(at[0]) for rank in seen for at in rank if not at[5]) == len(ROWS)
    made = loader(kind, "exact", ranks=40, rank=0, batch_size=1)
    weights = [(at.filler, at.sum_weight) for _, at in made]
    assert {filler for filler, _ in weights} == {True, False}
    assert all((weight == 0) == filler for filler, weight in weights)


@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_a_last_step_can_be_dropped(kind: str) -> None:
    kept, all_ = (epoch(loader(kind, "exact", drop_last=drop)) for drop in (True, False))
    assert len(ROWS) % 16 and kept == all_[:-2]
    filled = epoch(loader(kind, "stream", drop_last=True))
    assert filled == epoch(loader(kind, "stream"))[: len(filled)]


def test_the_number_of_batches_is_told_where_it_is_known() -> None:
    for drop in (True, False):
        made = loader("indexed", "exact", drop_last=drop)
        assert len(made) == len(list(made))
    for kind, steps in [("indexed", "fewest"), ("indexed", "stream"), ("again", "exact")]:
        with pytest.raises(TypeError, match="not known"):
            len(loader(kind, steps))


@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_samples_above_the_cap_are_refused_or_left_out(kind: str) -> None:
    long = [i for i, row in enumerate(ROWS) if len(row["input_ids"]) > 40]
    with pytest.raises(PackingError, match=f"sample {long[0]}: 60 tokens exceed token_cap=40"):
        list(loader(kind, "stream", token_cap=40))
    ranks = [loader(kind, "stream", token_cap=40, oversize="leave_out", rank=r) for r in range(2)]
    loaded = [i for rank in ranks for seen in epoch(rank) if not seen[5] for i in seen[0]]
    assert sorted(loaded + long) == list(range(len(ROWS)))
    assert ranks[0].left_out == ranks[1].left_out == long
    list(ranks[0])
    assert ranks[0].left_out == long


def test_a_step_without_room_names_the_way_out() -> None:
    with pytest.raises(PackingError, match="16 samples with .* microbatches=None"):
        list(loader("indexed", "exact", token_cap=60))


def test_set_epoch_chooses_the_order_and_keeps_a_place_within_it() -> None:
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_iterator_leaves_the_epoch_as_it_was(kind: str, workers: int) -> None:
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


def test_a_stream_that_keeps_its_place_and_cannot_be_copied_is_refused() -> None:
    held = GoesOn()
    held.lines = (row for row in ROWS)
    with pytest.raises(PackingError, match=r"dataset \(GoesOn\): .*cannot .*num_workers"):
        list(PackedLoader(held, 4, token_cap=320))


def test_an_epoch_whose_batches_were_counted_is_over() -> None:
    made = loader("indexed", "exact")
    for epoch_ in range(2):
        assert {at.epoch for _, (_, at) in zip(range(len(made)), made, strict=False)} == {epoch_}


def test_of_two_iterators_the_first_is_ended() -> None:
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


def test_a_state_of_numpys_numbers_is_of_plain_ones() -> None:
    changes = {"seed": 3, "batch_size": 4, "token_cap": 320, "num_workers": 0}
    made = loader("indexed", "exact", **{name: numpy.int64(n) for name, n in changes.items()})
    made.set_epoch(numpy.int64(1))
    assert json.loads(json.dumps(made.state_dict()))["place"]["epoch"] == 1


def test_a_state_of_another_loader_is_refused() -> None:
    state = loader("indexed", "exact").state_dict()
    with pytest.raises(PackingError, match="seed=3, and this loader has 4"):
        loader("indexed", "exact", seed=4).load_state_dict(state)
    with pytest.raises(PackingError, match="tokens=.*, and this loader has"):
        loader("indexed", "exact", length="id", oversize="leave_out").load_state_dict(state)
    stream = loader("again", "exact", num_workers=2).state_dict()
    with pytest.raises(PackingError, match="num_workers=2, and this loader has 0"):
        loader("again", "exact").load_state_dict(stream)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_other_ranks_go_on_where_a_step_ended(kind: str, steps: str) -> None:
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


def test_other_ranks_are_refused_where_samples_would_be_lost() -> None:
    made = loader("indexed", "exact")
    running = iter(made)
    next(running)
    with pytest.raises(
        PackingError, match="ranks=2, and this loader has 1; it decides the plan of"
    ):
        loader("indexed", "exact", ranks=1, microbatches=4).load_state_dict(made.state_dict())
    next(running)
    with pytest.raises(PackingError, match="step_samples=16, and this loader has 8"):
        loader("indexed", "exact", ranks=1).load_state_dict(made.state_dict())
    waiting = loader("indexed", "stream").state_dict()
    with pytest.raises(PackingError, match="step_bins=4, and this loader has 2"):
        loader("indexed", "stream", ranks=1).load_state_dict(waiting)


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


def test_a_stream_is_told_its_epoch() -> None:
    class Turned(Again):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[Sample]:
            yield from ROWS[self.epoch :]

    made = PackedLoader(Turned(), 103, token_cap=10_000, collate_fn=ids)
    assert [batch[0] for _ in range(3) for batch in batches_of(made)] == [0, 1, 2]


def test_a_collate_function_may_take_samples_apart() -> None:
    rows = Rows([{"id": 4, "input_ids": [1]}])
    made = PackedLoader(
        rows, 1, token_cap=9, microbatches=2, collate_fn=lambda samples: samples[0].pop("id")
    )
    # One of the two is a filler.
    assert batches_of(made) == [4, 4]


def test_only_this_ranks_samples_are_loaded_or_collated() -> None:
    class Counted(list[Sample]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.read += 1
            return super().__getitem__(index)

    sizes = [len(row["input_ids"]) for row in ROWS]
    rows = Counted(ROWS)
    made = PackedLoader(rows, 4, token_cap=320, length=sizes, ranks=2, rank=1, collate_fn=ids)
    loaded = sum(len(batch) for batch, _ in made)
    assert Counted.read == loaded < len(ROWS)
    collated = sum(len(batch) for batch, _ in loader("again", "exact"))
    assert collated < len(ROWS)


def test_costs_move_samples_between_ranks() -> None:
    # Equal tokens: only their cost can tell which two belong apart.
    rows = [{"id": i, "input_ids": [1] * 5} for i in range(4)]
    options: dict[str, Any] = {"token_cap": 100, "ranks": 2, "rank": 0, "collate_fn": ids}
    cost = [9.0, 9.0, 1.0, 1.0]
    apart = PackedLoader(rows, 2, cost=cost, **options)
    [(batch, at)] = apart
    assert len(set(batch) & {0, 1}) == 1
    assert at.plan.gap == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_torchs_global_generator_is_left_alone(kind: str, workers: int) -> None:
    before = torch.get_rng_state()
    list(loader(kind, "exact", num_workers=workers))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["indexed", "again"])
def test_workers_draw_otherwise_on_every_rank_and_alike_on_every_run(kind: str) -> None:
    def drawn(samples: list[Sample]) -> tuple[float, ...]:
        return random.random(), float(torch.rand(1)), float(numpy.random.rand())

    def run(**changes: Any) -> list[list[tuple[float, ...]]]:
        made = loader(kind, "exact", num_workers=1, collate_fn=drawn, **changes)
        return [batches_of(made) for _ in range(2)]

    seen = [run(rank=0), run(rank=1), run(rank=0, seed=4)]
    for one, other in itertools.pairwise(epoch_ for of_rank in seen for epoch_ in of_rank):
        assert not {x for batch in one for x in batch} & {x for batch in other for x in batch}
    assert run(rank=0) == seen[0]


def test_ranks_read_alike_a_stream_that_draws() -> None:
    class Drawn(IterableDataset[Sample]):
        def __iter__(self) -> Iterator[Sample]:
            rows = ROWS[:]
            while rows:
                yield rows.pop(random.randrange(len(rows)))

    def drawing(samples: list[Sample]) -> list[int]:
        return [sample["id"] for sample in samples if random.random() < 2]

    ranks = [
        PackedLoader(
            Drawn(),
            **STEPS["exact"],
            ranks=2,
            rank=rank,
            num_workers=1,
            collate_fn=drawing,
        )
        for rank in range(2)
    ]
    both = [(batch, at) for rank in ranks for batch, at in rank]
    assert sorted(i for batch, at in both if not at.filler for i in batch) == list(range(len(ROWS)))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("indexed", {"batch_size": None}, "batch_size=None: give the samples"),
        ("indexed", {"max_age": 1}, "max_age=1 with batch_size=4"),
        ("indexed", {"token_cap": 0}, "token_cap=0: it must be at least 1"),
        ("indexed", {"objective": "fast"}, "objective 'fast': choose from lockstep, free"),
        ("indexed", {"oversize": "drop"}, "oversize 'drop': choose from error, leave_out"),
        ("indexed", {"seed": -1}, "seed=-1, .*: a seed is at least 0"),
        ("indexed", {"sampler": [1, 2]}, "sampler: a PackedLoader orders samples itself"),
        ("indexed", {"rank": 2}, "rank=2: it must be from 0 to ranks=2 less 1"),
        ("indexed", {"ranks": None}, "rank=0, ranks=None: give both"),
        ("again", {"shuffle": True}, "a stream has an order of its own"),
    ],
)
def test_what_cannot_be_is_named(kind: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PackingError, match=message):
        loader(kind, "exact", **change)


def test_weights_need_targets() -> None:
    _, at = next(iter(loader("indexed", "exact", targets=None)))
    with pytest.raises(ValueError, match="give targets="):
        at.mean_weight  # noqa: B018
