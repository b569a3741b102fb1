"""A limit of time for every test, and what tests of several folders use.

A test that hangs ends the run and shows the stack of every thread. What it has forked ends later:
it holds the pipes of the run, which would not end before.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

DEFAULT_LIMIT_S = 120.0
# A forked process may serve all tests of a file, each with a limit of its own.
FORK_LIMITS = 10

_limit_s = DEFAULT_LIMIT_S
_stderr_fd = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr: while a test runs, descriptor 2 belongs to pytest's capture."""
    config.stash[_stderr_fd] = os.dup(2)
    # Ignored under nohup and in the background of a shell. Processes that tests start, and
    # interrupt, would inherit that.
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, default)
    os.register_at_fork(
        after_in_child=lambda: signal.setitimer(signal.ITIMER_REAL, FORK_LIMITS * _limit_s)
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give each test, with its fixtures, 120 s or the seconds of its `limit` marker."""
    global _limit_s
    marker = item.get_closest_marker("limit")
    _limit_s = float(marker.args[0]) if marker else DEFAULT_LIMIT_S
    faulthandler.dump_traceback_later(_limit_s, exit=True, file=item.config.stash[_stderr_fd])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of samples with none, one and several images, and a tiny model."""
    from support import write_tiny_data

    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder, text_only=0.2, multi_image=0.2)
    return folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the fake CUDA driver."""
    from core import fake_driver

    return fake_driver.build(tmp_path_factory.mktemp("driver"))
