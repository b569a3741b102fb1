"""The plans of a run's first steps, without the run."""

from __future__ import annotations

from itertools import islice

from flowtrain.config.checks import require
from flowtrain.config.schema import RunConfig
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import WorkerPool
from flowtrain.models.registry import family_for
from flowtrain.steps import StepPlan
from flowtrain.train.assembly.sources import source_of
from flowtrain.train.input.reads import SampleReads


def planned_steps(config: RunConfig, count: int) -> list[StepPlan]:
    """The plans of so many steps, or of all steps if there are fewer.

    Args:
        config: The run, with its layout and its number of steps.
        count: Number of steps.

    Raises:
        ConfigError: The run reads a stream.
        DataError: A sample cannot be used.
    """
    dataset = Dataset(config.data)
    require(
        not dataset.is_stream,
        f"data.dataset={config.data.name}: a stream is read by a run alone, so that its steps "
        "cannot be planned before",
    )
    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens)
    with WorkerPool(lambda: reader, 0) as workers:
        source = source_of(
            config,
            family_for(config.model.folder, projector_side=config.projector_side),
            reads=SampleReads(workers, config.data.name, timeout_s=config.flow.timeout_s),
            order=sample_order(config.data, dataset, seed=config.train.seed),
        )
        return [plan for plan, _ in islice(source, count)]
