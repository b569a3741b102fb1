"""Corrections of costs, as `plan.log` has them."""

from __future__ import annotations

from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.config.flow import FlowConfig
from flowtrain.steps import CorrectionEvent, StepPlan


def read_corrections(log: Path) -> list[CorrectionEvent]:
    """Events of a `plan.log`, in order of their steps; none if there is no such file.

    Raises:
        ConfigError: A line of an event cannot be read; the message names it.
    """
    if not log.exists():
        return []
    events = []
    with log.open("rb") as file:
        for number, line in enumerate(file, 1):
            if CorrectionEvent.is_json_of(line):
                try:
                    events.append(CorrectionEvent.from_json(line))
                except ValueError as error:
                    raise ConfigError(
                        f"{log}:{number}: {error}; give the plan.log of a run as it was written"
                    ) from error
    return sorted(events, key=lambda event: event.step)


def check_corrections(flow: FlowConfig) -> None:
    """Refuse a log that cannot be followed.

    Raises:
        ConfigError: `flow.corrections` does not exist, or cannot be read.
    """
    if flow.corrections is None:
        return
    if not flow.corrections.is_file():
        raise ConfigError(
            f"flow.corrections={flow.corrections}: there is no such file; give the plan.log of a "
            "run with flow.correct"
        )
    if read_corrections(flow.corrections):
        return
    with flow.corrections.open("rb") as file:
        first = file.readline()
    try:
        StepPlan.from_json(first)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"flow.corrections={flow.corrections}: it is no plan.log; give that of a run with "
            "flow.correct"
        ) from error
