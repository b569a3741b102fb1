"""All errors are of one family, and documented."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from pathlib import Path

import pytest

from flowtrain_core import FlowTrainError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
# `flowtrain` catches it itself: its reader has closed standard output.
INTERNAL = {"OutputError"}


def errors() -> dict[str, list[str]]:
    """Names of the bases of every exception class in the sources, by its name."""
    found: dict[str, list[str]] = {}
    files = [
        *(ROOT / "flowtrain_core").rglob("*.py*"),
        *(ROOT / "python" / "flowtrain").rglob("*.py"),
    ]
    for file in files:
        if file.suffix in (".py", ".pyi"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name] = [ast.unparse(base) for base in node.bases]
    return {name: bases for name, bases in found.items() if is_error(name, found)}


def is_error(name: str, classes: dict[str, list[str]]) -> bool:
    own = getattr(builtins, name, None)
    if isinstance(own, type):
        return issubclass(own, BaseException)
    return any(is_error(base, classes) for base in classes.get(name, []))


def test_every_error_is_a_flowtrain_error_and_the_page_has_its_bases() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    family = {
        name: [base for base in bases if base != "FlowTrainError"]
        for name, bases in errors().items()
        if name not in INTERNAL | {"FlowTrainError"}
    }
    assert {name: [base] for name, base in rows} == family
    loners = [
        name
        for name, bases in errors().items()
        if name in family and "FlowTrainError" not in bases and not family.keys() & set(bases)
    ]
    assert loners == []


def test_every_error_is_imported_from_the_module_that_its_row_names() -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    rows = re.findall(r"^\| `(\w+)` \| `\w+` \| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == errors().keys() - INTERNAL - {"FlowTrainError"}
    for name, module in rows:
        assert issubclass(getattr(importlib.import_module(module), name), FlowTrainError)
