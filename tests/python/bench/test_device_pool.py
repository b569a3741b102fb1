"""The benchmark of slabs of a device, on a fake driver: what it runs, not its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from core.fake_driver import environment, needs_fake_driver

from flowtrain.cli.main import main
from flowtrain_core import cuda

ROOT = Path(__file__).resolve().parents[3]


@needs_fake_driver
@pytest.mark.parametrize("path", ["pinned", "vmm", "ipc"])
def test_slabs_of_a_device_are_written_and_read_by_two_processes(path: str, driver: Path) -> None:
    command = ["bench", "pool", "--path", path, "--bytes", "1048576", "--seconds", "0.02", "--json"]
    env = environment(driver, delay_us=100, seed=1)
    done = subprocess.run(
        [sys.executable, "-m", "flowtrain", *command],
        env=env | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [row] = map(json.loads, done.stdout.splitlines())
    assert (row["path"], row["item_bytes"], row["device"]) == (path, 1 << 20, "Fake")
    assert min(row[name] for name in ("write", "read", "copy", "flow", "vs_copy")) > 0


@pytest.mark.skipif(cuda.available(), reason="this machine has a device")
def test_without_a_device_the_reason_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pool", "--path", "vmm"]) == 1
    assert "bench pool --path vmm: " in capsys.readouterr().err
