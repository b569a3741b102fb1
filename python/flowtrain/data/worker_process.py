"""A worker in a process of its own, as the rank that started it sees it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from flowtrain.data.calls import Answer, Call
from flowtrain.data.shared_space import SharedSpace
from flowtrain.data.worker import serve
from flowtrain.signals import withheld
from flowtrain_core import FlowTrainError

# Timeout for a process to end after SIGKILL, or after its pipe was closed.
_END_S = 5.0


class WorkerDied(FlowTrainError, RuntimeError):
    """A worker process ended before its rank. The message names the process and how it ended."""


class WorkerProcess:
    """A worker in a process of its own, connected by a pipe.

    Pipe and shared memory have no names, so that SIGKILL of both processes leaves nothing behind.
    Calls are sent together, and their results return together if they are ready within 20 ms: each
    message interrupts the training. Arrays return in shared memory.

    Args:
        make_reader: Creates the reader.
        number: Number of the worker, used in messages.
        fork: Whether it is forked; see `WorkerPool`.
    """

    def __init__(self, make_reader: Callable[[], Any], number: int, *, fork: bool) -> None:
        self._name = f"worker process {number}"
        self._pipe, theirs = Pipe()
        self._space = SharedSpace()
        self._has_spilled = False
        self._process: _Process = (
            _forked(make_reader, theirs, self._space) if fork else _Executed(theirs, self._space)
        )
        # The pipe reports the end of the process only if no other process holds that side open.
        theirs.close()
        self._space.given_away()
        if not fork:
            self._tell(make_reader)

    def start(self) -> None:
        """Wait until the process can answer; its death is left to the calls."""
        with suppress(EOFError, OSError):
            self._pipe.recv()

    def answer(self, calls: Sequence[Call]) -> Iterator[list[tuple[Call, Answer]]]:
        """Let the process make calls, one after the other."""
        waiting = deque(calls)
        try:
            self._pipe.send([(call.method, call.arguments) for call in calls])
            while waiting:
                waiting[0].is_running = True
                answers, spilled_bytes = self._pipe.recv()
                answers = [(self._space.get(value), error) for value, error in answers]
                self._tell_spilled(spilled_bytes)
                yield [(waiting.popleft(), answer) for answer in answers]
        except Exception as cause:
            error = self._death(cause)
            yield [(call, (None, error)) for call in waiting]

    def end(self) -> None:
        self._process.kill()
        # A process that waits for a disk ends only when the disk responds.
        self._process.join(_END_S)

    def _tell(self, make_reader: Callable[[], Any]) -> None:
        """Send an executed process its first message; its death is left to the calls.

        Raises:
            Exception: It cannot be sent.
        """
        try:
            with suppress(OSError):
                self._pipe.send(make_reader)
        except BaseException:
            self.end()
            raise

    def _tell_spilled(self, spilled_bytes: int) -> None:
        """Print once that answers are slow for want of shared memory."""
        if not spilled_bytes or self._has_spilled:
            return
        self._has_spilled = True
        print(
            f"flowtrain: {self._name}: {spilled_bytes} bytes of pixels found no place in "
            f"its {self._space.size} bytes of shared memory, and cross a pipe, which is slower; "
            "raise data.workers, each of which has its own, or lower train.global_batch or the "
            "pixels of an image",
            file=sys.stderr,
            flush=True,
        )

    def _death(self, cause: Exception) -> WorkerDied:
        """End the process, so that no later call takes the answer of one of these.

        Returns:
            How it ended, unless it was ended here.
        """
        left = isinstance(cause, EOFError | ConnectionError)
        if left:
            self._process.join(_END_S)
        code = self._process.exitcode
        self.end()
        if not left:
            how = f"ended, since its answer cannot be read ({type(cause).__name__}: {cause})"
        elif code is None:
            how = f"it closed its pipe, did not end within {_END_S:g} s, and was killed"
        elif code < 0:
            how = f"killed by signal {-code}; if memory ran out, lower data.workers"
        else:
            how = f"exit code {code}; its standard error says why"
        death = WorkerDied(f"{self._name} (pid {self._process.pid}): {how}")
        death.__cause__ = cause
        return death


class _Process(Protocol):
    """The methods of a `multiprocessing` process that a pool of workers uses."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    def kill(self) -> None: ...

    def join(self, timeout: float) -> None: ...


def _forked(make_reader: Callable[[], Any], pipe: Connection, space: SharedSpace) -> _Process:
    """A process with all that this one has imported."""
    process = multiprocessing.get_context("fork").Process(
        target=serve, args=(make_reader, pipe, space, os.getpid()), daemon=True
    )
    with withheld():
        process.start()
    return process


class _Executed:
    """A process that inherits nothing but its ends of pipe and memory.

    Unlike those that `multiprocessing` spawns, it does not run the main program again, which may
    have no `if __name__ == "__main__"`.
    """

    def __init__(self, pipe: Connection, space: SharedSpace) -> None:
        files = (pipe.fileno(), *space.files())
        arguments = map(str, (os.getpid(), *files, space.size))
        path = os.pathsep.join(str(folder) or os.getcwd() for folder in sys.path)
        with withheld():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flowtrain.data.worker", *arguments],
                pass_fds=files,
                # Workers are many, and read beside a loop that computes: each has one thread.
                env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def join(self, timeout: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
