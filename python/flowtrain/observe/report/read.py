"""All that a report shows of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from flowtrain.config.schema import RunConfig
from flowtrain.events import FOLDER, Account, MemoryKind, read_accounts, read_memory, read_run
from flowtrain.observe.report.columns import (
    Columns,
    read_evaluations,
    read_metrics,
    read_timing,
)
from flowtrain.observe.report.lengths import PackedLengths, read_lengths
from flowtrain.observe.report.starts import Start, starts_of
from flowtrain.observe.report.timeline import Timeline, read_timeline, typical_steps
from flowtrain.observe.report.waits import Waits, waits_between
from flowtrain.observe.trace.run import place_of, read_traced
from flowtrain.plan.plan_file import PlanFile
from flowtrain.steps import CorrectionEvent
from flowtrain.train.state.choice import ChosenLayout, read_choice, read_given_plan
from flowtrain.train.state.corrections import read_corrections
from flowtrain.train.state.ending import how_it_ended, read_starts
from flowtrain.train.state.files import LOCK
from flowtrain.train.state.logs import PLANS
from flowtrain.train.state.run_folder import CONFIG, written_config
from flowtrain.train.state.strips import ReadStrip, read_strips


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedRun:
    """A run, in a report."""

    folder: Path
    name: str
    """Name of its folder, or its path where two have the same name."""
    config: RunConfig
    state: str
    """Whether it runs, or how it ended."""
    starts: Sequence[Start]
    """Its starts; the last one goes on, or ended as `state` says."""
    metrics: Columns
    timing: Columns
    evaluations: Columns
    accounts: Mapping[str, Account]
    """Time of each rank in the last attempt; empty without events."""
    memory: Mapping[str, Mapping[MemoryKind, int]]
    """Bytes of each rank by kind, at the end of its last step; empty without events."""
    waits: Waits | None
    """None without events."""
    timeline: Timeline | None
    """None without events of a whole step."""
    lengths: PackedLengths
    corrections: Sequence[CorrectionEvent]
    choice: ChosenLayout | None
    """What the layout was chosen from; None if the run was given its layout."""
    strips: Sequence[ReadStrip]
    """Held-out images that the trained model has read; a demo has some."""
    plan: PlanFile | None
    """The plan that gave the run its layout; None if none did."""

    def mean(self, name: str) -> float | None:
        """Mean of a column of the metrics over the steps that have a value; None without any."""
        values = self.metrics.get(name, numpy.empty(0))
        values = values[numpy.isfinite(values)]
        return float(values.mean()) if len(values) else None


def read_reported(folders: Sequence[Path], steps: range | None = None) -> list[ReportedRun]:
    """Read runs, which may have ended, have been killed, or be running.

    Args:
        folders: Folders of the runs.
        steps: Steps of the timelines; None takes typical ones.

    Raises:
        ValueError: A folder is none of a run, or the events of these steps are not kept.
        RunFileError, CheckpointError, EventsError, ConfigError: A file is damaged; the message
            names it.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [_read(folder, name, steps) for folder, name in zip(folders, names, strict=True)]


def _read(folder: Path, name: str, steps: range | None) -> ReportedRun:
    if not folder.joinpath(LOCK).is_file():
        raise ValueError(f"{folder}: no run has started there; give the folder of a run")
    config = written_config(folder)
    if config is None:
        raise ValueError(
            f"{folder / CONFIG}: there is no such file, and no checkpoint that has it; start the "
            "run again with --resume, which writes it"
        )
    ranks = str(config.flow.rank_layout)
    metrics, timing = read_metrics(folder), read_timing(folder)
    accounts = {label: a for label, a in read_accounts(folder).items() if any(a.seconds.values())}
    memory = read_memory(folder)
    waits, timeline = _of_events(folder, timing, steps)
    return ReportedRun(
        folder=folder,
        name=name,
        config=config,
        state=how_it_ended(folder) or f"{folder}: the run goes on",
        starts=starts_of(read_run(folder), read_starts(folder)),
        metrics=metrics,
        timing=timing,
        evaluations=read_evaluations(folder),
        accounts={label: accounts[label] for label in sorted(accounts, key=place_of)},
        memory={label: memory[label] for label in sorted(memory, key=place_of)},
        waits=waits,
        timeline=timeline,
        lengths=read_lengths(folder, steps=len(metrics["step"])),
        corrections=read_corrections(folder / PLANS),
        choice=read_choice(folder, ranks=ranks),
        strips=read_strips(folder),
        plan=read_given_plan(folder, ranks=ranks),
    )


def _of_events(
    folder: Path, timing: Columns, steps: range | None
) -> tuple[Waits | None, Timeline | None]:
    """Waits and timeline of a run; None if it has no events of steps."""
    if not any(len(rank.records) for rank in read_run(folder)):
        if steps is not None:
            raise ValueError(
                f"{folder / FOLDER}: no events, and so no timeline of steps {steps.start} to "
                f"{steps.stop - 1}; leave --steps out"
            )
        return None, None
    traced = read_traced(folder, None)
    if steps is None and not traced.steps:
        return None, None
    return waits_between(traced), read_timeline(folder, steps or typical_steps(traced, timing))
