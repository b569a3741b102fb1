"""Which package of Python, and which folder of csrc, may see which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

POLICY = ("cache", "config", "cost", "events", "packing", "pages", "plan", "schedule", "steps")
POLICY += ("workloads",)
BRIDGE = ("models", "data", "train", "integrations", "observe")

NO_TORCH = ("torch", "torchvision", "transformers")
# Policy sees no package that imports torch, and of the core only the packing kernels and the base
# of its errors.
POLICY_NEVER = (
    *NO_TORCH,
    "flowtrain_core",
    *(f"flowtrain.{package}" for package in BRIDGE),
)
OF_THE_CORE = ("flowtrain_core.packing", "flowtrain_core.FlowTrainError")

CPP_FOLDER_SEES: dict[str, tuple[str, ...]] = {
    "base": (),
    "os": ("base",),
    "lockfree": ("base",),
    "packing": ("base",),
    "kernels": (),
    "memory": ("base", "os", "lockfree"),
    "cuda": ("base", "os", "memory"),
    "channel": ("base", "os", "lockfree", "memory"),
    "transport": ("base", "os", "memory"),
    "gateway": ("base", "os", "lockfree", "memory", "channel", "transport"),
    "measure": ("base", "os", "lockfree", "memory", "channel", "transport"),
    "torture": ("base", "os", "lockfree", "memory", "channel"),
}
# One extension a folder, beside the helpers that they share.
CPP_FOLDER_SEES |= {
    "bindings": ("base", "os"),
    "bindings/core": (
        *("base", "os", "lockfree", "memory", "cuda", "channel", "packing", "transport"),
        *("gateway", "bindings"),
    ),
    "bindings/bench": ("base", "os", "measure", "torture", "bindings"),
    "bindings/ops": ("base", "memory", "kernels", "cuda", "bindings"),
}

TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/")
PYTHON_HEADER = re.compile(r"pybind11/|Python\.h")
CUDA_HEADER = re.compile(r"cuda\w*\.h|cuda/|cooperative_groups")


def imports_of(file: Path, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import, at any depth of the file."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: -(node.level - 1) or None] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def python_violations(root: Path) -> list[str]:
    found = []
    for folder in (root / "flowtrain_core", root / "python" / "flowtrain"):
        for file in sorted(folder.rglob("*.py")):
            inner = file.relative_to(folder)
            part = inner.parts[0] if len(inner.parts) > 1 else ""
            package = ".".join((folder.name, *inner.parts[:-1]))
            never: tuple[str, ...] = ()
            if folder.name == "flowtrain_core":
                never = (*NO_TORCH, "flowtrain")
            elif part in POLICY:
                never = POLICY_NEVER
            for line, name in imports_of(file, package):
                allowed = part in POLICY and is_within(name, OF_THE_CORE)
                # Only `python -m flowtrain` imports the commands from outside `cli`.
                command = (
                    is_within(name, ("flowtrain.cli",))
                    and part != "cli"
                    and inner != Path("__main__.py")
                )
                if command or (is_within(name, never) and not allowed):
                    found.append(f"{file.relative_to(root)}:{line} imports {name}")
            if part and not (file.parent / "__init__.py").exists():
                found.append(f"{file.parent.relative_to(root)} has no __init__.py: no wheel has it")
    return sorted(set(found))


def cpp_folder_of(path: str) -> str:
    """The folder of csrc that a path below csrc lies in: the deepest one of CPP_FOLDER_SEES."""
    folder = path.rpartition("/")[0]
    while "/" in folder and folder not in CPP_FOLDER_SEES:
        folder = folder.rpartition("/")[0]
    return folder


def cpp_violations(root: Path) -> list[str]:
    found = []
    files = [file for file in (root / "csrc").rglob("*") if file.suffix in (".hpp", ".cpp", ".cu")]
    for file in sorted(files):
        folder = cpp_folder_of(str(file.relative_to(root / "csrc")))
        where = file.relative_to(root)
        if folder not in CPP_FOLDER_SEES:
            found.append(f"{where}: csrc/{folder} is not in CPP_FOLDER_SEES")
            continue
        for line, text in enumerate(file.read_text().splitlines(), start=1):
            include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', text)
            if include is None:
                continue
            header = include[2]
            other = cpp_folder_of(header) or folder
            own = include[1] == '"'
            if (
                (own and other != folder and other not in CPP_FOLDER_SEES[folder])
                or TORCH_HEADER.match(header)
                or (PYTHON_HEADER.match(header) and folder.split("/")[0] != "bindings")
                or (not own and CUDA_HEADER.match(header) and folder != "cuda")
            ):
                found.append(f"{where}:{line} includes {header}")
    return found


# To read these is to run what was written. The pipes of `multiprocessing` are none of them: they
# have no name, and only a process and its child hold them.
CODE_READERS = ("pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")
CODE_READERS += ("multiprocessing.managers", "multiprocessing.connection.Listener")
CODE_READERS += ("multiprocessing.connection.Client", "xmlrpc")
# Lets a pickle name only the classes of torch that describe tensors.
CHECKS_PICKLES = Path("python/flowtrain/train/state/unpickle.py")
OBJECT_CALLS = re.compile(r"(all_gather|broadcast|gather|scatter|send|recv)_object(_list)?")


def code_readers(root: Path) -> list[str]:
    """Where Python objects are made of bytes that another process could have written."""
    found = []
    for folder in (root / "flowtrain_core", root / "python" / "flowtrain"):
        for file in sorted(folder.rglob("*.py")):
            package = ".".join((folder.name, *file.relative_to(folder).parts[:-1]))
            where = file.relative_to(root)
            found += [
                f"{where}:{line} imports {name}"
                for line, name in imports_of(file, package)
                if is_within(name, CODE_READERS) and where != CHECKS_PICKLES
            ]
            for call in ast.walk(ast.parse(file.read_text())):
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                    continue
                name = ast.unparse(call.func)
                said = {word.arg: ast.unparse(word.value) for word in call.keywords}
                if (
                    (name == "torch.load" and said.get("weights_only") != "True")
                    or said.get("allow_pickle", "False") != "False"
                    or OBJECT_CALLS.fullmatch(call.func.attr)
                ):
                    found.append(f"{where}:{call.lineno} calls {name}")
    return found


def test_nothing_makes_objects_of_what_other_processes_wrote() -> None:
    assert code_readers(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    from pickle import loads\n",
        "from multiprocessing.connection import Listener\n",
        "import torch\ntorch.load('x')\n",
        "import torch\ntorch.load('x', weights_only=False)\n",
        "import numpy\nnumpy.load('x', allow_pickle=True)\n",
        "from torch import distributed\ndistributed.broadcast_object_list([1])\n",
    ],
)
def test_a_planted_reader_of_objects_is_found(tmp_path: Path, text: str) -> None:
    plant(tmp_path, "python/flowtrain/train/rank.py", text)
    assert len(code_readers(tmp_path)) == 1
    lawful = "import torch\ntorch.load('x', weights_only=True)"
    plant(tmp_path, "python/flowtrain/train/rank.py", lawful)
    assert code_readers(tmp_path) == []


def test_python_packages_see_only_what_they_may() -> None:
    assert python_violations(ROOT) == []


def test_cpp_folders_see_only_what_they_may() -> None:
    assert cpp_violations(ROOT) == []


def test_the_tables_name_only_what_exists() -> None:
    folders = [f"python/flowtrain/{name}" for name in (*POLICY, *BRIDGE)]
    folders += [f"csrc/{name}" for name in CPP_FOLDER_SEES]
    assert [name for name in folders if not ROOT.joinpath(name).is_dir()] == []


def plant(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).parent.joinpath("__init__.py").touch()
    (root / file).write_text(text)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("flowtrain_core/pool.py", "def f():\n    import torch.nn\n"),
        ("flowtrain_core/pool.py", "from flowtrain.steps import StepPlan\n"),
        ("python/flowtrain/steps/step.py", "from torch import nn\n"),
        ("python/flowtrain/steps/step.py", "from flowtrain_core import Pool\n"),
        ("python/flowtrain/steps/deep/step.py", "from ...train import worker\n"),
        ("python/flowtrain/steps/step.py", "from .. import models\n"),
        ("python/flowtrain/train/rank.py", "from flowtrain import cli\n"),
        ("python/flowtrain/launch.py", "import flowtrain.cli.main\n"),
    ],
)
def test_a_planted_python_import_is_found(tmp_path: Path, file: str, text: str) -> None:
    plant(tmp_path, file, text)
    (found,) = python_violations(tmp_path)
    assert found.startswith(f"{file}:")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("python/flowtrain/__main__.py", "from flowtrain.cli.main import main\n"),
        ("python/flowtrain/packing/balanced.py", "from flowtrain_core.packing import schedule\n"),
        ("python/flowtrain/train/rank.py", "import torch\nfrom flowtrain_core import Pool\n"),
    ],
)
def test_a_lawful_python_import_is_not(tmp_path: Path, file: str, text: str) -> None:
    plant(tmp_path, file, text)
    assert python_violations(tmp_path) == []


def test_a_package_that_no_wheel_would_hold_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "python/flowtrain/cost/flops.py", "")
    (tmp_path / "python/flowtrain/cost/__init__.py").unlink()
    (found,) = python_violations(tmp_path)
    assert found.startswith("python/flowtrain/cost has no __init__.py")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("csrc/os/futex.hpp", '#include "memory/address.hpp"'),
        ("csrc/memory/carve.cpp", '#include "channel/pool.hpp"'),
        ("csrc/packing/balanced.hpp", "#include <pybind11/pybind11.h>"),
        ("csrc/bindings/module.cpp", "#include <torch/extension.h>"),
        ("csrc/channel/path.cpp", "#include <cuda_runtime.h>"),
        ("csrc/bindings/bench/bind_ring.cpp", '#include "bindings/core/views.hpp"'),
        ("csrc/utils/misc.hpp", ""),
    ],
)
def test_a_planted_include_is_found(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(f'#include "base/error.hpp"\n{text}\n')
    (found,) = cpp_violations(tmp_path)
    assert found.startswith(f"{file}:")
