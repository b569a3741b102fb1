"""Data workers: they read in parallel with the training, in one thread or in processes."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection
from operator import attrgetter, itemgetter
from types import TracebackType
from typing import Any, Self

from flowtrain.data.calls import Answer, Call
from flowtrain.data.shared_space import SharedSpace
from flowtrain.parent import end_with
from flowtrain.signals import leave_to_parent, withheld
from flowtrain_core import FlowTrainError

# Timeout for a process to end after SIGKILL, or after its pipe was closed.
_END_S = 5.0
# Maximum calls that a worker takes at once, and the time after which it sends the results it has.
_MAX_CALLS = 64
_ANSWER_S = 0.02


class WorkerDied(FlowTrainError, RuntimeError):
    """A worker process ended before its rank. The message names the process and how it ended."""


class _Worker:
    """A worker in this process; its reader is created on first use."""

    def __init__(self, make_reader: Callable[[], Any]) -> None:
        self.make = functools.cache(make_reader)

    def start(self) -> None:
        """Make the reader; an error is left to the calls, each of which tries again."""
        with suppress(Exception):
            self.make()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return attrgetter(method)(self.make())(*arguments)

    def answer(self, calls: Sequence[Call]) -> Iterator[list[tuple[Call, Answer]]]:
        """Make calls, one after the other."""
        for call in calls:
            call.is_running = True
            try:
                answer: Answer = self.call(call.method, call.arguments), None
            except Exception as error:
                answer = None, error
            yield [(call, answer)]

    def end(self) -> None:
        """Nothing to do."""


class _WorkerProcess:
    """A worker in a process of its own, connected by a pipe.

    Pipe and shared memory have no names, so that SIGKILL of both processes leaves nothing behind.
    Calls are sent together, and their results return together if they are ready within `_ANSWER_S`:
    each message interrupts the training. Arrays of a forked process return in shared memory.
    """

    def __init__(self, make_reader: Callable[[], Any], number: int, *, fork: bool) -> None:
        context: Any = multiprocessing.get_context("fork" if fork else "spawn")
        self._pipe, theirs = context.Pipe()
        self._space = SharedSpace() if fork else None
        self._has_spilled = False
        self._process = context.Process(
            target=_serve,
            args=(make_reader, theirs, self._space, os.getpid()),
            name=f"worker process {number}",
            daemon=True,
        )
        with withheld():
            self._process.start()
        # The pipe reports the end of the process only if no other process holds that side open.
        theirs.close()
        if self._space is not None:
            self._space.forked()

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
                if self._space is not None:
                    answers = [(self._space.get(value), error) for value, error in answers]
                self._tell_spilled(spilled_bytes)
                yield [(waiting.popleft(), answer) for answer in answers]
        except Exception as cause:
            self._process.kill()  # So that no later call takes the answer of one of these.
            error = self._death(cause)
            yield [(call, (None, error)) for call in waiting]

    def end(self) -> None:
        self._process.kill()
        # A process that waits for a disk ends only when the disk responds.
        self._process.join(_END_S)

    def _tell_spilled(self, spilled_bytes: int) -> None:
        """Print once that answers are slow for want of shared memory."""
        if not spilled_bytes or self._has_spilled or self._space is None:
            return
        self._has_spilled = True
        print(
            f"flowtrain: {self._process.name}: {spilled_bytes} bytes of pixels found no place in "
            f"its {self._space.size} bytes of shared memory, and cross a pipe, which is slower; "
            "raise data.workers, each of which has its own, or lower train.global_batch or the "
            "pixels of an image",
            file=sys.stderr,
            flush=True,
        )

    def _death(self, cause: Exception) -> WorkerDied:
        self._process.join(_END_S)
        code = self._process.exitcode
        if not isinstance(cause, EOFError | OSError):
            how = f"ended, since its answer cannot be read ({type(cause).__name__}: {cause})"
        elif code is None:
            how = f"it closed its pipe, and has not ended within {_END_S:g} s"
        elif code < 0:
            how = f"killed by signal {-code}; if memory ran out, lower data.workers"
        else:
            how = f"exit code {code}; its standard error says why"
        death = WorkerDied(f"{self._process.name} (pid {self._process.pid}): {how}")
        death.__cause__ = cause
        return death


class WorkerPool:
    """Calls methods of readers in the background, each in a worker.

    A reader may have a method `METHOD_together` beside METHOD. A worker process gives it the
    arguments of successive calls of METHOD, and it yields their results in order. If it raises, the
    calls without a result are made one by one, so that each has its own error.

    Args:
        make_reader: Creates a reader; must be picklable if there are processes.
        workers: Number of processes, or 0 for one thread of this process.
        fork: Whether the processes are forked, and so share the modules that this process has
            imported, instead of spawned. Only for a process without threads, pool and device yet,
            as a forked process inherits the state of their locks.
    """

    def __init__(self, make_reader: Callable[[], Any], workers: int, *, fork: bool = False) -> None:
        # Started here, not by the threads that call them: the kernel ends a worker process with
        # the thread that started it.
        self._workers: list[_Worker | _WorkerProcess] = [
            _WorkerProcess(make_reader, number, fork=fork) for number in range(workers)
        ] or [_Worker(make_reader)]
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


def _serve(
    make_reader: Callable[[], Any], pipe: Connection, space: SharedSpace | None, parent: int
) -> None:
    """Answer calls until the rank has ended."""
    end_with(parent)
    leave_to_parent()
    worker = _Worker(make_reader)
    worker.start()
    pipe.send("started")
    while True:
        try:
            calls = pipe.recv()
        except EOFError:
            return
        answers: list[Answer] = []
        sent = time.monotonic()
        for answer in _answers(worker, calls):
            answers.append(answer if space is None else (space.put(answer[0]), answer[1]))
            if time.monotonic() - sent > _ANSWER_S:
                _send(pipe, space, answers)
                answers = []
                sent = time.monotonic()
        if answers:
            _send(pipe, space, answers)


def _answers(worker: _Worker, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> Iterator[Answer]:
    """Answers of calls, in order."""
    for method, group in groupby(calls, key=itemgetter(0)):
        waiting = deque(arguments for _, arguments in group)
        if len(waiting) > 1:
            with suppress(Exception):  # The calls below raise it again, if it is theirs.
                for result in worker.call(f"{method}_together", (list(waiting),)):
                    waiting.popleft()
                    yield result, None
        for arguments in waiting:
            yield _answer(worker, method, arguments)


def _answer(worker: _Worker, method: str, arguments: tuple[Any, ...]) -> Answer:
    try:
        return worker.call(method, arguments), None
    except Exception as error:
        error.add_note("In a worker process:\n" + traceback.format_exc())
        try:
            copy.copy(error)
        except Exception:  # The rank could not rebuild it.
            return None, _as_text(error)
        return None, error


def _send(pipe: Connection, space: SharedSpace | None, answers: Sequence[Answer]) -> None:
    """Send answers; one that cannot be sent becomes an error."""
    spilled_bytes = 0 if space is None else space.spilled_bytes
    try:
        pipe.send((answers, spilled_bytes))
    except OSError:
        raise  # The rank has ended.
    except Exception as error:
        if len(answers) == 1:
            if space is not None:
                space.drop(answers[0][0])
            pipe.send(([(None, _as_text(error))], spilled_bytes))
            return
        for answer in answers:
            _send(pipe, space, [answer])


def _as_text(error: Exception) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")
