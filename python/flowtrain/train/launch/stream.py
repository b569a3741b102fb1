"""Checks of a run that reads a stream."""

from __future__ import annotations

from flowtrain.config.checks import require
from flowtrain.config.schema import RunConfig
from flowtrain.data.records import Dataset


def check_stream(config: RunConfig, dataset: Dataset) -> None:
    """Refuse what needs samples by number, if the samples are a stream.

    Args:
        config: The run.
        dataset: Its samples.

    Raises:
        ConfigError: The data are to be shuffled, steps are given as epochs, or the held-out samples
            are a stream.
        DataError: The held-out samples cannot be opened.
    """
    if config.held_out is not None:
        require(
            not Dataset(config.held_out).is_stream,
            f"eval.dataset={config.eval.dataset}: it is a stream, and each evaluation reads the "
            "same samples by number; return a list of records, or write them to a file and set "
            "eval.path",
        )
    if not dataset.is_stream:
        return
    require(
        not config.data.shuffle,
        f"data.shuffle=true: {config.data.name} is a stream, which has only its own order; set "
        "data.shuffle=false, and shuffle in the data set itself, such as with "
        "shuffle(seed=..., buffer_size=...) of an IterableDataset of Hugging Face datasets",
    )
    require(
        config.train.steps > 0,
        f"train.epochs={config.train.epochs:g}: {config.data.name} is a stream, whose length is "
        "not known; give train.steps",
    )
