from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flowtrain.config import ConfigError
from flowtrain.cost.profiled import Profile, ProfileError, ProfileKey
from flowtrain.plan import profiles
from flowtrain.plan.cluster import Cluster, parse_cluster
from flowtrain.plan.profiles import core_times, measured_times

H100 = parse_cluster("2x8xH100+1x4xA100")
(GROUP,) = parse_cluster("1x2xH100").groups
OWN = Cluster(groups=(replace(GROUP, gpu=replace(GROUP.gpu, name="core")),))


@pytest.mark.parametrize(
    ("device", "cluster", "name"),
    [("NVIDIA H100 80GB HBM3", H100, "H100"), ("Intel(R) Xeon(R) Processor", OWN, "core")],
)
def test_times_are_for_the_type_with_the_device_of_the_measurement(
    device: str, cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(device, monkeypatch)
    ((found, measured),) = measured_times(Path("a.json"), [], cluster).items()
    assert found == name
    source = f"measured on {device} with attention by torch, a.json"
    assert (measured.dtype, measured.source) == ("bfloat16", source)


@pytest.mark.parametrize(
    ("device", "cluster"), [("NVIDIA H200", H100), ("Some CPU", H100), ("NVIDIA H100", OWN)]
)
def test_times_of_a_device_that_the_cluster_lacks_are_an_error(
    device: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(device, monkeypatch)
    with pytest.raises(ConfigError, match=f"a.json: times were measured on '{device}', and clus"):
        measured_times(Path("a.json"), [], cluster)


@pytest.mark.parametrize("name", ["device", "dtype", "threads", "compiled"])
def test_times_of_other_cores_than_those_of_the_ranks_are_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend("Some CPU", monkeypatch)
    conditions = {"device": "Some CPU", "dtype": "bfloat16", "threads": 1, "compiled": False}
    core_times(Path("a.json"), [], **conditions)  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match=f"a.json: measured for {name}="):
        core_times(Path("a.json"), [], **{**conditions, name: 2})  # type: ignore[arg-type]


def test_times_of_blocks_that_were_not_compiled_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend("NVIDIA H100", monkeypatch)
    assert measured_times(Path("a.json"), [], H100, compiled=False)
    with pytest.raises(ProfileError, match="a.json: measured for compiled=False, and not for True"):
        measured_times(Path("a.json"), [], H100, compiled=True)


def pretend(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file hold measurements of a device."""
    key = ProfileKey(
        model="", device=device, dtype="bfloat16", threads=1, torch="2", attention="torch"
    )
    profile = Profile(key=key, repeats={}, joins=False)
    monkeypatch.setattr(Profile, "load", staticmethod(lambda path: profile))
    monkeypatch.setattr(profiles, "Tables", lambda profile, layers, extrapolate: profile)
