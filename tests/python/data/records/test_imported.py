from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowtrain.config import ConfigError
from flowtrain.data import DataError
from flowtrain.data.records.imported import ImportedDataset

SOURCE = """
number = 3
calls = []
def rows():
    calls.append(1)
    return [{"a": 0}, [1], {"a": 2}]
def raises(): raise SystemExit("no disk")
def ends(): return [next(iter([]))]
def number_of_rows(): return 3
def empty(): return []
def takes(argument): return []
class Torn:
    def __len__(self): return 2
    def __getitem__(self, index): raise SystemExit(index)  # As `sys.exit`.
class NoLength(Torn):
    def __len__(self): raise TypeError("of a stream")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"samples_of_{os.path.basename(tmp_path)}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_items_are_read_and_a_process_makes_the_data_set_once(module: str) -> None:
    first, second = (ImportedDataset(f"{module}:rows") for _ in range(2))
    assert (len(first), first.record(0), second.record(2)) == (3, {"a": 0}, {"a": 2})
    assert __import__(module).calls == [1]
    with pytest.raises(DataError, match=r"item 1: __getitem__\(1\) returned a list, \[1\]; it mus"):
        first.record(1)
    with pytest.raises(DataError, match="sample 3 does not exist; the last one is 2"):
        first.record(3)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (":gone", ConfigError, r"AttributeError: .*'gone'; write package\.module:make"),
        ("_gone:make", ConfigError, r"ModuleNotFoundError: .*add its folder to PYTHONPATH"),
        ("_broken:make", ConfigError, r"ZeroDivisionError: division by zero; write package"),
        (":number", ConfigError, r"number is a int, 3; name a function"),
        (":raises", DataError, r"the function raised SystemExit: no disk"),
        (":ends", DataError, r"the function raised StopIteration; it is called without"),
        (":takes", DataError, r"the function raised TypeError: .*'argument'; it is called without"),
        (
            ":number_of_rows",
            DataError,
            r"the function returned a int, 3, which has neither __len__ and __getitem__ nor __iter",
        ),
        (":NoLength", DataError, r"__len__ raised TypeError: of a stream; it must return"),
        (":empty", DataError, r"no samples; return at least one"),
    ],
)
def test_the_error_of_a_bad_function_names_it(
    module: str, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"data.dataset={module}{name}: {message}"):
        ImportedDataset(module + name)


def test_the_error_of_an_item_and_of_another_length_name_both(module: str) -> None:
    file = ImportedDataset(f"{module}:Torn")
    with pytest.raises(DataError, match=r"Torn: item 1: __getitem__\(1\) raised SystemExit: 1;"):
        file.record(1)
    with pytest.raises(DataError, match=r"Torn: it has 2 samples, and had 3 samples when the run"):
        ImportedDataset(f"{module}:Torn", "3 samples")
