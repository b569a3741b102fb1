"""`train --plan`: a run with the layout of a plan that is one for what the run finds."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.cost.accelerators import device_accelerator
from flowtrain.data.errors import DataError
from flowtrain.data.sizes import size_digests
from flowtrain.plan.applied import with_plan
from flowtrain.plan.plan_file import read_plan
from flowtrain.plan.stale import Seen, SeenGpus, check_seen


def planned(
    config: RunConfig, path: Path, *, given: Collection[str], hosts: bool = False
) -> RunConfig:
    """The configuration with the layout of a plan; a line says what was not checked.

    Args:
        config: The run.
        path: A `plan.json`.
        given: As for `with_plan`.
        hosts: As for `with_plan`.

    Raises:
        ConfigError: As for `with_plan` and `check_seen`.
    """
    config = with_plan(config, path, given=given, hosts=hosts)
    seen = Seen(samples=_samples(config), gpus=_gpus(config), profile=config.flow.profile)
    if unchecked := check_seen(read_plan(path), seen, path=path):
        print(f"flowtrain: {path}: not checked: {'; '.join(unchecked)}", file=sys.stderr)
    return config


def _samples(config: RunConfig) -> Mapping[str, str] | str:
    try:
        return size_digests(config)
    except (DataError, OSError) as error:
        return str(error)


def _gpus(config: RunConfig) -> SeenGpus | str:
    if config.model.device != "cuda":
        return f"model.device={config.model.device}"
    count = torch.cuda.device_count()
    if not count:
        return "torch sees none"
    devices = [torch.cuda.get_device_properties(number) for number in range(count)]
    known = device_accelerator(devices[0].name)
    return SeenGpus(
        count=count,
        gpu_type=devices[0].name if known is None else known.name,
        memory_bytes=min(device.total_memory for device in devices),
    )
