"""`ucx_perftest` of the copy of UCX that is measured."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_TIMEOUT_S = 60.0
_LISTENING = "0A"


def find(library: str) -> Path | None:
    """The program that was installed with a library of UCX, if there is one."""
    for folder in list(Path(library).parents)[:4]:
        program = folder / "bin" / "ucx_perftest"
        if program.is_file():
            return program
    return None


def am_bytes_per_s(
    program: Path, library: str, settings: Mapping[str, str], item_bytes: int, count: int
) -> float:
    """Rate of active messages between two processes that sleep while they wait.

    Args:
        program: Path of `ucx_perftest`.
        library: Path of `libucp`.
        settings: Of UCX, without their prefix.
        item_bytes: Size of a message.
        count: Messages that are measured.

    Raises:
        RuntimeError: The program failed, with its output.
    """
    port = _free_port()
    command = [str(program), "-t", "ucp_am_bw", "-E", "sleep", "-p", str(port)]
    command += ["-s", str(item_bytes), "-n", str(count), "-w", str(max(2, count // 5))]
    environment = os.environ | {f"UCX_{name}": value for name, value in settings.items()}
    environment["LD_LIBRARY_PATH"] = str(Path(library).parent)
    first, *others = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(
        [*command, "-c", str(others[0] if others else first)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            _await_listener(port, server)
            done = subprocess.run(
                [*command, "127.0.0.1", "-c", str(first), "-f", "-v"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        finally:
            server.kill()
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or len(lines) < 2:
        raise RuntimeError(f"{program} failed: {(done.stdout + done.stderr).strip()}")
    columns = dict(zip(lines[-2].split(","), lines[-1].split(","), strict=True))
    return float(columns["overall_bw"]) * (1 << 20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _await_listener(port: int, server: subprocess.Popen[str]) -> None:
    """Wait until a port is listened on; to connect would count as the client."""
    end = time.monotonic() + _TIMEOUT_S
    wanted = f":{port:04X}"
    while time.monotonic() < end and server.poll() is None:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if local.endswith(wanted) and state == _LISTENING:
                    return
        time.sleep(0.01)
    raise RuntimeError(f"ucx_perftest does not listen on port {port}")
