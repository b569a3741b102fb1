from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import end_runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time than a run may take, unless they have a limit of their own."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("limit"):
            item.add_marker(pytest.mark.limit(240))


@pytest.fixture(autouse=True)
def _end_all_runs() -> Iterator[None]:
    with end_runs():
        yield
