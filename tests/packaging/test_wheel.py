"""The sdist, the wheel built from it, and both in an empty environment.

The wheel is built as where there is no CUDA, and without optimization, which takes half the time.
What the extension of this checkout has besides is tested in `test_extension.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# Builds the extension from the sdist.
pytestmark = [pytest.mark.deep, pytest.mark.limit(600)]

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = [f"flowtrain_core/{name}" for name in ("_C", "_bench", "_ops")]
BUILD = "-DFLOWTRAIN_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0"
INSTALL_CORE = "pip install flowtrain"
INSTALL_TRAINING = re.compile(r"run: pip install 'torch\S+ pyyaml .* 'transformers\S+'")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run without the Python variables of this environment, and capture the output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept["CMAKE_ARGS"] = f"{kept.get('CMAKE_ARGS', '')} {BUILD}"
    return subprocess.run(
        command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=500, check=False
    )


def output(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A wheel, an environment with only the wheel, and the unbuilt sources of the wheel."""

    wheel: Path
    python: Path
    checkout: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    output(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sources", filter="data")
    (checkout,) = (folder / "sources").iterdir()
    venv.create(folder / "clean", with_pip=False)
    python = folder / "clean" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    output(*pip, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    return Built(wheel=wheel, python=python, checkout=checkout)


def test_wheel_holds_both_packages(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(Path(package) / file.relative_to(folder))
        for package, folder in (
            ("flowtrain_core", ROOT / "flowtrain_core"),
            ("flowtrain", ROOT / "python" / "flowtrain"),
        )
        for pattern in ("*.py", "*.pyi", "*.yaml", "*.css", "*.js", "py.typed")
        for file in folder.rglob(pattern)
    }
    assert {"flowtrain/py.typed", "flowtrain_core/py.typed", "flowtrain_core/_C.pyi"} <= sources
    packed = {name for name in names if ".dist-info/" not in name}
    # Taken from vl-convert by the build; a checkout has it, too, once it was installed.
    assert "flowtrain/pages/vega.js" in packed
    assert sources <= packed
    extensions = packed - sources - {"flowtrain/pages/vega.js"}
    assert sorted(name.split(".cpython-")[0] for name in extensions) == EXTENSIONS


def test_extra_hf_has_torchvision_for_processors_of_released_models(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(member).decode()
    assert re.search(r'^Requires-Dist: torchvision; extra == "hf"$', metadata, re.MULTILINE)


@pytest.mark.parametrize("where", ["elsewhere", "repository root"])
def test_core_imports_without_other_packages(built: Built, tmp_path: Path, where: str) -> None:
    code = (
        "import sys, flowtrain_core; from flowtrain_core import Pool, _C, _bench;"
        "assert not {'torch', 'numpy'} & set(sys.modules);"
        "print(_C.__file__)"
    )
    cwd = built.checkout if where == "repository root" else tmp_path
    printed = output(built.python, "-c", code, cwd=cwd)
    assert Path(printed.strip()).is_relative_to(built.python.parents[1])


def test_a_build_without_cuda_lacks_it_by_name(built: Built, tmp_path: Path) -> None:
    code = (
        "from flowtrain_core import _C, cuda;"
        "print(_C.cuda_built, cuda.available(), hasattr(_C, 'CudaStreamPage'), cuda.why_not())"
    )
    printed = output(built.python, "-c", code, cwd=tmp_path)
    assert printed.startswith("False False False flowtrain_core was built without CUDA")


def test_an_unbuilt_checkout_names_the_build_command(built: Built) -> None:
    done = run(sys.executable, "-S", "-c", "import flowtrain_core", cwd=built.checkout)
    assert done.returncode != 0
    assert INSTALL_CORE in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("entry", ["script", "module"])
def test_training_without_torch_names_the_packages(
    built: Built, tmp_path: Path, entry: str
) -> None:
    command = {
        "script": (built.python.parent / "flowtrain",),
        "module": (built.python, "-m", "flowtrain"),
    }[entry]
    done = run(*command, "train", "run.yaml", cwd=tmp_path)
    assert done.returncode != 0
    assert INSTALL_TRAINING.search(done.stderr)
    assert "Traceback" not in done.stderr
