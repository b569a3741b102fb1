"""Kinds of data sets and steps, and the batches that a loop gets from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from flowtrain.data import PackedLoader

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


class Restarted(IterableDataset[Sample]):
    """A stream without a state, which is read again from its start."""

    def mine(self) -> list[Sample]:
        """All samples, or the share of one of two workers, whose shares differ in length."""
        info = get_worker_info()
        return ROWS if info is None else [ROWS[:30], ROWS[30:]][info.id]

    def __iter__(self) -> Iterator[Sample]:
        yield from self.mine()


class Resumable(Restarted):
    """A stream with a state, which it resets at its end."""

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


class OwnIterator(Resumable):
    """The same, with data set and iterator in one object."""

    def __iter__(self) -> Iterator[Sample]:
        self.at = 0
        return self

    def __next__(self) -> Sample:
        self.at += 1
        if self.at > len(self.mine()):
            raise StopIteration
        return self.mine()[self.at - 1]


class Rows:
    """An iterable, which is a stream without further methods."""

    def __init__(self, rows: list[Sample]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.rows)


KINDS = {
    "indexed": lambda: ROWS,
    "restarted": Restarted,
    "resumable": Resumable,
    "own iterator": OwnIterator,
}
STEPS: dict[str, dict[str, Any]] = {
    "exact": {"batch_size": 4, "max_tokens": 320, "microbatches": 2},
    "fewest": {"batch_size": 9, "max_tokens": 150, "microbatches": None},
    "stream": {"max_age": 1, "max_tokens": 120, "microbatches": 2},
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
    """Batches of an epoch with the fields of their microbatches."""
    return [
        (batch, at.epoch, at.step, at.index, at.ends_step, at.filler, at.targets, at.step_targets)
        for batch, at in made
    ]
