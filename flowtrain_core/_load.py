"""Finds the compiled extensions, even if a source folder hides the installed wheel."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys

from flowtrain_core._version import __version__

_NAME = "flowtrain_core._C"
_INSTALL = "pip install flowtrain (in a checkout: pip install -e .)"


def load_extension() -> None:
    """Imports `flowtrain_core._C`, so that later imports by name find it and the other extensions.

    Raises:
        ImportError: It was not built, or has another version; the message names the command that
            builds it.
    """
    try:
        module = importlib.import_module(_NAME)
    except ModuleNotFoundError as error:
        if error.name != _NAME:
            raise
        sys.modules["flowtrain_core"].__path__.append(_hidden_folder())
        module = importlib.import_module(_NAME)
    if module.__version__ != __version__:
        del sys.modules[_NAME]
        raise ImportError(
            f"flowtrain_core: the extension {module.__file__} has version {module.__version__} and "
            f"the sources have {__version__}; run {_INSTALL}"
        )


def _hidden_folder() -> str:
    for folder in sys.path:
        package = os.path.join(folder or os.curdir, "flowtrain_core")
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            if os.path.exists(os.path.join(package, f"_C{suffix}")):
                return package
    raise ImportError(f"flowtrain_core: the compiled extension _C is missing; run {_INSTALL}")
