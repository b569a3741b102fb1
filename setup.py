"""Builds the extensions of `flowtrain_core`, and writes the library of charts for `pages`.

CMake and ninja build the former, vl-convert has the latter; pyproject.toml holds the rest.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
EXTENSIONS = [f"flowtrain_core.{name}" for name in ("_C", "_bench", "_ops")]
VL_CONVERT = "vl-convert-python>=1.9,<2"
VEGA = ROOT / "python" / "flowtrain" / "pages" / "vega.js"


def _tool(name: str, module: str, folder_attribute: str) -> str:
    """Path of a program: of this Python's package if installed, otherwise from PATH."""
    try:
        folder = getattr(__import__(module), folder_attribute)
    except (ImportError, AttributeError):
        folder = None
    found = (folder and shutil.which(name, path=folder)) or shutil.which(name)
    if found is None:
        raise SystemExit(
            f"flowtrain: building the extensions needs {name}, which is neither installed for "
            f"{sys.executable} nor on PATH; run: pip install {name}"
        )
    return found


def _run(*command: str | Path) -> None:
    """Run a build step. On failure exit without a traceback; the step's output has the reason."""
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"flowtrain: {shlex.join(map(str, command))} failed; see above")


def _write_vega() -> None:
    """Write Vega, Vega-Lite and Vega-Embed as one file, which `flowtrain.pages` reads."""
    try:
        import vl_convert
    except ImportError as error:
        raise SystemExit(
            "flowtrain: building needs vl-convert-python, which has the library of the charts of "
            f"`flowtrain report`, and which {sys.executable} lacks; run: pip install '{VL_CONVERT}'"
        ) from error
    mark = f"/*! vl-convert {vl_convert.__version__}, Vega {vl_convert.get_vega_version()}"
    if not (VEGA.exists() and VEGA.read_text(encoding="utf-8").startswith(mark)):
        license_text = VEGA.with_suffix(".license").read_text(encoding="utf-8")
        text = f"{mark}\n\n{license_text}*/\n{vl_convert.javascript_bundle()}\n"
        VEGA.write_text(text, encoding="utf-8")


class CleanBuild(build_py):
    """Empties the packages in `build/` first, so that no wheel has modules deleted since."""

    def run(self) -> None:
        """Build the pure Python part, also for an editable install."""
        _write_vega()
        for package in {name.split(".")[0] for name in self.packages or ()}:
            shutil.rmtree(Path(self.build_lib) / package, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Builds by CMake in a folder that is kept, so that a second build is incremental."""

    def build_extensions(self) -> None:
        """Configure, build and install all extensions where setuptools expects them."""
        try:
            import pybind11
        except ImportError as error:
            raise SystemExit(
                f"flowtrain: building the extensions needs pybind11>=3, which {sys.executable} "
                "lacks; run: pip install 'pybind11>=3'"
            ) from error

        build = ROOT / "build" / f"extension-{sys.implementation.cache_tag}"
        prefix = Path(self.get_ext_fullpath(EXTENSIONS[0])).resolve().parent.parent
        cmake = _tool("cmake", "cmake", "CMAKE_BIN_DIR")
        configure = [
            "-G",
            "Ninja",
            # All paths are passed each time: an isolated build leaves stale ones in the cache.
            f"-DCMAKE_MAKE_PROGRAM={_tool('ninja', 'ninja', 'BIN_DIR')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DFLOWTRAIN_VERSION={self.distribution.get_version()}",
            "-DCMAKE_BUILD_TYPE=Release",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        jobs = ["--parallel", str(self.parallel)] if self.parallel else []
        _run(cmake, "-S", ROOT, "-B", build, *configure)
        _run(cmake, "--build", build, "--target", "extensions", *jobs)
        _run(cmake, "--install", build, "--prefix", prefix, "--strip")


setup(
    ext_modules=[Extension(name, sources=[]) for name in EXTENSIONS],
    cmdclass={"build_ext": CMakeBuild, "build_py": CleanBuild},
)
