"""Runs what the core measures by itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# Participants are forked, so the process that runs this has one thread.
_PROGRAM = """
import json, sys
from flowtrain_core import _C
print(json.dumps(getattr(_C, sys.argv[1])(**json.loads(sys.argv[2]))))
"""


def run(function: str, **arguments: object) -> Any:
    """What a function of the extension returns.

    Raises:
        ValueError: It refuses an argument.
        RuntimeError: It failed; the message has its reason.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, function, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        kind = ValueError if reason[0].startswith("ValueError") else RuntimeError
        raise kind(f"{function} failed: {reason[0]}")
    return json.loads(done.stdout)
