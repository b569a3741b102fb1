"""Data workers: they read in parallel with the training, in one thread or in processes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self

from flowtrain.data.calls import Answer, Call
from flowtrain.data.worker import Worker
from flowtrain.data.worker_process import WorkerProcess

# Maximum calls that a worker takes at once.
_MAX_CALLS = 64


class WorkerPool:
    """Calls methods of readers in the background, each in a worker.

    A reader may have a method `METHOD_together` beside METHOD. A worker process gives it the
    arguments of successive calls of METHOD, and it yields their results in order. If it raises, the
    calls without a result are made one by one, so that each has its own error.

    Args:
        make_reader: Creates a reader; must be picklable if there are processes.
        workers: Number of processes, or 0 for one thread of this process.
        fork: Whether the processes are forked, and so share the modules that this process has
            imported. Only for a process without threads, pool and device yet, as a forked process
            inherits the state of their locks. Others execute a program of their own, which takes
            seconds to import what it needs.
    """

    def __init__(self, make_reader: Callable[[], Any], workers: int, *, fork: bool = False) -> None:
        # Started here, not by the threads that call them: the kernel ends a worker process with
        # the thread that started it.
        self._workers: list[Worker | WorkerProcess] = [
            WorkerProcess(make_reader, number, fork=fork) for number in range(workers)
        ] or [Worker(make_reader)]
        self._calls: deque[Call] = deque()
        self._changed = threading.Condition()  # Of the calls, and of whether it is closed.
        self._closed = False
        self._answered = threading.Condition()  # Of the calls, and of how many are finished.
        self._finished = 0
        self._taken: list[Sequence[Call]] = [() for _ in self._workers]
        self._started = threading.Event()
        self._threads = False
        self.observer: Callable[..., None] | None = None
        """Called with the start and the end (`time.perf_counter_ns`) of each share of calls that a
        worker has answered, and with `index`, its number."""
        self.first_number = 0
        """Number of the first worker, for the observer."""
        # Worker processes start by themselves. Until a call, their pool has no threads, so that
        # this process can still be forked for another pool.
        if not workers:
            self._start_threads()

    @property
    def started(self) -> bool:
        """Whether a worker has started, so that calls are being answered."""
        return self._started.is_set()

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._workers)

    @property
    def finished(self) -> int:
        """Number of calls that have finished so far."""
        return self._finished

    def running(self) -> list[Call]:
        """Calls that workers make now."""
        return [call for calls in self._taken for call in calls if call.is_running]

    def submit(self, method: str, *arguments: Any) -> Call:
        """Call `reader.method(*arguments)`.

        Args:
            method: Name of the method; with dots, of a method of an attribute of the reader.
            *arguments: Its arguments.

        Raises:
            RuntimeError: The workers are closed.
        """
        return self.submit_all([(method, arguments)])[0]

    def submit_all(self, calls: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Call]:
        """`submit` for each (method, arguments); workers are woken once for all."""
        submitted = [Call(method, arguments, self._answered) for method, arguments in calls]
        with self._changed:
            if self._closed:
                raise RuntimeError("the workers are closed")
            if not self._threads:
                self._start_threads()
            self._calls.extend(submitted)
            self._changed.notify(len(submitted))
        return submitted

    def _start_threads(self) -> None:
        self._threads = True
        for number in range(len(self._workers)):
            threading.Thread(
                target=self._run, args=(number,), name="flowtrain-worker", daemon=True
            ).start()

    def _run(self, number: int) -> None:
        """Let one worker make calls until the pool is closed."""
        self._workers[number].start()
        self._started.set()
        # A frame of its own for each share: while this thread waits, it holds no result.
        while self._run_share(number):
            pass

    def _run_share(self, number: int) -> bool:
        """Let a worker make its share of the calls; returns whether there was one."""
        if not (calls := self._take()):
            return False
        self._taken[number] = calls
        start = time.perf_counter_ns()
        for answered in self._workers[number].answer(calls):
            self._settle(answered)
        self._taken[number] = ()
        if self.observer is not None:
            self.observer(start, time.perf_counter_ns(), index=self.first_number + number)
        return True

    def _settle(self, answered: Sequence[tuple[Call, Answer]]) -> None:
        with self._answered:
            for call, answer in answered:
                call.settle(answer)
            self._finished += len(answered)
            self._answered.notify_all()

    def _take(self) -> list[Call]:
        """Wait for calls, and take a worker's share of them; none if the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._closed)
            share = -(-len(self._calls) // len(self._workers))
            return [self._calls.popleft() for _ in range(min(share, _MAX_CALLS))]

    def close(self) -> None:
        """End all worker processes and cancel pending calls."""
        with self._changed:
            self._closed = True
            pending = list(self._calls)
            self._calls.clear()
            self._changed.notify_all()
        cancelled = CancelledError("the workers were closed")
        self._settle([(call, (None, cancelled)) for call in pending])
        for worker in self._workers:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
