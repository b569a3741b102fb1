"""The pool, and memory."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.events import MemoryKind
from flowtrain.observe.report.charts.memory import memory_of_ranks
from flowtrain.observe.report.charts.ranks import MAX_LEVELS, pool_levels
from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import of, said_of
from flowtrain.observe.report.totals import peak_memory
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, size

_MEMORY: tuple[tuple[str, str, dict[MemoryKind, str]], ...] = (
    (
        "Memory of the GPUs",
        "What torch has reserved and allocated for each rank, at most.",
        {"reserved": "reserved", "allocated": "allocated"},
    ),
    (
        "Memory of the ranks",
        "Resident set of the process of each rank, at most, with its weights, states, activations "
        "and libraries; and what of it is shared with other processes at its last step, as the "
        "pool is. Processes of data workers are not in it.",
        {"resident": "resident set, peak", "shared": "of it shared"},
    ),
)


def pool(runs: Sequence[ReportedRun]) -> Section:
    """How full the pool was."""
    used = [run for run in runs if run.timing.get("pool_bytes", run.timing["step"][:0]).any()]
    findings = [
        said_of(
            run,
            runs,
            f"{size(run.timing['bytes_through_pool'].sum())} crossed the pool, which had at most "
            f"{size(run.timing['pool_bytes'].max())}.",
        )
        for run in used
    ]
    missing = [
        f"Pool{of(run, runs)}: no record crossed it; each rank read what it has encoded itself, "
        "or no sample has an image."
        for run in runs
        if run not in used and len(run.timing["step"])
    ]
    figures = []
    for run in runs:
        if run.timeline is not None and (chart := pool_levels(run.timeline)):
            about = (
                "Bytes of each rank's records in the pool during the timeline above: from the end "
                "of their put to the end of their get; of several ranks, of the "
                f"{MAX_LEVELS} with the most."
            )
            figures.append(Figure(f"Records in the pool{of(run, runs)}", about, chart))
    lines = [
        Line(run.name, said, run.timing["step"], run.timing[name])
        for run in used
        for name, said in (("pool_bytes", "size of the pool"), ("bytes_through_pool", "crossed it"))
    ]
    if chart := over_steps(lines, "bytes", height=180):
        about = (
            "Size of all segments at the update of a step, and bytes that crossed since the update "
            "before, also in an evaluation between them."
        )
        figures.append(Figure("Pool over the steps", about, chart, wide=False))
    in_use = [
        Line(
            run.name,
            "in use",
            run.timing["step"],
            run.timing["pool_in_use_bytes"] / run.timing["pool_bytes"].clip(1),
        )
        for run in used
    ]
    if used and not any(line.values.any() for line in in_use):
        missing.append("Pool in use: it was empty at the update of every step.")
    elif chart := over_steps(in_use, "in use", percent=True, height=180):
        about = (
            "Share of the pool in use at the update of a step; near 100 % producers wait for free "
            "slabs, and pool.scale may be raised."
        )
        figures.append(Figure("Pool in use", about, chart, wide=False))
    memory = [_memory(run, runs) for run in runs]
    figures += [figure for of_run in memory for figure in of_run]
    lines = [
        Line(run.name, name.removeprefix("memory "), run.timing["step"], run.timing[name])
        for run in runs
        for name in run.timing
        if name.startswith("memory ")
    ]
    if chart := over_steps(lines, "bytes", height=180):
        about = (
            "Peak memory of the first rank of each world up to a step. Memory that grows to the "
            "end of a run is a leak, or longer samples."
        )
        figures.append(Figure("Peak memory over the steps", about, chart))
    findings += [
        said_of(run, runs, f"{label} used the most memory: {size(count)} {said}.")
        for run in runs
        if (peak := peak_memory(run)) is not None
        for label, count, said in [peak]
    ]
    missing += [
        f"Memory of the ranks{of(run, runs)}: no rank has ended a step, or an older FlowTrain has "
        "trained the run."
        for run in runs
        if not run.memory
    ]
    return Section("Pool and memory", "docs/report.md#pool-and-memory", findings, figures, missing)


def _memory(run: ReportedRun, runs: Sequence[ReportedRun]) -> list[Figure]:
    """Memory of each rank, in its process and on its GPU."""
    figures = []
    for title, about, kinds in _MEMORY:
        sizes = {
            label: {said: found[kind] for kind, said in kinds.items() if kind in found}
            for label, found in run.memory.items()
        }
        if any(sizes.values()):
            chart = memory_of_ranks(sizes)
            figures.append(Figure(f"{title}{of(run, runs)}", about, chart))
    return figures
