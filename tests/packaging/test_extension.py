"""The extension modules of this checkout, as a wheel has them."""

from __future__ import annotations

import re
import subprocess
import zlib
from pathlib import Path

import pytest

from flowtrain_core import _C, _bench, _ops

FILES = [Path(module.__file__) for module in (_C, _bench, _ops)]
MAX_PACKED_BYTES = 4_000_000
# Libraries of every Linux. The driver is opened at run time, libtorch is never needed. The
# C++ runtime is the system's, as torch's is: two in one process would conflict.
SYSTEM_LIBRARIES = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux-.*)\.so\.\d+")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.split(".")[0])
def test_an_extension_needs_system_libraries_only(file: Path) -> None:
    done = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout)
    assert needed
    assert [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)] == []


def test_extensions_are_small() -> None:
    assert sum(len(zlib.compress(file.read_bytes())) for file in FILES) < MAX_PACKED_BYTES
