"""The fake CUDA driver of `fake/`, whose `call.hpp` names what the environment controls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from core.processes import ROOT

from flowtrain_core import _C

needs_fake_driver = pytest.mark.skipif(
    not _C.cuda_built or shutil.which("nvcc") is None, reason="needs a build with CUDA, and nvcc"
)


def build(folder: Path) -> Path:
    """Builds the driver. Returns its folder."""
    sources = (ROOT / "tests" / "core" / "fake").glob("*.cpp")
    command = ["nvcc", "-std=c++20", "-shared", "-Xcompiler", "-fPIC", "--cudart", "none"]
    subprocess.run([*command, *sources, "-o", folder / "libcuda.so.1"], check=True, timeout=110)
    return folder


def environment(driver: Path, **variables: object) -> dict[str, str]:
    """Environment of a process that finds the driver, with variables such as `seed=1`."""
    given = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in variables.items()}
    return os.environ | {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(driver)} | given
