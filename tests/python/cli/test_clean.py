"""`flowtrain clean` removes pools of killed runs, and none that a process has open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowtrain.cli.main import main
from flowtrain_core import Pool, PoolEntry, list_pools

PREFIX = f"clean-{os.getpid()}-"
MAKE = """
import sys, time
from flowtrain_core import Pool
pool = Pool.create(sys.argv[1], bytes=1 << 16)
print("made", flush=True)
time.sleep(60)
"""
HOLD = """
import fcntl, struct, sys, time
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 7, 1, 0))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _see_only_own_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run at the same time leave pools too, and need them."""

    def own_pools() -> list[PoolEntry]:
        return [pool for pool in list_pools() if pool.name.startswith(PREFIX)]

    for module in ("flowtrain.clean", "flowtrain.cli.clean"):
        monkeypatch.setattr(f"{module}.list_pools", own_pools)


def test_a_dead_pool_is_removed_and_a_live_one_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    dead, alive = f"{PREFIX}dead", f"{PREFIX}alive"
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
        assert f"kept {alive}: in use, created by process {os.getpid()}" in said
        assert Pool.exists(alive)
        assert main(["clean"]) == 0
        assert dead not in capsys.readouterr().out


def test_unreadable_pools_are_removed_unless_they_are_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runtime = Path(f"/dev/shm/flowtrain-{os.geteuid()}")
    old = (0x315F4C4F4F505446).to_bytes(8, "little") + (1).to_bytes(4, "little") + bytes(4084)
    kinds = {
        "used": old,  # By a process of that version, whose lane holds the lock of a byte.
        "old": old,
        "cut": old[:10],
        "zeros": bytes(4096),
        "other": b"x" * 4096,
        "nothing": None,
    }
    names = {kind: f"{PREFIX}{kind}" for kind in kinds}
    for kind, content in kinds.items():
        (runtime / names[kind]).mkdir(mode=0o700)
        if content is not None:
            (runtime / names[kind] / "control").write_bytes(content)
    (runtime / names["nothing"] / "control").mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, runtime / names["used"] / "control"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert main(["clean"]) == 0
    said = capsys.readouterr().out
    for kind, name in names.items():
        assert (f"removed {name}\n" in said) == (kind != "used")
        assert (runtime / name).exists() == (kind == "used")
    assert f"kept {names['used']}: in use, created by another version of FlowTrain\n" in said
    holder.kill()
    holder.communicate()
    assert main(["clean"]) == 0
    assert not (runtime / names["used"]).exists()
