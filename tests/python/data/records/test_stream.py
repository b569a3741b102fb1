"""Streams where there is no run: which data sets are streams, and what needs a few records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from flowtrain.config.data import DataConfig
from flowtrain.config.sources import SourceConfig
from flowtrain.data import DataError
from flowtrain.data.records import Dataset, Spool, segment_of

CALLS: list[int] = []


class Rows(IterableDataset[dict[str, int]]):
    """torch gives it a __getitem__ that only raises an error."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[dict[str, int]]:
        for row in range(5):
            CALLS.append(row)
            yield {"row": row}


def rows() -> Any:
    return Rows()


def listed() -> Any:
    return [{"row": 0}]


SPEC = f"{__name__}:rows"


def test_a_stream_is_read_as_far_as_the_wanted_record() -> None:
    dataset = Dataset(DataConfig(dataset=SPEC))
    CALLS.clear()
    assert [dataset.record(n)["row"] for n in (3, 3, 4, 6, 1)] == [3, 3, 4, 1, 1]
    assert CALLS == [0, 1, 2, 3, 4, 0, 1, 0, 1]
    assert (dataset.where(6), dataset.line(6)) == (f"data.dataset={SPEC}: item 6", None)
    assert dataset.is_stream
    assert not Dataset(DataConfig(dataset=f"{__name__}:listed")).is_stream


def test_a_stream_is_not_mixed(tmp_path: Path) -> None:
    tmp_path.joinpath("a.jsonl").write_text("{}\n")
    stream, file = SourceConfig(dataset=SPEC), SourceConfig(path=tmp_path / "a.jsonl")
    heavy = SourceConfig(dataset=SPEC, weight=2)
    for sources in ((stream, file), (heavy,)):
        with pytest.raises(
            DataError, match=r"is a stream.*give it alone and with weight 1, and mix"
        ):
            Dataset(DataConfig(sources=sources))
    assert Dataset(DataConfig(sources=(stream,))).record(2) == {"row": 2}


def test_a_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    file = segment_of(tmp_path, 0)
    file.write_text('{"row": 0}\n{"ro')
    spool = Spool(SPEC, tmp_path)
    assert spool.record(0) == {"row": 0}
    with pytest.raises(DataError, match=r"item 1: .*000000000\.jsonl ends before it"):
        spool.record(1)
    with file.open("a") as more:
        more.write('w": 1}\n{"row": 2}\n')
    assert [spool.record(n)["row"] for n in (2, 1)] == [2, 1]
