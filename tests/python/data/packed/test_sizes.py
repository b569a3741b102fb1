from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType
from typing import Any

import numpy
import pytest
import torch

from flowtrain.data.packed.sizes import Fields, sizes_of
from flowtrain.packing import PackingError

ROWS = [
    {"input_ids": [1, 2, 3], "labels": [5, -100, 5], "price": 2.5, "length": 3},
    {"input_ids": [1], "labels": [5], "price": 1.0, "length": 1},
]


@pytest.mark.parametrize(
    "length",
    [
        "input_ids",
        "length",
        lambda row: len(row["input_ids"]),
        lambda row: torch.tensor([row["input_ids"]]),
        [3, 1],
        torch.tensor([3, 1]),
    ],
)
def test_all_sources_of_a_size_give_the_same_sizes(length: Any) -> None:
    sizes = sizes_of(ROWS, Fields(length=length, cost="price", targets="labels"))
    assert sizes.tokens.tolist() == [3, 1]
    assert sizes.cost.tolist() == [2.5, 1.0]
    # Nothing predicts the first label.
    assert sizes.targets is not None and sizes.targets.tolist() == [1, 0]
    assert sizes_of(ROWS, Fields(length=length)).cost.tolist() == [3.0, 1.0]


def test_only_the_needed_columns_of_a_table_are_read() -> None:
    class Table:
        """Like data sets of Hugging Face, where reading whole rows would decode images."""

        def __init__(self, columns: list[str] | None) -> None:
            self.columns = columns

        def select_columns(self, columns: list[str]) -> Table:
            return Table(columns)

        def __len__(self) -> int:
            return len(ROWS)

        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            assert self.columns is not None
            return [{name: ROWS[i][name] for name in self.columns} for i in indices]

    sizes = sizes_of(Table(None), Fields(length="input_ids", targets="labels", cost=[1, 2]))
    assert sizes.tokens.tolist() == [3, 1]


def test_whole_samples_of_a_transformed_table_are_read() -> None:
    class Transformed(list[dict[str, Any]]):
        """Like Hugging Face's with_transform, which makes samples of other columns."""

        format = MappingProxyType({"type": "custom", "columns": ["text"]})

        def select_columns(self, columns: list[str]) -> None:
            raise ValueError(f"Column name {columns} not in the dataset")

    sizes = sizes_of(Transformed(ROWS), Fields(length="input_ids"))
    assert sizes.tokens.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": "tokens"}, "sample 0: it has no 'tokens'; give length="),
        ({"length": [3, 1, 4]}, r"length: int64 of shape \(3,\), but the data set has 2 samples"),
        ({"length": [3, -1]}, "sample 1: length=-1; it must be a whole number"),
        ({"length": [3, 1.5]}, "sample 1: length=1.5; it must be a whole number"),
        ({"length": [3, 1e19]}, r"sample 1: length=1e\+19; it must be below 2\^62"),
        ({"cost": [1.0, numpy.nan]}, "sample 1: cost=nan; it must be a number of at least 0"),
        ({"cost": "labels"}, r"sample 0: cost is int64 of shape \(3,\); it must be a number"),
        ({"length": lambda row: "three"}, "sample 0: length is <U5 of shape"),
        ({"length": lambda row: numpy.zeros((2, 3))}, r"sample 0: length is float64 of shape \(2,"),
        ({"length": lambda row: [{"role": "user"}]}, r"sample 0: length is object of shape \(1,\)"),
        (
            {"length": lambda row: [[1], [1, 2]]},
            "sample 0: length is list; it must be a number or a row",
        ),
    ],
)
def test_a_value_that_is_no_size_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PackingError, match=message):
        sizes_of(ROWS, Fields(**{"length": "length", **fields}))


def test_a_list_of_sizes_is_refused_for_a_stream() -> None:
    with pytest.raises(PackingError, match="cost: a list with one value per sample needs a map"):
        Fields(length="length", cost=[1.0]).measure(0, ROWS[0])


def test_importing_the_file_readers_does_not_import_torch() -> None:
    code = "import sys, flowtrain.data.samples; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
