"""The sources of CUDA compile with the headers of the oldest toolkit, and of the last 12."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.deep, pytest.mark.limit(300)]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*ROOT.glob("csrc/cuda/*.cpp"), *ROOT.glob("tests/core/fake/*.cpp")]


def headers(version: str, folder: Path) -> Path:
    wheel = f"nvidia-cuda-runtime-cu12=={version}"
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, wheel)
    done = subprocess.run(pip, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"{wheel} could not be downloaded: {done.stderr[-300:]}")
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    return folder / "nvidia/cuda_runtime/include"


@pytest.mark.parametrize("version", ["12.0.107", "12.9.79"])
def test_sources_compile_with_headers_of_cuda_12(version: str, tmp_path: Path) -> None:
    options = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "csrc"]
    command = ["g++", *options, "-I", headers(version, tmp_path), *SOURCES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
