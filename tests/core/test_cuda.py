"""CUDA on a machine without a device: built in or absent, without side effects."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from core.processes import ROOT

from flowtrain_core import _C, CudaError, MemoryUnreachable, Pool, _ops, cuda, inspect

FATBIN = b"\x50\xed\x55\xba"
GATHER: dict[str, Any] = {
    "packed": 4096,
    "packed_dtype": "float32",
    "pieces": numpy.array([[0, 0, 1, 0]]),
    "memories": [(8192, 1)],
    "slab_dtype": "float32",
    "width": 1,
    "rows": 1,
    "device": 0,
    "stream": 0,
}
built = pytest.mark.skipif(not _C.cuda_built, reason="the extension was built without CUDA")
no_device = pytest.mark.skipif(cuda.available(), reason="a device is here")


def targets(extension: bytes) -> set[tuple[str, int]]:
    """What device code the extension holds, as (ptx or sass, architecture)."""
    found = set()
    at = extension.find(FATBIN)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", extension, at + 6)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, entry_header, payload = struct.unpack_from("<H2xIQ", extension, entry)
            (architecture,) = struct.unpack_from("<I", extension, entry + 28)
            found.add(({1: "ptx", 2: "sass"}.get(kind, str(kind)), architecture))
            entry += entry_header + payload
        at = extension.find(FATBIN, at + 4)
    return found


@built
def test_the_kernels_are_built_for_old_and_new_devices() -> None:
    found = targets(Path(_ops.__file__).read_bytes())
    assert {("sass", 80), ("sass", 90), ("ptx", 90)} <= found


@built
@no_device
def test_a_machine_without_a_device_names_the_reason_and_the_way_out() -> None:
    assert not cuda.available()
    assert cuda.devices() == []
    assert "install the driver" in cuda.why_not() or "nvidia-smi" in cuda.why_not()


@built
@no_device
@pytest.mark.parametrize(
    "use",
    [
        lambda: cuda.HostRegistration(4096, 4096, device=0),
        lambda: cuda.synchronize(device=0, stream=0),
        lambda: cuda.gather_rows(**GATHER),
    ],
)
def test_every_use_of_a_missing_device_is_an_error(use: object) -> None:
    assert callable(use)
    with pytest.raises(CudaError, match="CUDA cannot be used"):
        use()


@no_device
def test_a_tier_that_cannot_be_had_names_the_reason_and_auto_does_without(pool: Pool) -> None:
    for tier in ("device", "vmm", "ipc"):
        with pytest.raises(MemoryUnreachable) as caught:
            pool.add_segment(bytes=4096, tier=tier)  # type: ignore[arg-type]
        assert f"tier='{tier}', device=0: " in str(caught.value)
        assert (cuda.why_not() if _C.cuda_built else "without CUDA") in str(caught.value)
    pool.add_segment(bytes=4096, tier="auto")
    assert [each["tier"] for each in inspect(pool.name)["segments"]] == ["host", "host"]
    with pytest.raises(ValueError, match="tier='hbm' must be 'host', 'device'"):
        pool.add_segment(bytes=4096, tier="hbm")  # type: ignore[arg-type]


@built
@no_device
def test_a_pool_that_could_not_be_registered_works(pool: Pool) -> None:
    with pytest.raises(CudaError):
        cuda.register_host(pool, device=0)
    assert pool.add_segment(bytes=1 << 16) == 2


@built
def test_the_import_does_not_open_the_driver() -> None:
    code = "import flowtrain_core.cuda; print(open('/proc/self/maps').read())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "libcuda" not in run.stdout
