"""The workers of a rank: processes that read samples, or a thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flowtrain.config.data import DataConfig
from flowtrain.config.layout import RankLayout
from flowtrain.data.records import State, index_for_forks
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import WorkerPool
from flowtrain.models.registry import family_for


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Samples and model for the readers of a job; creates a reader, in any process.

    Attributes:
        model: Folder of the model.
        data: The samples.
        state: State that their files must have; None takes their state now.
        max_tokens: Maximum tokens of a sample.
        spool: Folder of the spool, if the samples are a stream.
        held_out: The held-out samples and their state; None if there are none.
        check: Called after the files of the model were read; raises if they have changed.
    """

    model: Path
    data: DataConfig
    state: State | None = None
    max_tokens: int
    spool: Path | None = None
    held_out: tuple[DataConfig, State | None] | None = None
    check: Callable[[], None] | None = None

    def __call__(self) -> SampleReader:
        """A reader, whose attribute `held_out` reads the held-out samples."""
        reader = SampleReader(self.model, self.data, self.max_tokens, self.state, self.spool)
        if self.held_out is not None:
            reader.held_out = reader.of(*self.held_out)
        if self.check is not None:
            self.check()
        return reader

    def prepare(self) -> None:
        """Import and index what forked processes then need not."""
        family_for(self.model)
        for data, state in filter(None, ((self.data, self.state), self.held_out)):
            if state is not None:
                index_for_forks(data, state)


def reads_samples(layout: RankLayout, world: str, rank: int) -> bool:
    """Whether a rank reads samples: images for its encoder, or all that the planner needs.

    Args:
        layout: The ranks of the job.
        world: World of the rank.
        rank: Its number there.
    """
    found = layout.world(world)
    modules = found.modules if found is not None else ()
    return "encoder" in modules or ("backbone" in modules and rank == 0)


def fork_workers(reading: Reading, workers: int) -> WorkerPool:
    """Start the workers of a rank.

    Called before the rank has threads, a pool or a device: the worker processes are forked, so that
    they need not import the model's family again, and share the index of the data file.

    Args:
        reading: What they read.
        workers: Number of processes, or 0 for one thread of this process.
    """
    with suppress(Exception):  # Raised again once the rank has joined, and can report it.
        reading.prepare()
    return WorkerPool(reading, workers, fork=True)
