"""What this machine offers FlowTrain, and what to do about what is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import flowtrain_core
from flowtrain.clean import left_pools
from flowtrain.extras import install_command
from flowtrain.logout import deleted_at_logout
from flowtrain_core import Consumer, FlowTrainError, Pool, Producer, cuda

_MIN_SHM_BYTES = 256 << 20
_PROBE_BYTES = 32 << 20
_PROBES = 5
_SLOWDOWN_LIMIT = 4.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: `ok`, `warn` (something is missing) or `bad` (runs will fail)."""

    name: str
    state: Literal["ok", "warn", "bad"]
    text: str


def examine() -> list[Finding]:
    """Check versions, shared memory, devices, and pools left by earlier runs."""
    return [
        Finding("python", "ok", sys.version.split()[0]),
        _core(),
        _package("torch", "train"),
        _transformers(),
        _torchvision(),
        _package("peft", "lora"),
        _package("av", "video"),
        _package("scikit-learn", "demo"),
        _checked("shared memory", _shared_memory),
        _checked("edge", _edge),
        _checked("cuda", _cuda),
        _gpu(),
        _checked("pools", _pools),
    ]


def _checked(name: str, check: Callable[[], Finding]) -> Finding:
    """Result of a check; an error of the check is a `bad` finding."""
    try:
        return check()
    except (FlowTrainError, OSError) as error:
        return Finding(name, "bad", str(error))


def _core() -> Finding:
    built = "with CUDA" if flowtrain_core._C.cuda_built else "without CUDA"
    return Finding("flowtrain_core", "ok", f"{flowtrain_core.__version__}, built {built}")


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "warn", f"missing; {install_command(extra)}")


def _transformers() -> Finding:
    from flowtrain.models.errors import ModelError
    from flowtrain.models.versions import require_transformers

    try:
        require_transformers()
    except ModelError as error:
        return Finding("transformers", "warn", str(error))
    return Finding("transformers", "ok", importlib.metadata.version("transformers"))


def _torchvision() -> Finding:
    """Check that torchvision, if installed, can be imported; transformers cannot be without it."""
    found = _package("torchvision", "hf")
    if found.state == "ok":
        try:
            importlib.import_module("torchvision")
        except Exception as error:
            return Finding(
                "torchvision",
                "bad",
                f"{found.text} cannot be imported ({error}); install torch and torchvision from "
                "one index, or uninstall torchvision",
            )
    return found


def _shared_memory() -> Finding:
    folder = flowtrain_core._C._pool_folder()  # type: ignore[attr-defined]
    usage = shutil.disk_usage(folder)
    text = f"{usage.free >> 20} MiB free of {usage.total >> 20} MiB for the pools in {folder}"
    if deleted_at_logout(Path(folder)):
        return Finding(
            "shared memory",
            "warn",
            f"{text}; systemd deletes it at your last logout (RemoveIPC=yes), also under a running "
            "program: loginctl enable-linger, or set FLOWTRAIN_POOL_DIR to a folder on another "
            "tmpfs for every process",
        )
    if usage.free < _MIN_SHM_BYTES:
        return Finding("shared memory", "warn", f"{text}; run containers with --shm-size=1g")
    return Finding("shared memory", "ok", text)


def _edge() -> Finding:
    """Path of an edge of a pool on this machine, and the rate of writes to it."""
    item = bytes(_PROBE_BYTES)
    with (
        Pool.create(f"doctor-{os.getpid()}", classes=[(_PROBE_BYTES, 1)]) as pool,
        Producer(pool) as producer,
        Consumer(pool) as consumer,
    ):
        for key in range(_PROBES):
            lease = producer.lease((_PROBE_BYTES,), "uint8")
            lease.write(item)
            lease.publish(key)
            consumer.get().release()
        edge = producer.explain(measure=True)
    found, expected = edge.bytes_per_s or 0.0, edge.expected_bytes_per_s or 0.0
    text = (
        f"takes {edge.path.name}: {edge.path.why}; written at {found / 1e9:.1f} GB/s; a copy "
        f"reaches {expected / 1e9:.1f} GB/s"
    )
    return Finding("edge", "warn" if found < expected / _SLOWDOWN_LIMIT else "ok", text)


def _cuda() -> Finding:
    """Devices that the core can use; torch may be built for another CUDA version, or none."""
    if reason := cuda.why_not():
        return Finding("cuda", "warn", reason)
    major, minor = cuda.driver_version()
    found = [
        f"{device.name} (memory shared by "
        f"{'descriptor' if device.vmm and device.posix_fd else 'host memory only'})"
        for device in cuda.devices()
    ]
    return Finding("cuda", "ok", f"driver for CUDA {major}.{minor}: {', '.join(found)}")


def _gpu() -> Finding:
    try:
        import torch
    except ModuleNotFoundError:
        return Finding("gpu", "warn", "unknown without torch")
    except (ImportError, OSError) as error:
        return Finding("gpu", "bad", f"torch cannot be imported ({error}); reinstall torch")
    if not torch.cuda.is_available():
        return Finding("gpu", "warn", "torch can use none; training runs on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("gpu", "ok", ", ".join(names))


def _pools() -> Finding:
    left = [pool.name for pool in left_pools()]
    if not left:
        return Finding("pools", "ok", "no pools left by dead runs")
    names = ", ".join(left)
    return Finding("pools", "warn", f"left by dead runs: {names}; run flowtrain clean")
