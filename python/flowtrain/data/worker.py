"""A worker: answers calls of the methods of a reader, here or in a process of its own."""

from __future__ import annotations

import copy
import functools
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection
from operator import attrgetter, itemgetter
from typing import Any

from flowtrain.data.calls import Answer, Call
from flowtrain.data.shared_space import SharedSpace
from flowtrain.error_texts import reason_of
from flowtrain.parent import end_with
from flowtrain.signals import leave_to_parent

# Time after which a worker process sends the results that it has.
_ANSWER_S = 0.02


class Worker:
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
            except BaseException as error:  # It would end the thread, and not the call.
                answer = None, error
            yield [(call, answer)]

    def end(self) -> None:
        """Nothing to do."""


def serve(
    make_reader: Callable[[], Any], pipe: Connection, space: SharedSpace, parent: int
) -> None:
    """Answer calls until the rank has ended.

    Args:
        make_reader: Creates the reader.
        pipe: Its calls and their answers.
        space: Takes the arrays of the answers.
        parent: Process of the rank, with which this one ends.
    """
    end_with(parent)
    leave_to_parent()
    worker = Worker(make_reader)
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
            answers.append((space.put(answer[0]), answer[1]))
            if time.monotonic() - sent > _ANSWER_S:
                _send(pipe, space, answers)
                answers = []
                sent = time.monotonic()
        if answers:
            _send(pipe, space, answers)


def _answers(worker: Worker, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> Iterator[Answer]:
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


def _answer(worker: Worker, method: str, arguments: tuple[Any, ...]) -> Answer:
    try:
        return worker.call(method, arguments), None
    except Exception as error:
        error.add_note("In a worker process:\n" + traceback.format_exc())
        try:
            copy.copy(error)
        except Exception:  # The rank could not rebuild it.
            return None, _as_text(error)
        return None, error


def _send(pipe: Connection, space: SharedSpace, answers: Sequence[Answer]) -> None:
    """Send answers; one that cannot be sent becomes an error."""
    try:
        pipe.send((answers, space.spilled_bytes))
    except OSError:
        raise  # The rank has ended.
    except Exception as error:
        if len(answers) == 1:
            space.drop(answers[0][0])
            pipe.send(([(None, _as_text(error))], space.spilled_bytes))
            return
        for answer in answers:
            _send(pipe, space, [answer])


def _as_text(error: Exception) -> RuntimeError:
    return RuntimeError(reason_of(error))


def main() -> None:
    """Serve in an executed process, whose arguments are numbers: parent, pipe, and the space."""
    parent, pipe, *space = map(int, sys.argv[1:])
    end_with(parent)
    connection = Connection(pipe)
    make_reader = connection.recv()
    serve(make_reader, connection, SharedSpace.of_writer(*space), parent)


if __name__ == "__main__":
    main()
