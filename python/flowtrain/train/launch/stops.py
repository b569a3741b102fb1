"""Signals to a gateway: the first lets the ranks that need it leave, the second ends it at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowtrain.signals import STOPS

_POLL_S = 0.1


def say(text: str) -> None:
    """Print a line on standard error."""
    print(f"flowtrain: {text}", file=sys.stderr, flush=True)


class Stops:
    """Signals that ask this process to stop: the first lets the ranks that need it leave.

    Attributes:
        ranks: Returns the labels of these ranks.
        asks: Asks them to leave, or to end the run, if they cannot.
        code: Exit code of this process, unless a signal ends it.
    """

    def __init__(self) -> None:
        self.ranks: Callable[[], Sequence[str]] = lambda: ()
        self.asks: Callable[[], None] = lambda: None
        self.code = 0
        self.numbers: list[int] = []
        for number in STOPS:
            asyncio.get_running_loop().add_signal_handler(number, self.numbers.append, number)

    async def wait(self) -> None:
        """Wait for a signal, and until no rank needs this process or a second signal comes."""
        while not self.numbers:
            await asyncio.sleep(_POLL_S)
        if ranks := self.ranks():
            name = signal.Signals(self.numbers[0]).name
            say(f"{name}: waits for {', '.join(ranks)} to leave; a second one ends it at once")
            self.asks()
        while self.ranks() and len(self.numbers) < 2:
            await asyncio.sleep(_POLL_S)


async def stopped_by_signals(work: Callable[[Stops], Awaitable[None]]) -> int:
    """Run until the end, or until signals end it.

    Returns:
        Exit code.
    """
    stops = Stops()
    await first_of(work(stops), stops.wait())
    return 128 + stops.numbers[0] if stops.numbers else stops.code


async def first_of(*works: Awaitable[Any]) -> None:
    """Wait until one has ended, and end the others. Raises its error."""
    tasks = {asyncio.ensure_future(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
