"""Readers beside the training: one thread, or processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1

_reader: Any = None


def _start(make_reader: Callable[[], Any], parent: int | None) -> None:
    """Make this worker's reader; a process ends with the rank that it reads for."""
    global _reader
    if parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # The rank died before this process could ask to die with it.
    _reader = make_reader()


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_reader, method)(*arguments)


class ReaderPool:
    """Calls methods of readers in the background, results in futures.

    Processes are spawned, so that they inherit neither the pool's descriptors nor its locks.

    Args:
        make_reader: Makes a reader; must be picklable where there are processes.
        workers: Processes, or 0 for a thread of this process.
    """

    def __init__(self, make_reader: Callable[[], Any], workers: int) -> None:
        self._executor: Executor
        self._made: Future[Any] | None = None
        if workers == 0:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="flowtrain-reader")
            self._made = self._executor.submit(make_reader)
        else:
            self._executor = ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(make_reader, os.getpid()),
            )
            # A call for each starts them all from this thread: the kernel ends a process with
            # the thread that started it, and the one that reads first may be the first to end.
            for _ in range(workers):
                self._executor.submit(os.getpid)

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Result of `reader.method(*arguments)`; its exception too."""
        made = self._made
        if made is not None:
            return self._executor.submit(lambda: getattr(made.result(), method)(*arguments))
        return self._executor.submit(_call, method, arguments)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
