"""A program: the actions of each rank, in the order in which the rank executes them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flowtrain.schedule.action import Action, ScheduleError


@dataclass(frozen=True, slots=True)
class Program:
    """The actions of each rank.

    Its text has a line for each action, below a line with the name of the rank:

        backbone.0:
          0 get backbone item 2 from 0
          0 forward backbone slot 1
    """

    ranks: Mapping[str, tuple[Action, ...]]
    """By the name of the rank, such as `encoder.0`."""

    def __str__(self) -> str:
        lines: list[str] = []
        for label, actions in self.ranks.items():
            lines += [f"{label}:", *(f"  {action}" for action in actions)]
        return "\n".join(lines) + "\n"

    @staticmethod
    def parse(text: str) -> Program:
        """The program of a text; empty lines, and what follows a `#`, are skipped.

        Raises:
            ScheduleError: A line is neither a rank nor an action; the message has its number.
        """
        ranks: dict[str, list[Action]] = {}
        actions: list[Action] | None = None
        for number, line in enumerate(text.splitlines(), start=1):
            line = line.partition("#")[0].strip()
            if line.endswith(":"):
                label = line[:-1]
                if label in ranks:
                    raise ScheduleError(f"line {number}: rank {label} comes a second time")
                actions = ranks[label] = []
            elif line and actions is None:
                raise ScheduleError(f"line {number}: {line!r} comes before any rank")
            elif line and actions is not None:
                try:
                    actions.append(Action.parse(line))
                except ScheduleError as error:
                    raise ScheduleError(f"line {number}: {error}") from None
        return Program({label: tuple(own) for label, own in ranks.items()})

    def diff(self, other: Program) -> Iterable[str]:
        """Lines of a unified diff from this program to another one; none if they are equal."""
        before, after = str(self).splitlines(), str(other).splitlines()
        return difflib.unified_diff(before, after, lineterm="")
