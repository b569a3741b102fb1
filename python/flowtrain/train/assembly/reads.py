"""Samples and models that the ranks of a run read: only files that the launcher hashed."""

from __future__ import annotations

from functools import partial

from flowtrain.config.schema import RunConfig
from flowtrain.data.records import is_stream
from flowtrain.data.workers import WorkerPool
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.input.spooling import StreamReader
from flowtrain.train.input.workers import Reading, fork_workers, reads_samples
from flowtrain.train.state.logs import SPOOL
from flowtrain.train.state.resume import check_model, data_state, held_out_state


def reading_of(config: RunConfig) -> Reading:
    """Samples and model for the readers of a run.

    Raises:
        RunFileError: The file with what the launcher hashed is damaged.
    """
    held_out = config.held_out
    return Reading(
        model=config.model.folder,
        data=config.data,
        state=data_state(config.run),
        max_tokens=config.train.microbatch_tokens,
        spool=config.run / SPOOL,
        held_out=None if held_out is None else (held_out, held_out_state(config.run)),
        check=partial(check_model, config),
    )


def workers_of(config: RunConfig, world: str, rank: int) -> WorkerPool | None:
    """Start the workers of a rank, as `fork_workers`; None for a rank that reads nothing."""
    if not reads_samples(config.flow.chosen, world, rank):
        return None
    return fork_workers(reading_of(config), config.data.workers)


def stream_of(config: RunConfig, world: str, rank: int) -> WorkerPool | None:
    """Start the process that reads the stream of a run, on the rank that plans.

    Called before `workers_of`, and like it before the rank has threads, a pool or a device.

    Args:
        config: The run.
        world: World of the rank.
        rank: Its number there.

    Returns:
        The reader, a `StreamReader`; None for other ranks, and if the data are no stream.
    """
    found = config.flow.chosen.world(world)
    if found is None or "backbone" not in found.modules or rank != 0:
        return None
    if not is_stream(data_state(config.run)):
        return None
    [source] = config.data.all_sources
    assert source.dataset is not None
    return WorkerPool(partial(StreamReader, source.dataset, config.run / SPOOL), 1, fork=True)


def reads_of(config: RunConfig, workers: WorkerPool) -> dict[str, SampleReads]:
    """Reads of the data set of each kind of plan."""
    timeout_s = config.flow.timeout_s
    reads = {"train": SampleReads(workers, config.data.name, timeout_s=timeout_s)}
    if (held_out := config.held_out) is not None:
        reads["eval"] = SampleReads(
            workers, held_out.name, timeout_s=timeout_s, attribute="held_out"
        )
    return reads
