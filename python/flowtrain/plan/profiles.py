"""Measured times for a pool of GPUs, from a file of `flowtrain profile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowtrain.config.checks import require
from flowtrain.cost.accelerators import ACCELERATORS, device_accelerator
from flowtrain.cost.layers import Layer
from flowtrain.cost.profiled import Profile
from flowtrain.cost.tables import Tables
from flowtrain.plan.cluster import Cluster
from flowtrain.plan.pools import Measured


def measured_times(
    path: Path,
    layers: Sequence[Layer],
    cluster: Cluster,
    *,
    compiled: bool | None = None,
    extrapolate: bool = False,
) -> dict[str, Measured]:
    """The measured times, by the name of the type of GPU that they hold for.

    It is the type with the device of the measurement, or the only type in a cluster file that
    FlowTrain does not know, if it does not know that device either.

    Args:
        path: A file of `flowtrain profile`.
        layers: Layers of the model.
        cluster: The cluster.
        compiled: Whether the blocks of the model will be compiled; None takes either.
        extrapolate: Whether to prolong the times beyond the sizes that were measured.

    Raises:
        ProfileError: The file is no profile, or one of another model, or measured with blocks that
            were compiled where these are not, or the reverse.
        ConfigError: The cluster has no such type.
        OSError: The file cannot be read.
    """
    profile = Profile.load(path)
    if compiled is not None:
        profile.check(replace(profile.key, compiled=compiled), str(path))
    device = profile.key.device
    known = device_accelerator(device)
    own = [name for name in cluster.pools if name not in ACCELERATORS]
    names = own if known is None else [known.name]
    require(
        len(names) == 1 and names[0] in cluster.pools,
        f"{path}: times were measured on '{device}', and cluster '{cluster}' has no such GPU; "
        "profile on the cluster's GPU, or leave the profile out for times of data sheets",
    )
    times = Tables(profile, layers, extrapolate=extrapolate)
    attention = profile.key.attention and f" with attention by {profile.key.attention}"
    source = f"measured on {device}{attention}, {path.name}"
    return {names[0]: Measured(timing=times, dtype=profile.key.dtype, source=source)}


def core_times(
    path: Path,
    layers: Sequence[Layer],
    *,
    device: str,
    dtype: str,
    threads: int,
    compiled: bool,
) -> Tables:
    """The measured times on a core of this machine, extrapolated beyond the measured sizes.

    Args:
        path: A file of `flowtrain profile`.
        layers: Layers of the model.
        device: Name of the processor.
        dtype: Dtype of the training.
        threads: Threads of a rank.
        compiled: Whether the blocks of the model will be compiled.

    Raises:
        ProfileError: The file is no profile, or one of another model or of other conditions.
        OSError: The file cannot be read.
    """
    profile = Profile.load(path)
    key = replace(profile.key, device=device, dtype=dtype, threads=threads, compiled=compiled)
    profile.check(key, str(path))
    return Tables(profile, layers, extrapolate=True)
