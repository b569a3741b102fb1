"""The run that a loop and its encoder ranks are, as a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flowtrain.config.load import from_dict
from flowtrain.config.schema import DataConfig, RunConfig
from flowtrain.config.tree import to_dict
from flowtrain.data import VlmSamples
from flowtrain.data.errors import DataError
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.train.connect.records import write_records

Samples = Path | str | Mapping[str, Any] | DataConfig | VlmSamples | Sequence[Mapping[str, Any]]
"""A file or folder as for `data.path`, the fields of section `data` or the section itself, a
`VlmSamples`, or a list of records."""


def dtypes_of(dtype: torch.dtype, compute: torch.dtype | None) -> dict[str, str]:
    """Fields of section `model` for a dtype of weights, and for that of passes if it is another."""
    names = {"dtype": dtype, "compute_dtype": compute or dtype}
    return {name: str(value).removeprefix("torch.") for name, value in names.items()}


def run_of(sections: Mapping[str, Any], samples: Samples, *, steps: int | None) -> RunConfig:
    """The run of a loop.

    Args:
        sections: All sections but `data`, in which `train` has no steps.
        samples: Its samples.
        steps: Number of its steps; None for one epoch.

    Raises:
        ConfigError: A field has a wrong value.
        DataError: The samples cannot be read, or are a stream.
        OSError: The file of a list of records cannot be written.
    """
    train = {**sections["train"], "steps": steps or 1}
    data = fields_of(samples, Path(sections["run"]))
    config = from_dict({**sections, "data": data, "train": train})
    draws = epoch_draws(config.data, seed=config.train.seed)
    if steps is None:
        steps = math.ceil(draws / config.train.global_batch)
    return replace(config, train=replace(config.train, steps=steps))


def epoch_draws(data: DataConfig, *, seed: int) -> int:
    """Samples of one epoch.

    Raises:
        DataError: The samples cannot be read, or are a stream.
    """
    dataset = Dataset(data)
    if dataset.is_stream:
        raise DataError(
            f"{data.name}: it is a stream, whose place encoder ranks do not know; return a "
            "list of records, or write them to a .jsonl file"
        )
    return sample_order(data, dataset, seed=seed).epoch_draws


def fields_of(samples: Samples, job: Path) -> dict[str, Any]:
    """Fields of section `data` of a run, for samples that a loop gives.

    Args:
        samples: The samples.
        job: Folder of the job, into which a list of records is written.

    Raises:
        DataError: Encoder ranks could not read them.
        OSError: The file of a list of records cannot be written.
    """
    if isinstance(samples, DataConfig):
        return to_dict(samples)
    if isinstance(samples, VlmSamples):
        # As it numbers them.
        return {**to_dict(samples.data), "shuffle": False}
    if isinstance(samples, Mapping):
        return dict(samples)
    if isinstance(samples, str | Path):
        return {"path": str(Path(samples).absolute()), "shuffle": False}
    if isinstance(samples, list | tuple):
        path = write_records(samples, job)
        # Of images whose paths are relative, as this process would open them.
        return {"path": str(path), "image_root": str(Path.cwd()), "shuffle": False}
    kind = type(samples)
    way_out = 'write a function that returns it, and give {"dataset": "package.module:make"}'
    if kind.__module__.partition(".")[0] == "datasets":
        way_out = "store it by its save_to_disk, and give that folder"
    raise DataError(
        f"samples: {kind.__module__}.{kind.__qualname__} is an object of this process, and encoder "
        f"ranks are other processes; {way_out}"
    )
