"""Free memory is that of the machine, or of the cgroup of the process if that is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.free_memory import free_memory


@pytest.mark.parametrize(
    ("names", "files", "expected"),
    [
        ("0::/job\n", {}, 8 << 20),
        ("0::/job\n", {"job/memory.max": "max", "job/memory.current": "5"}, 8 << 20),
        ("0::/job\n", {"job/memory.max": "3000", "job/memory.current": "1000"}, 2000),
        # Of a cgroup around it.
        ("0::/a/job\n", {"a/memory.max": "3000", "a/memory.current": "2500"}, 500),
        (
            "4:memory:/job\n",
            {
                "memory/job/memory.limit_in_bytes": "700",
                "memory/job/memory.usage_in_bytes": "900",
            },
            0,
        ),
    ],
)
def test_the_memory_of_the_machine_and_of_cgroups_limits_it(
    names: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    meminfo, own, mount = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "mount"
    meminfo.write_text("MemTotal: 90000 kB\nMemAvailable:    8192 kB\n")
    own.write_text(names)
    for name, text in files.items():
        path = mount / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert free_memory(meminfo, own, mount) == expected
