"""Readers that read only the files that the launcher hashed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowtrain.config.schema import RunConfig
from flowtrain.data.jsonl import FileState
from flowtrain.data.samples import SampleReader
from flowtrain.train.state.resume import check_model, data_state


def reader_factory(config: RunConfig) -> Callable[[], SampleReader]:
    """A function that creates a reader, in any process of the run."""
    return partial(_create_reader, config, data_state(config.run))


def _create_reader(config: RunConfig, state: FileState) -> SampleReader:
    reader = SampleReader(config.model.folder, config.data, config.train.microbatch_tokens, state)
    check_model(config)
    return reader
