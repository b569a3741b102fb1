"""Streams that survive what happens to their readers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The process ends as a killed one does, without a flush of anything.
PROGRAM = """
import os, sys
from flowtrain.output import checked_stdout, lasting_stderr
with lasting_stderr(), checked_stdout():
    print("result")
    print("message", file=sys.stderr)
    os._exit(0)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_streams_have_a_buffer_where_those_of_python_have_one(unbuffered: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        timeout=60,
    )
    assert done.stderr == "message\n"
    assert done.stdout == ("result\n" if unbuffered else "")
