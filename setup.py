"""Builds `flowtrain_core._C` with CMake and ninja; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures, builds and installs the extension beside the package's Python files."""

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent.parent
        build = ROOT / "build" / f"cp{sys.version_info.major}{sys.version_info.minor}"
        build.mkdir(parents=True, exist_ok=True)
        version = self.distribution.get_version()
        cmake, ninja = self._tool("cmake"), self._tool("ninja")
        if not (build / "build.ninja").exists():
            # A folder whose configuration failed, or with other tools, must not be reused.
            (build / "CMakeCache.txt").unlink(missing_ok=True)
        configure = [
            *(cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(build)),
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DFLOWTRAIN_VERSION={version}",
            f"-DFLOWTRAIN_CUDA={os.environ.get('FLOWTRAIN_CUDA', 'AUTO')}",
            "-DCMAKE_BUILD_TYPE=Release",
        ]
        subprocess.run(configure, check=True)
        subprocess.run([cmake, "--build", str(build), "--target", "_C"], check=True)
        subprocess.run([cmake, "--install", str(build), "--prefix", str(target)], check=True)

    @staticmethod
    def _tool(name: str) -> str:
        """A build tool beside this Python, or on the path."""
        beside = Path(sys.executable).with_name(name)
        found = str(beside) if beside.exists() else shutil.which(name)
        if found is None:
            raise SystemExit(f"{name} is missing; run: pip install {name}")
        return found


setup(
    ext_modules=[Extension("flowtrain_core._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
