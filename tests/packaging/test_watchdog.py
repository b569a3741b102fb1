"""The watchdog of tests/conftest.py ends a run that hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

HANGS = """
import os, time, pytest

@pytest.mark.limit(2)
def test_hangs():
    os.fork()  # The child has the pipes of the run.
    time.sleep(60)
"""


ALONE: tuple[str, ...] = ()
# As `make test` runs it.
TWO_WORKERS = ("-n", "2", "--dist", "loadfile", "--max-worker-restart", "0")


@pytest.mark.parametrize("options", [ALONE, TWO_WORKERS], ids=["alone", "two workers"])
def test_a_test_that_hangs_ends_the_run_with_its_stack(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    if options:
        pytest.importorskip("xdist")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    limit(seconds): its limit\n")
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_hangs.py").write_text(HANGS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode != 0
    assert "in test_hangs" in done.stderr
    if options:
        assert "crashed while running 'test_hangs.py::test_hangs'" in done.stdout
