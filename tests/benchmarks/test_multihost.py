"""A run over two hosts that have their own networks, one of which is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def why_not() -> str:
    """Why this machine cannot emulate hosts; empty if it can."""
    if missing := [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "true"], capture_output=True, check=False
    )
    return tried.stderr.decode()


@pytest.mark.deep
@pytest.mark.limit(600)
def test_a_strict_run_over_two_hosts_is_exact_after_a_cut_and_a_resume() -> None:
    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / "multihost.py",
            "--json",
            "--match",
            "strict 1 + 2, cut, tcp",
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert (row["max_rel_loss_diff"], row["lost"], row["repeated"]) == (0.0, 0, 0), row
    # The error of a run names the host and the path.
    assert "host there (('10.77.0.1'," in row["error"]
    assert row["veth_bytes"] >= row["bytes_through_pool"] > 0
