"""The core as a whole: its stub, its import, and its pairs of orderings."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from core.processes import ROOT

import flowtrain_core
from flowtrain_core import _C, _bench, _ops

ACQUIRES = ("acquire", "acq_rel", "seq_cst")
RELEASES = ("release", "acq_rel", "seq_cst")


def stub_names(extension: str = "_C") -> dict[str, set[str]]:
    """Public names of the stub of an extension, and of each of its classes."""
    names: dict[str, set[str]] = {"": set()}
    for node in ast.parse((ROOT / "flowtrain_core" / f"{extension}.pyi").read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[""].add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            names[""].add(node.name)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            names[""].add(node.name)
            names[node.name] = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
            names[node.name] |= {f.target.id for f in node.body if isinstance(f, ast.AnnAssign)}
    return names


def cuda_names(stub: dict[str, set[str]]) -> set[str]:
    """Names of the stub that only a build with CUDA has."""
    always = {"cuda_built", "CudaError"}
    return {name for name in stub[""] if name.lower().startswith("cuda")} - always


@pytest.mark.parametrize("extension", [_C, _bench, _ops])
def test_the_stub_matches_the_extension(extension: ModuleType) -> None:
    stub = stub_names(extension.__name__.split(".")[-1])
    module = {n for n in vars(extension) if not n.startswith("_") or n == "__version__"}
    if not _C.cuda_built:
        stub[""] -= cuda_names(stub)
    assert stub[""] == module
    spoken = {
        "__enter__",
        "__exit__",
        "__array__",
        "__dlpack__",
        "__dlpack_device__",
    }
    for name, submodule in inspect.getmembers(extension, inspect.ismodule):
        assert stub[name] == {n for n in vars(submodule) if not n.startswith("_")}, name
    for name, kind in inspect.getmembers(extension, inspect.isclass):
        own = {n for n in vars(kind) if not n.startswith("_") or n in spoken}
        # Constructors and the buffer protocol have other names in the extension.
        assert stub[name] - {"__init__", "__buffer__"} == own, name


def test_all_public_names_are_exported() -> None:
    stub = stub_names()
    private = cuda_names(stub) | {"cuda_built", "packing"}
    assert set(flowtrain_core.__all__) == stub[""] - private
    assert all(hasattr(flowtrain_core, name) for name in flowtrain_core.__all__)


def test_the_import_is_fast_and_imports_nothing_optional() -> None:
    code = (
        "import json, sys, time; before = set(sys.modules); start = time.process_time()\n"
        "import flowtrain_core; seconds = time.process_time() - start\n"
        "print(json.dumps([seconds, sorted(set(sys.modules) - before)]))"
    )
    best = 1.0
    for _ in range(5):
        run = subprocess.run(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + code],
            capture_output=True,
            check=True,
            timeout=60,
        )
        seconds, modules = json.loads(run.stdout)
        best = min(best, seconds)
        foreign = [name for name in modules if name.split(".")[0] not in sys.stdlib_module_names]
        # Without `_bench` and `_ops`, and nothing installed.
        assert foreign == [
            "flowtrain_core",
            *(f"flowtrain_core.{name}" for name in ("_C", "_C.packing", "_exit", "_load")),
            "flowtrain_core._version",
        ]
    # The minimum of five, and time on a core: load adds little to either.
    assert best < 0.05


def test_a_missing_extension_names_the_command_that_builds_it(tmp_path: Path) -> None:
    package = tmp_path / "flowtrain_core"
    package.mkdir()
    for source in (ROOT / "flowtrain_core").glob("*.py"):
        (package / source.name).write_text(source.read_text())
    run = subprocess.run(
        [sys.executable, "-S", "-E", "-c", "import flowtrain_core"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert "ImportError: flowtrain_core: the compiled extension _C is missing" in run.stderr
    assert "pip install flowtrain" in run.stderr
    # A wheel installed elsewhere on the path is found after the sources' folder.
    run = subprocess.run(
        [sys.executable, "-S", "-c", "from flowtrain_core import _C, _bench, _ops"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(_C.__file__).parents[1])},
    )
    assert run.returncode == 0, run.stderr


def sync_words(text: str) -> dict[str, set[str]]:
    """The sides found of each word of a `// sync:` comment in C++ source.

    The comment stands at the end of the line that names the ordering, or of the next one.
    """
    sides: dict[str, set[str]] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = re.search(r"// sync: ([\w., ]+)", line)
        if found is None:
            continue
        orders = re.findall(
            r"memory_order_(\w+)", "\n".join(lines[max(0, number - 1) : number + 1])
        )
        for word in found[1].split(", "):
            side = sides.setdefault(word, set())
            side |= {"acquire"} if set(orders) & set(ACQUIRES) else set()
            side |= {"release"} if set(orders) & set(RELEASES) else set()
    return sides


def test_every_named_ordering_has_both_sides() -> None:
    sides: dict[str, set[str]] = {}
    for file in sorted((ROOT / "csrc").rglob("*.[ch]pp")):
        for word, found in sync_words(file.read_text()).items():
            sides.setdefault(word, set()).update(found)
    assert len(sides) > 10
    assert {word: found for word, found in sides.items() if len(found) < 2} == {}


def test_every_acquire_and_release_is_named() -> None:
    unnamed = []
    for file in sorted((ROOT / "csrc").rglob("*.[ch]pp")):
        lines = file.read_text().splitlines()
        for number, line in enumerate(lines):
            ordered = re.search(r"memory_order_(acquire|release|acq_rel|seq_cst)", line)
            if ordered is None or "atomic_thread_fence" in line:
                continue
            if not any("// sync: " in near for near in lines[number : number + 2]):
                unnamed.append(f"{file.relative_to(ROOT)}:{number + 1}")
    assert unnamed == []


def test_a_missing_side_is_found() -> None:
    both = "x.store(1, std::memory_order_release);  // sync: a.b\n"
    assert sync_words(both) == {"a.b": {"release"}}
    assert sync_words(both + "x.load(std::memory_order_acquire);  // sync: a.b") == {
        "a.b": {"acquire", "release"}
    }
