"""Runs functions of `flowtrain_core._bench`, which fork, in a fresh process of one thread."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_PROGRAM = """
import json, sys
from flowtrain_core import _bench
try:
    print(json.dumps(getattr(_bench, sys.argv[1])(**json.loads(sys.argv[2]))))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def call(function: str, **arguments: object) -> Any:
    """Call a function of the extension `_bench` in a fresh process, and return its result by JSON.

    Raises:
        ValueError: The function refused an argument.
        RuntimeError: The function failed otherwise, or its process died.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, function, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        kind = ValueError if said[-1].startswith("ValueError") else RuntimeError
        raise kind(f"{function} failed: {'; '.join(said)}")
    return json.loads(done.stdout)
