"""Readers that run in parallel with the training, in one thread or in processes."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from flowtrain.parent import end_with

# Timeout for a process to end after SIGKILL, or after its pipe was closed.
_END_S = 5.0


class ReaderDied(RuntimeError):
    """A reader process ended before its rank. The message names the process and how it ended."""


class _Reader:
    """A reader in this process, created on first use."""

    def __init__(self, make_reader: Callable[[], Any]) -> None:
        self.make = functools.cache(make_reader)

    def start(self) -> None:
        """Make the reader; an error is left to the calls, each of which tries again."""
        with suppress(Exception):
            self.make()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.make(), method)(*arguments)

    def end(self) -> None:
        """Nothing to do."""


class _ReaderProcess:
    """A reader in a process of its own, connected by a pipe.

    The process is spawned, so that it inherits neither descriptors nor locks of the pool. The pipe
    has no name, so that SIGKILL of both processes leaves nothing behind.
    """

    def __init__(self, make_reader: Callable[[], Any], number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(make_reader, theirs, os.getpid()),
            name=f"reader process {number}",
            daemon=True,
        )
        self._process.start()
        # The pipe reports the end of the process only if no other process holds that side open.
        theirs.close()

    def start(self) -> None:
        """Wait until the process can answer; its death is left to the calls."""
        with suppress(EOFError, OSError):
            self._pipe.recv()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send((method, arguments))
            result, error = self._pipe.recv()
        except (EOFError, OSError) as cause:
            raise self._death() from cause
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self._process.kill()
        # A process that waits for a disk ends only when the disk responds.
        self._process.join(_END_S)

    def _death(self) -> ReaderDied:
        self._process.join(_END_S)
        code = self._process.exitcode
        if code is None:
            how = f"it closed its pipe, and has not ended within {_END_S:g} s"
        elif code < 0:
            how = f"killed by signal {-code}; if memory ran out, lower data.workers"
        else:
            how = f"exit code {code}; its standard error says why"
        return ReaderDied(f"{self._process.name} (pid {self._process.pid}): {how}")


class ReaderPool:
    """Calls methods of readers in the background and returns futures.

    Args:
        make_reader: Creates a reader; must be picklable if there are processes.
        workers: Number of processes, or 0 for one thread of this process.
    """

    def __init__(self, make_reader: Callable[[], Any], workers: int) -> None:
        # Started here, not by the threads that call them: the kernel ends a reader process with
        # the thread that started it.
        self._readers: list[_Reader | _ReaderProcess] = [
            _ReaderProcess(make_reader, number) for number in range(workers)
        ] or [_Reader(make_reader)]
        # One thread for each reader, so that a thread always finds a reader that is idle.
        self._idle: queue.SimpleQueue[_Reader | _ReaderProcess] = queue.SimpleQueue()
        self._started = threading.Event()
        self._executor = ThreadPoolExecutor(
            len(self._readers), thread_name_prefix="flowtrain-reader"
        )
        for reader in self._readers:
            self._executor.submit(self._start, reader)

    @property
    def started(self) -> bool:
        """Whether a reader has started, so that calls are being answered."""
        return self._started.is_set()

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Call `reader.method(*arguments)`.

        Returns:
            A future with the result or the exception of the call. The exception is ReaderDied if
            the reader process ended during the call.
        """
        return self._executor.submit(self._call, method, arguments)

    def _start(self, reader: _Reader | _ReaderProcess) -> None:
        try:
            reader.start()
        finally:
            self._idle.put(reader)
            self._started.set()

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        reader = self._idle.get()
        try:
            return reader.call(method, arguments)
        finally:
            self._idle.put(reader)

    def close(self) -> None:
        """End all reader processes and cancel pending calls."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for reader in self._readers:
            reader.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _serve(make_reader: Callable[[], Any], pipe: Connection, parent: int) -> None:
    """Answer calls until the rank has ended."""
    end_with(parent)
    # Ctrl-C reaches every process of the terminal; the rank decides when its readers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader = _Reader(make_reader)
    reader.start()
    pipe.send("started")
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((reader.call(method, arguments), None))
        except Exception as error:
            error.add_note("In a reader process:\n" + traceback.format_exc())
            _send_error(pipe, error)


def _send_error(pipe: Connection, error: Exception) -> None:
    """Send an error, or its text alone if the rank could not rebuild the exception."""
    try:
        copy.copy(error)
        pipe.send((None, error))
    except Exception:
        pipe.send((None, RuntimeError(f"{type(error).__name__}: {error}")))
