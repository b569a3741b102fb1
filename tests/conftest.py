"""Every test runs under a watchdog: what hangs is shown and ended."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest

_SECONDS = 120.0


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    limit = request.node.get_closest_marker("limit")
    faulthandler.dump_traceback_later(limit.args[0] if limit else _SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
