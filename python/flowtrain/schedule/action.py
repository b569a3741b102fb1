"""An action: one thing that a rank does, as plain data and as a line of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from flowtrain.config.layout import ModuleName
from flowtrain_core import FlowTrainError

Kind = Literal[
    "load",
    "resize",
    "encode",
    "put",
    "get",
    "forward",
    "backward",
    "encoder_backward",
    "reduce",
    "norm",
    "exchange",
    "apply",
    "evaluate",
    "checkpoint",
    "forget",
]
"""What a rank does.

`load`: take the texts of a step, or begin to read its images. `resize`: make the rank's segments of
the pool large enough for it. `encode`: encode an item. `put`, `get`: send and receive the record of
an item; the encoder puts rows and gets gradients, the backbone gets rows and puts gradients.
`forward`, `backward`: passes of a slot of the backbone. `encoder_backward`: backward of an item.
`reduce`: start to sum a module's gradients over its ranks. `norm`: wait for the sums, and take the
norm. `exchange`: agree with all ranks on the step. `apply`: step the optimizers. `evaluate`,
`checkpoint`: after a step, where they are due. `forget`: drop all that is kept of the step.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)
_MODULES: tuple[ModuleName, ...] = get_args(ModuleName)
_OF_SLOTS: tuple[Kind, ...] = ("forward", "backward")
_TO, _FROM, _LAST = "to", "from", "last"


class ScheduleError(FlowTrainError, ValueError):
    """A schedule cannot be read or executed; the message names rank, action and cause."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a rank does."""

    step: int
    """Number of the step, from 0, that it belongs to."""
    kind: Kind
    module: ModuleName | None = None
    """The module that it concerns; None if it concerns all that the rank holds."""
    index: int | None = None
    """Number of the item, or of the slot in `forward` and `backward`."""
    peer: int | None = None
    """Of `put` and `get`: number of the other rank among those that hold the other module."""
    last: bool = False
    """Of a backward: none of this module follows on this rank in the step, so that sums over the
    ranks may start within it."""

    @property
    def record(self) -> tuple[int, ModuleName, int]:
        """Of `put` and `get`: step, module that puts, and item, which name one record."""
        assert self.module is not None and self.index is not None
        other: ModuleName = "backbone" if self.module == "encoder" else "encoder"
        return self.step, self.module if self.kind == "put" else other, self.index

    def __str__(self) -> str:
        words = [str(self.step), self.kind]
        if self.module is not None:
            words.append(self.module)
        if self.index is not None:
            words += [unit_of(self.kind), str(self.index)]
        if self.peer is not None:
            words += [_TO if self.kind == "put" else _FROM, str(self.peer)]
        if self.last:
            words.append(_LAST)
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> Action:
        """The action of a line, such as `3 put encoder item 7 to 1`.

        Raises:
            ScheduleError: It is no action.
        """
        words = text.split()
        try:
            step, kind = int(words.pop(0)), cast(Kind, words.pop(0))
            module = cast(ModuleName, words.pop(0)) if words and words[0] in _MODULES else None
            index = _number_after(unit_of(kind), words)
            peer = _number_after(_TO if kind == "put" else _FROM, words)
            last = words == [_LAST]
            if kind in KINDS and (last or not words):
                return Action(step, kind, module, index, peer, last)
        except (IndexError, ValueError):
            pass
        raise ScheduleError(
            f"{text.strip()!r} is no action: write STEP KIND [MODULE] [item|slot NUMBER] "
            f"[to|from NUMBER] [last], with one of the kinds {', '.join(KINDS)}"
        )


def unit_of(kind: str) -> str:
    """What an action of this kind counts."""
    return "slot" if kind in _OF_SLOTS else "item"


def _number_after(word: str, words: list[str]) -> int | None:
    """Take a word and its number off the front of the words, if they are there."""
    if words[:1] != [word]:
        return None
    number = int(words[1])
    del words[:2]
    return number
