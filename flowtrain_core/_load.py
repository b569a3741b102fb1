"""Finds the compiled extension, also where the sources' folder hides an installed wheel."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

_INSTALL = "pip install flowtrain (in a checkout: pip install -e .)"


def load_extension() -> ModuleType:
    """The module `flowtrain_core._C`.

    Raises:
        ImportError: It was not built; the message names the command that builds it.
    """
    name = "flowtrain_core._C"
    if importlib.util.find_spec(name) is not None:
        return importlib.import_module(name)
    for folder in sys.path:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder or os.curdir, "flowtrain_core", f"_C{suffix}")
            if not os.path.exists(path):
                continue
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"flowtrain_core: the compiled extension _C is missing; run {_INSTALL}")
