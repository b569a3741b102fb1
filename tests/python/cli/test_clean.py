"""What killed runs left is removed, and nothing that somebody uses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from flowtrain.cli.main import main
from flowtrain_core import Pool

MAKE = """
import sys, time
from flowtrain_core import Pool
pool = Pool.create(sys.argv[1], bytes=1 << 16)
print("made", flush=True)
time.sleep(60)
"""


def test_a_dead_pool_is_removed_and_a_living_one_kept(capsys: pytest.CaptureFixture[str]) -> None:
    dead, alive = f"clean-dead-{os.getpid()}", f"clean-alive-{os.getpid()}"
    maker = subprocess.Popen([sys.executable, "-c", MAKE, dead], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "made\n"
    with Pool.create(alive, bytes=1 << 16):
        maker.send_signal(signal.SIGKILL)
        maker.communicate()
        assert main(["clean", "--dry-run"]) == 0
        assert f"would remove {dead}\n" in capsys.readouterr().out
        assert main(["clean"]) == 0
        said = capsys.readouterr().out
        assert f"removed {dead}\n" in said
        assert f"kept {alive}: made by process {os.getpid()}" in said
        assert Pool.exists(alive)
        assert main(["clean"]) == 0
        assert dead not in capsys.readouterr().out
