"""Access by another user, and by another process of this user: what the kernel refuses."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from core.processes import Spawn

from flowtrain_core import Pool

# An id that no system uses (systemd.io/UIDS-GIDS): its own for each process that runs tests.
SOMEBODY = 60706 + os.getpid() % 478
RUNTIME = Path(f"/dev/shm/flowtrain-{os.geteuid()}")
THEIRS = Path(f"/dev/shm/flowtrain-{SOMEBODY}")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's")

# Evaluates each line of input, and prints its value or its error.
ASK = """
import os, socket
def ask(path, request=bytes(16)):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(path)
        s.send(request)
        return socket.recv_fds(s, 1, 1)[:2]
for line in sys.stdin:
    try: print(eval(line))
    except Exception as error: print(f"{type(error).__name__}: {error}".replace("\\n", " "))
"""
ASK_AS_SOMEBODY = f"""
import os, socket  # Now: this user may not read the libraries of Python.
os.setgroups([]); os.setgid({SOMEBODY}); os.setuid({SOMEBODY})
{ASK}"""


def memfd_of(name: str) -> int:
    """This process's descriptor of the first segment of a pool."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if f"memfd:{name}.1 " in os.readlink(f"/proc/self/fd/{fd}"):
                return int(fd)
    raise AssertionError(f"{name} has no memory here")


@pytest.fixture
def link(name: str) -> Iterator[Path]:
    path = Path(f"/dev/shm/{name}.sock")
    yield path
    path.unlink(missing_ok=True)


@needs_root
def test_another_user_can_neither_find_open_read_write_nor_shrink(name: str, spawn: Spawn) -> None:
    with Pool.create(name, bytes=1 << 16):
        somebody = spawn(ASK_AS_SOMEBODY)
        control = RUNTIME / name / "control"
        for attempt in (
            f"os.listdir('{RUNTIME}')",
            f"os.open('{control}', os.O_RDONLY)",
            f"os.truncate('{control}', 0)",
            f"os.unlink('{control}')",
            f"ask('{RUNTIME / name / '0.sock'}')",
            f"os.open('/proc/{os.getpid()}/fd/{memfd_of(name)}', os.O_RDONLY)",
        ):
            somebody.tell(attempt)
            assert somebody.line().startswith("PermissionError"), attempt
        somebody.tell(f"Pool.open('{name}')")
        assert somebody.line().startswith(f"PoolNotFound: pool '{name}': there is none in {THEIRS}")
    with contextlib.suppress(OSError):
        THEIRS.rmdir()


@needs_root
def test_a_socket_gives_another_user_nothing_even_with_open_permissions(
    name: str, link: Path, spawn: Spawn
) -> None:
    with Pool.create(name, bytes=1 << 16):
        os.link(RUNTIME / name / "0.sock", link)
        link.chmod(0o666)
        nonce = (RUNTIME / name / "control").read_bytes()[40:48]
        request = nonce + (1 << 48 | 1 << 40).to_bytes(8, "little")  # The first segment's address.
        ours, somebody = spawn(ASK), spawn(ASK_AS_SOMEBODY)
        for process in (ours, somebody):
            process.tell(f"ask('{link}', {request!r})")
        assert ours.line().startswith("(b'\\x01', [")
        # Connections closed before, during and after the request.
        refused = ("(b'', [])", "ConnectionResetError", "BrokenPipeError")
        assert somebody.line().split(":")[0] in refused


@needs_root
def test_a_folder_of_another_user_is_not_used(name: str, spawn: Spawn) -> None:
    with contextlib.suppress(FileNotFoundError):
        THEIRS.rmdir()
    THEIRS.mkdir(mode=0o777)
    try:
        somebody = spawn(ASK_AS_SOMEBODY)
        somebody.tell(f"Pool.create('{name}')")
        assert (
            f"{THEIRS}: not a folder of this user alone: it belongs to user 0, and only that user "
            f"or root can remove it; in every process of the pool, set FLOWTRAIN_POOL_DIR"
        ) in somebody.line()
    finally:
        THEIRS.rmdir()


def test_a_holder_of_memory_can_neither_shrink_nor_unseal_it(name: str) -> None:
    with Pool.create(name, bytes=1 << 16):
        memory = memfd_of(name)
        for bytes_wanted in (0, 1 << 17):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, bytes_wanted)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        never_executed = 0x20  # F_SEAL_EXEC, of kernels from 6.3 on.
        assert fcntl.fcntl(memory, fcntl.F_GET_SEALS) & ~never_executed == seals
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
