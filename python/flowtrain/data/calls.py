"""Calls that data workers make, and their results."""

from __future__ import annotations

import threading
from typing import Any

Answer = tuple[Any, BaseException | None]
"""Result and error of a call; one of them is None."""


class Call:
    """A call of a method of a reader, made in the background.

    As `concurrent.futures.Future`, of which each object has locks of its own: a step has hundreds
    of calls, whose locks took longer than what is planned with their results.

    Attributes:
        method: Name of the method; with dots, of a method of an attribute of the reader.
        arguments: Its arguments.
        is_running: Whether a worker makes it now.

    Args:
        method: As above.
        arguments: As above.
        answered: Notified when calls have been answered; many calls share it.
    """

    __slots__ = ("_answer", "_answered", "arguments", "is_running", "method")

    def __init__(
        self, method: str, arguments: tuple[Any, ...], answered: threading.Condition
    ) -> None:
        self.method = method
        self.arguments = arguments
        self.is_running = False
        self._answer: Answer | None = None
        self._answered = answered

    def settle(self, answer: Answer) -> None:
        """Set the answer; the caller holds `answered`, and notifies it."""
        self.is_running = False
        self._answer = answer

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._answer is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the call is done; returns whether it is."""
        if self._answer is None:
            with self._answered:
                self._answered.wait_for(self.done, timeout_s)
        return self.done()

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result.

        Raises:
            TimeoutError: There is none yet.
            Exception: The error of the call. It is WorkerDied if the worker process ended during
                the call, and CancelledError if the workers were closed before it.
        """
        value, error = self._wait_for_answer(timeout_s)
        if error is not None:
            raise error
        return value

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the error, as `result`; None if there is a result."""
        return self._wait_for_answer(timeout_s)[1]

    def _wait_for_answer(self, timeout_s: float | None) -> Answer:
        self.wait(timeout_s)
        if self._answer is None:
            raise TimeoutError(f"{self.method}{self.arguments}: not done within {timeout_s:g} s")
        return self._answer
