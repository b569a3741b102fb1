"""A bar on the terminal: what a command does, how far it is, and the time left.

A command opens it with `bar`; what runs within says how far it is, with `show` or `over`, which do
nothing without a bar. There is none if standard error is not a terminal, or rich is not installed.
What the process prints within the block appears above the bar.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")

_DRAW_S = 0.25
_BAR_COLUMNS = 24
_SPEED_OF_S = 3600


@contextmanager
def bar(text: str, *, ticks: bool = True) -> Iterator[None]:
    """Show a bar during the block; if there is one already, only say what is done.

    Args:
        text: What is done first.
        ticks: Whether a thread draws the bar every quarter of a second. Otherwise only calls of
            `show` draw it, so that nothing disturbs what is measured between them.
    """
    global _shown
    if _shown is not None:
        show(text)
        yield
        return
    if (made := _made(ticks)) is None:
        yield
        return
    _shown = _Shown(made, ticks)
    show(text)
    try:
        # Its block would not end it if a signal interrupts the start.
        made.start()
        yield
        if holds_stdout():
            sys.stdout.flush()  # A row that has not ended yet.
    finally:
        made.stop()
        _shown = None


def show(text: str, done: float = 0, total: float | None = None) -> None:
    """Show what is done, and how far it is.

    Args:
        text: What is done, in a few words; a terminal may cut it.
        done: What is done of `total`, in any unit.
        total: The whole of it. The time left is that since the total changed, or less was done than
            before. None if it is not known: then the time so far is shown.
    """
    if _shown is not None:
        _shown.show(text, done, total)


def over(text: str, items: Sequence[T]) -> Iterator[T]:
    """The items, with a bar that says how many of them are done."""
    for done, item in enumerate(items):
        show(text, done, len(items))
        yield item


def is_shown() -> bool:
    """Whether there is a bar."""
    return _shown is not None


def holds_stdout() -> bool:
    """Whether a bar is where standard output goes, so that no other process may write there."""
    return _shown is not None and _is_terminal(sys.stdout)


class _Shown:
    """The bar that is shown."""

    def __init__(self, made: Progress, ticks: bool) -> None:
        self._made, self._ticks = made, ticks
        self._task: TaskID | None = None
        self._what: tuple[str, float | None] = ("", None)
        self._done = self._due = 0.0

    def show(self, text: str, done: float, total: float | None) -> None:
        before, now = self._what, time.monotonic()
        if before == (text, total) and now < self._due:
            return  # Of thousands of samples a second, few are worth a call.
        goes_on = before[1] == total and done >= self._done
        self._what, self._done, self._due = (text, total), done, now + _DRAW_S
        if self._task is not None and goes_on:
            self._made.update(self._task, description=text, completed=done)
        else:
            if self._task is not None:
                self._made.remove_task(self._task)
            self._task = self._made.add_task(text, total=total, completed=int(done))
        if not self._ticks:
            self._made.refresh()


_shown: _Shown | None = None


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None where the shell has closed it.


def _made(ticks: bool) -> Progress | None:
    if not _is_terminal(sys.stderr):
        return None
    try:
        from rich.console import Console, RenderableType
        from rich.constrain import Constrain
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.table import Column
        from rich.text import Text
    except ModuleNotFoundError:
        return None

    # Lines above the bar are not wrapped, so that a command in one can be copied.
    console = Console(stderr=True, soft_wrap=True)

    class Times(ProgressColumn):
        """The time left if it is known, and otherwise the time so far."""

        def render(self, task: Task) -> Text:
            left = task.time_remaining
            seconds = task.elapsed if left is None else left
            minutes, second = divmod(int(seconds or 0), 60)
            hours, minute = divmod(minutes, 60)
            clock = f"{hours}:{minute:02}:{second:02}"
            return Text(clock if left is None else f"{clock} left", no_wrap=True)

    class Rows(Progress):
        """Rows that leave room for the `^C` that a terminal writes behind them."""

        def get_renderables(self) -> Iterator[RenderableType]:
            table = self.make_tasks_table(self.tasks)
            yield Constrain(table, max(1, console.width - len("^C") - 1))

    return Rows(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        BarColumn(_BAR_COLUMNS),
        Times(),
        console=console,
        expand=True,
        transient=True,
        auto_refresh=ticks,
        refresh_per_second=1 / _DRAW_S,
        # By default a speed is that of 30 s, in which a large step may not end.
        speed_estimate_period=_SPEED_OF_S,
        # Lines above the bar go to standard error, which need not be where standard output is.
        redirect_stdout=_is_terminal(sys.stdout),
    )
