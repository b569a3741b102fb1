"""Why a run has its layout: what was estimated when it was chosen, or the plan that gave it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.plan.applied import run_layout
from flowtrain.plan.host import Choice
from flowtrain.plan.plan_file import PlanFile, read_plan
from flowtrain.train.state import atomic
from flowtrain.train.state.files import RunFileError, read_object

_CHOSEN = "layout.json"
_PLAN = "plan.json"
_WAY_OUT = "remove it; it says only why the run has its layout"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenLayout:
    """A layout that was chosen from estimates, beside the next best one."""

    ranks: str
    """Which ranks there are, as `RankLayout` is written."""
    layout: str
    """The ranks, with what else was chosen."""
    step_s: float
    """Estimated seconds of a step."""
    where: str
    """What the ranks run on."""
    source: str
    """What the estimate rests on."""
    next_best: str | None
    next_best_s: float | None
    """None if there was no other layout."""


def write_choice(run: Path, *, choice: Choice | None, plan: Path | None) -> None:
    """Write to a run's folder why it has its layout, if this start decides it.

    Args:
        run: Folder of the run.
        choice: A layout that was chosen now.
        plan: The `plan.json` that gives the layout.

    Raises:
        OSError: A file cannot be read or written.
    """
    if choice is not None:
        other, seconds = choice.next_best or (None, None)
        chosen = ChosenLayout(
            ranks=str(choice.layout.ranks),
            layout=str(choice.layout),
            step_s=choice.step_s,
            where=choice.where,
            source=choice.source,
            next_best=None if other is None else str(other),
            next_best_s=seconds,
        )
        atomic.write_text(run / _CHOSEN, json.dumps(asdict(chosen), indent=2) + "\n")
    if plan is not None and plan.resolve() != (run / _PLAN).resolve():
        atomic.write_text(run / _PLAN, plan.read_text(encoding="utf-8"))


def read_choice(run: Path, *, ranks: str) -> ChosenLayout | None:
    """What a layout was chosen from; None if a run with these ranks was given its layout.

    Raises:
        RunFileError: The file is damaged.
    """
    path = run / _CHOSEN
    if not path.exists():
        return None
    names = ChosenLayout.__dataclass_fields__
    found = read_object(path, names, way_out=_WAY_OUT)
    chosen = ChosenLayout(**{name: found[name] for name in names})
    numbers = chosen.step_s, chosen.next_best_s or 0.0
    if not all(isinstance(each, int | float) for each in numbers):
        raise RunFileError(f"{path}: step_s={chosen.step_s!r} is no number; {_WAY_OUT}")
    # A resumed run may be given another layout.
    return chosen if chosen.ranks == ranks else None


def read_given_plan(run: Path, *, ranks: str) -> PlanFile | None:
    """The plan that gave a run with these ranks its layout; None if none did.

    Raises:
        RunFileError: The file is damaged.
    """
    path = run / _PLAN
    if not path.exists():
        return None
    try:
        file = read_plan(path)
        given = str(run_layout(file, source=str(path)).ranks)
    except ConfigError as error:
        raise RunFileError(f"{error}; or {_WAY_OUT}") from error
    return file if given == ranks else None
