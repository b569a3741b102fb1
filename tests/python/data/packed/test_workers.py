"""Workers that shard or open a data set as in torch's documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from python.data.packed.kinds import ROWS, Sample, batches_of, ids
from torch.utils.data import IterableDataset, get_worker_info

from flowtrain.data import PackedLoader

OPTIONS: dict[str, Any] = {"max_tokens": 320, "collate_fn": ids}


class Part(IterableDataset[Sample]):
    rows = ROWS

    def __iter__(self) -> Iterator[Sample]:
        yield from self.rows


class Closed(list[Sample]):
    is_open = False

    def __getitem__(self, index: Any) -> Any:
        assert self.is_open
        return super().__getitem__(index)


def test_workers_that_shard_a_stream_repeat_no_sample() -> None:
    def share(worker: int) -> None:
        info: Any = get_worker_info()
        info.dataset.rows = ROWS[worker :: info.num_workers]

    made = PackedLoader(Part(), 4, num_workers=2, worker_init_fn=share, **OPTIONS)
    assert sorted(i for batch in batches_of(made) for i in batch) == list(range(len(ROWS)))


def test_worker_init_fn_opens_the_data_set_whose_sizes_are_read() -> None:
    def opened(worker: int) -> None:
        info: Any = get_worker_info()
        info.dataset.is_open = True

    made = PackedLoader(Closed(ROWS), 4, num_workers=1, worker_init_fn=opened, **OPTIONS)
    assert sorted(i for batch in batches_of(made) for i in batch) == list(range(len(ROWS)))
