"""The run that a loop and its encoder ranks are, as a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from flowtrain.config.checks import ConfigError, require
from flowtrain.config.data import DataConfig
from flowtrain.config.load import from_dict
from flowtrain.config.schema import RunConfig
from flowtrain.config.tree import to_dict
from flowtrain.data import VlmSamples
from flowtrain.data.errors import DataError
from flowtrain.data.mixture import sample_order
from flowtrain.data.records import Dataset
from flowtrain.train.connect.model import LoopModel
from flowtrain.train.connect.records import write_records

Layout = Literal["decoupled", "colocated"]
"""Where the encoder is: in processes of its own, or in those of the loop."""

Samples = Path | str | Mapping[str, Any] | DataConfig | VlmSamples | Sequence[Mapping[str, Any]]
"""A file or folder as for `data.path`, the fields of section `data` or the section itself, a
`VlmSamples`, or a list of records."""


def dtypes_of(dtype: torch.dtype, compute: torch.dtype | None) -> dict[str, str]:
    """Fields of section `model` for a dtype of weights, and for that of passes if it is another."""
    names = {"dtype": dtype, "compute_dtype": compute or dtype}
    return {name: str(value).removeprefix("torch.") for name, value in names.items()}


def ranks_of(layout: Layout, encoder_ranks: int | None, *, size: int) -> dict[str, Any]:
    """Fields of section `flow` for the ranks.

    Args:
        layout: As `connect` takes it.
        encoder_ranks: As `connect` takes it.
        size: Number of ranks of the loop.

    Raises:
        ConfigError: A colocated loop is given encoder ranks, or there is no such layout.
    """
    if layout == "decoupled":
        return {
            "encoder_ranks": 1 if encoder_ranks is None else encoder_ranks,
            "backbone_ranks": size,
        }
    if layout != "colocated":
        raise ConfigError(f"layout={layout!r}: give 'decoupled' or 'colocated'")
    if encoder_ranks is not None:
        raise ConfigError(
            f"encoder_ranks={encoder_ranks} with layout='colocated': the ranks of the loop, here "
            f"{size}, encode the images themselves; leave encoder_ranks out, or layout"
        )
    return {"layout": layout, "ranks": size}


# Those that `connect` has no argument of its own for.
_RANK_FIELDS = ("ranks", "backbone_ranks", "elastic")


def flow_fields(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Further fields of section `flow`.

    Raises:
        ConfigError: One is of the ranks, which are those of the loop.
    """
    for name in _RANK_FIELDS:
        require(
            name not in given,
            f"connect: {name}={given.get(name)}: the ranks are those of the loop, which neither "
            f"come nor go; leave {name} out",
        )
    return given


def check_sections(sections: Mapping[str, Any]) -> None:
    """Refuse fields that no run could have, whatever its samples.

    Raises:
        ConfigError: A field has a wrong value, or there is no such field.
    """
    require(
        not Path(sections["run"]).is_file(),
        f"job={sections['run']}: it is a file; give a folder",
    )
    train = {"steps": 1}
    from_dict({**sections, "data": {"path": "samples.jsonl"}, "train": train})


def parallel_of(loop: LoopModel, layout: Layout) -> dict[str, Any]:
    """Section `parallel` of a loop."""
    # Where ranks meet in each backward, all have microbatches of the same number.
    meets = {"sharding": "replicated" if loop.size == 1 else "full"}
    divides = layout == "colocated" and loop.is_divided
    return {"backbone": meets, "encoder": {"sharding": "full" if divides else "replicated"}}


def run_of(
    sections: Mapping[str, Any],
    samples: Samples,
    *,
    steps: int | None,
    held_out: Samples | None = None,
    evaluate_every: int = 0,
) -> RunConfig:
    """The run of a loop.

    Args:
        sections: All sections but `data` and `eval`, in which `train` has no steps.
        samples: Its samples.
        steps: Number of its steps; None for one epoch.
        held_out: Samples of its evaluations; None without any.
        evaluate_every: Steps between evaluations.

    Raises:
        ConfigError: A field has a wrong value.
        DataError: The samples cannot be read, or are a stream.
        OSError: The file of a list of records cannot be written.
    """
    require(
        held_out is not None or not evaluate_every,
        f"evaluate_every={evaluate_every}: nothing is evaluated without samples; give held_out",
    )
    train = {**sections["train"], "steps": steps or 1}
    data = fields_of(samples, Path(sections["run"]))
    evaluations = {"every": evaluate_every, "keep_best": False}
    if held_out is not None:
        evaluations |= _held_out_fields(held_out, Path(sections["run"]))
    config = from_dict({**sections, "data": data, "train": train, "eval": evaluations})
    draws = epoch_draws(config.data, seed=config.train.seed)
    if steps is None:
        steps = math.ceil(draws / config.train.global_batch)
    return replace(config, train=replace(config.train, steps=steps))


def _held_out_fields(samples: Samples, job: Path) -> dict[str, Any]:
    """Fields of section `eval` for held-out samples."""
    fields = fields_of(samples, job)
    found = {name: fields[name] for name in ("path", "dataset", "image_root") if fields.get(name)}
    if fields.get("sources") or not found:
        raise ConfigError(
            "held_out: samples of several sources; give a file, a folder, or the name of one data "
            "set, whose samples are read as those of the training"
        )
    return found


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
