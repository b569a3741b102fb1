"""Cores that affinity and the quotas of cgroups allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowtrain import cores
from flowtrain.cores import available_cores


@pytest.mark.parametrize(
    ("names", "files", "expected"),
    [
        # Version 2: in a container, in a unit of systemd, and in a unit whose slice has less.
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 16),
        ("0::/a.slice/b", {"a.slice/b/cpu.max": "400000 100000"}, 4),
        (
            "0::/a.slice/b",
            {"a.slice/cpu.max": "250000 100000", "a.slice/b/cpu.max": "max 100000"},
            3,
        ),
        ("0::/a", {"a/cpu.max": "5000 100000"}, 1),
        ("0::/a", {"a/cpu.max": "9900000 100000"}, 16),
        # Version 1: a folder for each controller, or for two; the path may be that of the host.
        ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "10000"}, 5),
        (
            "4:memory:/a\n3:cpu,cpuacct:/docker/a",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        # Both, with the controller in version 1.
        (
            "1:cpu:/a\n0::/a",
            {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("0::/", {}, 16),
        (None, {}, 16),
    ],
)
def test_the_quotas_of_cgroups_limit_the_cores(
    names: str | None,
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(cores, "NAMES", tmp_path / "names")
    monkeypatch.setattr(cores, "MOUNT", tmp_path / "mount")
    if names is not None:
        tmp_path.joinpath("names").write_text(f"{names}\n")
    for name, text in files.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert available_cores() == expected
