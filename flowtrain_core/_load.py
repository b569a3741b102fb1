"""Finds the compiled extension, even if a source folder hides the installed wheel."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

from flowtrain_core._version import __version__

_NAME = "flowtrain_core._C"
_INSTALL = "pip install flowtrain (in a checkout: pip install -e .)"


def load_extension() -> None:
    """Imports `flowtrain_core._C`, so that later imports by name find it.

    Raises:
        ImportError: It was not built, or has another version; the message names the command that
            builds it.
    """
    try:
        module = importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        module = _import_from(_hidden_path())
    if module.__version__ != __version__:
        del sys.modules[_NAME]
        raise ImportError(
            f"flowtrain_core: the extension {module.__file__} has version {module.__version__} and "
            f"the sources have {__version__}; run {_INSTALL}"
        )


def _hidden_path() -> str:
    for folder in sys.path:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder or os.curdir, "flowtrain_core", f"_C{suffix}")
            if os.path.exists(path):
                return path
    raise ImportError(f"flowtrain_core: the compiled extension _C is missing; run {_INSTALL}")


def _import_from(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module
