"""Contents of an epoch and weights of its batches, for every kind of data set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from python.data.packed.kinds import (
    ROWS,
    STEPS,
    Restarted,
    Rows,
    Sample,
    batches_of,
    epoch,
    ids,
    loader,
)

from flowtrain.data import PackedLoader
from flowtrain.packing import PackingError


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_ranks_have_equal_steps_and_an_epoch_has_every_sample_once(kind: str, steps: str) -> None:
    ranks = [loader(kind, steps, rank=rank) for rank in range(2)]
    first, second = (epoch(rank) for rank in ranks)
    assert [seen[1:5] + seen[7:] for seen in first] == [seen[1:5] + seen[7:] for seen in second]
    loaded = [i for seen in first + second if not seen[5] for i in seen[0]]
    assert sorted(loaded) == list(range(len(ROWS)))
    cap = STEPS[steps]["max_tokens"]
    for batch, *_ in first + second:
        assert 0 < sum(len(ROWS[i]["input_ids"]) for i in batch) <= cap
    again = [seen[0] for seen in epoch(ranks[0])]
    assert (again == [seen[0] for seen in first]) == (kind != "indexed")


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", ["indexed", "restarted"])
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


@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_ranks_without_a_sample_get_a_filler_of_weight_0(kind: str) -> None:
    seen = [epoch(loader(kind, "exact", ranks=40, rank=rank, batch_size=1)) for rank in range(40)]
    # 103 samples on 40 ranks x 2 microbatches: 80, and 23 for 80 places.
    assert {len(rank) for rank in seen} == {4}
    assert sum(len(at[0]) for rank in seen for at in rank if not at[5]) == len(ROWS)
    made = loader(kind, "exact", ranks=40, rank=0, batch_size=1)
    weights = [(at.filler, at.sum_weight) for _, at in made]
    assert {filler for filler, _ in weights} == {True, False}
    assert all((weight == 0) == filler for filler, weight in weights)


def test_the_mean_of_a_filler_is_a_number() -> None:
    # The shortest sample has nothing to predict.
    rows = [{"id": 0, "labels": [5]}, {"id": 1, "labels": [5, 5]}, {"id": 2, "labels": [5] * 3}]
    given: dict[str, Any] = {"max_tokens": 9, "ranks": 4, "targets": "labels", "collate_fn": ids}
    ranks = [list(PackedLoader(rows, 1, rank=k, length="labels", **given)) for k in range(4)]
    assert [batch for rank in ranks for batch, at in rank if at.filler] == [[1]]


@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_a_last_step_can_be_dropped(kind: str) -> None:
    kept, all_ = (epoch(loader(kind, "exact", drop_last=drop)) for drop in (True, False))
    assert len(ROWS) % 16 and kept == all_[:-2]
    filled = epoch(loader(kind, "stream", drop_last=True))
    assert filled == epoch(loader(kind, "stream"))[: len(filled)]


def test_the_length_is_the_number_of_batches_where_it_is_known() -> None:
    for drop in (True, False):
        made = loader("indexed", "exact", drop_last=drop)
        assert len(made) == len(list(made))
    for kind, steps in [("indexed", "fewest"), ("indexed", "stream"), ("restarted", "exact")]:
        with pytest.raises(TypeError, match="not known"):
            len(loader(kind, steps))


@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_samples_above_the_cap_are_refused_or_dropped(kind: str) -> None:
    long = [i for i, row in enumerate(ROWS) if len(row["input_ids"]) > 40]
    with pytest.raises(PackingError, match=f"sample {long[0]}: 60 tokens exceed max_tokens=40"):
        list(loader(kind, "stream", max_tokens=40))
    ranks = [loader(kind, "stream", max_tokens=40, oversize="drop", rank=r) for r in range(2)]
    loaded = [i for rank in ranks for seen in epoch(rank) if not seen[5] for i in seen[0]]
    assert sorted(loaded + long) == list(range(len(ROWS)))
    listed = long if kind == "indexed" else [(0, 0, i) for i in long]
    assert ranks[0].dropped == ranks[1].dropped == listed
    ranks[0].set_epoch(0)
    list(ranks[0])
    assert ranks[0].dropped == listed


def test_dropped_samples_after_the_last_step_of_a_stream_are_listed() -> None:
    rows = Rows([{"id": i, "input_ids": [1] * length} for i, length in enumerate([2, 9, 2, 9])])
    made = PackedLoader(rows, 2, max_tokens=4, oversize="drop", collate_fn=ids)
    assert batches_of(made) == [[0, 2]] and made.dropped == [(0, 0, 1), (0, 0, 3)]


def test_dropped_samples_of_a_stream_have_their_epoch_and_worker() -> None:
    class ByEpoch(Restarted):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def mine(self) -> list[Sample]:
            lengths = [9, 2, 2, 9] if self.epoch else [2, 9, 2, 9]
            return [{"id": i, "input_ids": [1] * length} for i, length in enumerate(lengths)]

    # Both workers read all of it.
    made = PackedLoader(ByEpoch(), 2, max_tokens=4, oversize="drop", num_workers=2, collate_fn=ids)
    for number in (0, 1, 1):
        made.set_epoch(number)
        list(made)
    epochs = {0: (1, 3), 1: (0, 3)}
    expected = [(e, worker, i) for e, at in epochs.items() for worker in range(2) for i in at]
    assert sorted(made.dropped) == expected


@pytest.mark.parametrize("kind", ["indexed", "restarted"])
def test_iterating_a_closed_loader_is_an_error(kind: str) -> None:
    with loader(kind, "exact") as made:
        batches = iter(made)
        next(batches)
    made.close()
    assert made.state_dict()["place"]["microbatch"] == 1
    with pytest.raises(RuntimeError, match="this iterator of the loader was ended .* by close"):
        next(batches)
    with pytest.raises(PackingError, match="this loader was closed"):
        next(iter(made))


def test_the_error_of_a_step_without_room_says_what_to_do() -> None:
    with pytest.raises(PackingError, match="16 samples with .* microbatches=None"):
        list(loader("indexed", "exact", max_tokens=60))


def test_a_collate_function_may_change_its_samples() -> None:
    rows = Rows([{"id": 4, "input_ids": [1]}])
    made = PackedLoader(
        rows, 1, max_tokens=9, microbatches=2, collate_fn=lambda samples: samples[0].pop("id")
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
    made = PackedLoader(rows, 4, max_tokens=320, length=sizes, ranks=2, rank=1, collate_fn=ids)
    loaded = sum(len(batch) for batch, _ in made)
    assert Counted.read == loaded < len(ROWS)
    collated = sum(len(batch) for batch, _ in loader("restarted", "exact"))
    assert collated < len(ROWS)


def test_costs_move_samples_between_ranks() -> None:
    # All have equal tokens, so only the cost separates the first two.
    rows = [{"id": i, "input_ids": [1] * 5} for i in range(4)]
    options: dict[str, Any] = {"max_tokens": 100, "ranks": 2, "rank": 0, "collate_fn": ids}
    cost = [9.0, 9.0, 1.0, 1.0]
    apart = PackedLoader(rows, 2, cost=cost, **options)
    [(batch, at)] = apart
    assert len(set(batch) & {0, 1}) == 1
    assert at.plan.gap == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("indexed", {"batch_size": None}, "batch_size=None: give the samples"),
        ("indexed", {"max_age": 1}, "max_age=1 with batch_size=4"),
        ("indexed", {"max_tokens": 0}, "max_tokens=0: it must be at least 1"),
        ("indexed", {"objective": "fast"}, "objective 'fast': choose from lockstep, accumulate"),
        ("indexed", {"oversize": "skip"}, "oversize 'skip': choose from error, drop"),
        ("indexed", {"seed": -1}, "seed=-1, .*: seed must be at least 0"),
        ("indexed", {"sampler": [1, 2]}, "sampler: a PackedLoader orders samples itself"),
        ("indexed", {"generator": torch.Generator()}, "generator: .*seed choose the order"),
        ("indexed", {"rank": 2}, "rank=2: it must be at least 0 and less than ranks=2"),
        ("indexed", {"ranks": None}, "rank=0, ranks=None: give both"),
        ("restarted", {"shuffle": True}, "a stream keeps its own order"),
    ],
)
def test_an_invalid_argument_is_named(kind: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PackingError, match=message):
        loader(kind, "exact", **change)


def test_weights_need_targets() -> None:
    _, at = next(iter(loader("indexed", "exact", targets=None)))
    with pytest.raises(ValueError, match="give targets="):
        at.mean_weight  # noqa: B018
