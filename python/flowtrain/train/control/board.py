"""The board: which items of a frozen run are free, taken or published.

It lies in the job's store, which executes each operation as a whole: a process that is killed at
any instruction has changed a word of the board or has not, and no lock is left behind. A claim
takes some 100 us, and an item milliseconds. A row has the words of a plan, one for each item. It is
there before the plan, and goes with it once all readers have read all of its records: its items are
done.

A claimant is one process of an encoder rank, whose number no other process of the job ever has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.control.store import JobStore

_FREE = "-"
_TAKEN, _PUBLISHED = "taken:", "published:"
# In front of the words of a row, so that no row is empty.
_ROW = "items"
_RETURNS = "board/returns"
_OPENED, _CLOSED = "board/opened/", "board/closed/"
# Added to the counter of closed rows at the end of an evaluation.
_EVALUATION = 1 << 32


@dataclass(frozen=True, slots=True)
class Progress:
    """The rows that are there; some of the first may be done already.

    Attributes:
        steps: Steps with a row.
        batches: The same of batches of evaluations, with the plan of kind "end" behind each.
        evaluations: Evaluations that the readers have finished.
    """

    steps: range
    batches: range
    evaluations: int


def _row_key(step: int) -> str:
    return f"board/{step}"


def _gone_key(claimant: int) -> str:
    return f"gone/{claimant}"


def _kind(step: int) -> str:
    return "steps" if step < FIRST_EVALUATION else "batches"


class Row:
    """The words of a plan, as they were last seen.

    Args:
        text: The row in the store.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = text.split()[1:]

    def next_free(self, first: int = 0) -> int | None:
        """The lowest free item from number `first` on."""
        for item in range(first, len(self.words)):
            if self.words[item] == _FREE:
                return item
        return None

    def is_published(self, end: int | None = None) -> bool:
        """Whether all items before number `end` are published; None asks for all of the row."""
        return all(word.startswith(_PUBLISHED) for word in self.words[:end])


class Board:
    """The board of a job.

    Args:
        store: The job's store, with a connection that only the calling thread uses.
        first: First step of this start of the run.
    """

    def __init__(self, store: JobStore, *, first: int) -> None:
        self._store = store
        self._first = first

    def open(self, plan: StepPlan) -> None:
        """Add the row of a plan that is about to be published; all of its items are free."""
        self._store.put_text(_row_key(plan.step), " ".join([_ROW, *[_FREE] * len(plan.items)]))
        self._store.count(f"{_OPENED}{_kind(plan.step)}", 1)

    def close(self, plan: StepPlan) -> None:
        """Remove the row of a plan that all readers have executed."""
        # One counter, so that the batches are always those of the next evaluation.
        ends = not plan.is_step and plan.kind == "end"
        self._store.count(f"{_CLOSED}{_kind(plan.step)}", 1 + ends * _EVALUATION)
        self._store.delete(_row_key(plan.step))

    def progress(self) -> Progress:
        """The rows that are there; there may be others by the time of the return."""
        steps, _ = self._rows(self._first)
        return Progress(steps, *self._rows(FIRST_EVALUATION))

    def _rows(self, first: int) -> tuple[range, int]:
        kind = _kind(first)
        evaluations, closed = divmod(self._store.count(f"{_CLOSED}{kind}"), _EVALUATION)
        return range(first + closed, first + self._store.count(f"{_OPENED}{kind}")), evaluations

    def row(self, step: int) -> Row | None:
        """The row of a plan; None if it is not published yet, or done."""
        text = self._store.peek(_row_key(step))
        return None if text is None else Row(text)

    def claim(self, step: int, row: Row, item: int, claimant: int) -> tuple[bool, Row | None]:
        """Take an item, if its row is as it was last seen.

        Returns:
            Whether it is taken, and the row as it is now.
        """
        row.words[item] = f"{_TAKEN}{claimant}"
        text = " ".join([_ROW, *row.words])
        found = self._store.swap(_row_key(step), row.text, text)
        return found == text, None if found is None else Row(found)

    def publish(self, step: int, item: int, claimant: int) -> bool:
        """Turn an item that the claimant has taken into one that it has published.

        The record follows: if the claimant is killed in between, the reader returns the item.

        Returns:
            False for a late twin: the item was returned, and may be another's by now.
        """
        taken = f"{_TAKEN}{claimant}"

        def published(words: list[str]) -> bool:
            is_mine = words[item] == taken
            words[item] = f"{_PUBLISHED}{claimant}" if is_mine else words[item]
            return is_mine

        return self._change(step, published)

    def give_back(self, step: int, item: int, claimant: int) -> None:
        """Return an item that the claimant has taken, and will not encode."""
        self._free(step, lambda at, word: at == item and word == f"{_TAKEN}{claimant}")

    def gone_publisher(self, step: int, item: int) -> int | None:
        """The claimant that has published an item and is gone; None if there is none."""
        row = self.row(step)
        if row is None or not row.words[item].startswith(_PUBLISHED):
            return None
        claimant = int(row.words[item].removeprefix(_PUBLISHED))
        return claimant if self.is_gone(claimant) else None

    def reissue(self, step: int, item: int, claimant: int) -> None:
        """Return a published item whose record is not readable, as its claimant is gone.

        Called by the reader of the item, once nothing is left in its inbox.
        """
        self._free(step, lambda at, word: at == item and word == f"{_PUBLISHED}{claimant}")

    def is_gone(self, claimant: int) -> bool:
        """Whether a claimant is dead, silent, or has left."""
        return self._store.has(_gone_key(claimant))

    def reap(self, claimant: int) -> int:
        """Return the items that a claimant has taken and not published; it is gone from now on.

        Returns:
            Number of items.
        """
        self._store.put(_gone_key(claimant), True)
        progress = self.progress()
        taken = f"{_TAKEN}{claimant}"
        items = sum(
            self._free(step, lambda _, word: word == taken)
            for step in (*progress.steps, *progress.batches)
        )
        self._store.count(_RETURNS, 1)  # Without items, too: the claimant may go on later.
        return items

    def returns(self) -> int:
        """A number that has changed if an item has become free again, or a claimant is gone."""
        return self._store.count(_RETURNS)

    def _free(self, step: int, wanted: Callable[[int, str], bool]) -> int:
        freed = 0

        def free(words: list[str]) -> bool:
            nonlocal freed
            chosen = [at for at, word in enumerate(words) if wanted(at, word)]
            freed = len(chosen)
            for at in chosen:
                words[at] = _FREE
            return freed > 0

        if not self._change(step, free):
            return 0
        self._store.count(_RETURNS, 1)
        return freed

    def _change(self, step: int, change: Callable[[list[str]], bool]) -> bool:
        """Change the words of a row as a whole, unless `change` returns False or it is done."""
        key = _row_key(step)
        text = self._store.peek(key)
        while text is not None:
            words = text.split()[1:]
            if not change(words):
                return False
            wanted = " ".join([_ROW, *words])
            found = self._store.swap(key, text, wanted)
            if found == wanted:
                return True
            text = found
        return False
