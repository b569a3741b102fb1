"""Data workers of a run, which read only the files that the launcher hashed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from flowtrain.config.schema import RunConfig
from flowtrain.data.records import State, index_for_forks
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import WorkerPool
from flowtrain.models.registry import family_for
from flowtrain.train.state.logs import SPOOL
from flowtrain.train.state.resume import check_model, data_state, held_out_state


def reader_factory(config: RunConfig) -> Callable[[], SampleReader]:
    """A function that creates a reader, in any process of the run.

    The reader's attribute `held_out` reads the held-out samples.
    """
    return partial(_create_reader, config, data_state(config.run), held_out_state(config.run))


def fork_workers(config: RunConfig, world: str, rank: int) -> WorkerPool | None:
    """Start the workers of a rank: of images for the encoder, and of samples for the planner.

    Called before the rank has threads, a pool or a device: the worker processes are forked, so that
    they need not import the model's family again, and share the index of the data file.

    Args:
        config: The run.
        world: World of the rank.
        rank: Its number there.

    Returns:
        The workers, or None for a rank that reads nothing.
    """
    found = config.flow.chosen.world(world)
    modules = found.modules if found is not None else ()
    if "encoder" not in modules and not ("backbone" in modules and rank == 0):
        return None
    with suppress(Exception):  # Raised again once the rank has joined, and can report it.
        family_for(config.model.folder)
        index_for_forks(config.data, data_state(config.run))
        if config.held_out is not None and (state := held_out_state(config.run)) is not None:
            index_for_forks(config.held_out, state)
    return WorkerPool(reader_factory(config), config.data.workers, fork=True)


def _create_reader(config: RunConfig, state: State, held_out_state: State | None) -> SampleReader:
    reader = SampleReader(
        config.model.folder,
        config.data,
        config.train.microbatch_tokens,
        state,
        config.run / SPOOL,
    )
    if config.held_out is not None:
        reader.held_out = reader.of(config.held_out, held_out_state)
    check_model(config)
    return reader
