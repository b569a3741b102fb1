"""Processes of a measurement: functions of `flowtrain_core._bench`, and programs of peers.

A function gets a process of one thread, which it may fork and pin.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from flowtrain_core import Pool

_FUNCTION = """
import json, sys
from flowtrain.parent import end_with
from flowtrain_core import _bench
end_with(int(sys.argv[1]))
def tell(found):
    print(json.dumps(found), flush=True)
function, given = getattr(_bench, sys.argv[2]), json.loads(sys.argv[3])
try:
    function(**given, tell=tell) if sys.argv[4:] == ["tells"] else tell(function(**given))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
# Names of the functions' pools, before the number of the process.
_POOLS = ("bench-slab", "bench-idle", "measure")
_EXEC = """
import os, sys
from flowtrain.parent import end_with
end_with(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


def call(function: str, **arguments: object) -> Any:
    """Call a function of the extension `_bench` in a fresh process, and return its result by JSON.

    Raises:
        ValueError: The function refused an argument.
        RuntimeError: The function failed otherwise, or its process died.
    """
    return asyncio.run(call_async(function, **arguments))


async def call_async(function: str, **arguments: object) -> Any:
    """As `call`. The process ends if this is cancelled."""
    async with _python(_FUNCTION, function, json.dumps(arguments)) as process:
        return json.loads(await _last_line(process, function))


@asynccontextmanager
async def telling(function: str, **arguments: object) -> AsyncIterator[tuple[Process, Any]]:
    """Run a function that tells facts and goes on. Its process ends with the block.

    Returns:
        The process, and what it has told.

    Raises:
        ValueError: The function refused an argument.
        RuntimeError: The function failed otherwise, before it had told.
    """
    async with _python(_FUNCTION, function, json.dumps(arguments), "tells") as process:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.startswith(b"{"):  # UCX may have printed a warning before.
                yield process, json.loads(line)
                return
        await _last_line(process, function)
        raise RuntimeError(f"{function} ended before it had told where it listens")


async def failure_of(process: Process) -> str:
    """Standard error of a process that failed, once it has ended; empty if it succeeded."""
    _, err = await process.communicate()
    return err.decode().strip() if process.returncode else ""


def program(
    path: Path, *words: str, env: Mapping[str, str]
) -> AbstractAsyncContextManager[Process]:
    """Run a program. It ends with the block, and with this process."""
    return _python(_EXEC, str(path), *words, env=env)


@asynccontextmanager
async def _python(
    code: str, *words: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    command = (sys.executable, "-c", code, str(os.getpid()), *words)
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if killed := process.returncode is None:
            with suppress(ProcessLookupError):
                # `Process.kill` would take the exit code that asyncio waits for.
                os.kill(process.pid, signal.SIGKILL)
        await process.communicate()  # Also waits for its children, which write to the same pipes.
        if killed:
            for name in _POOLS:
                Pool.unlink(f"{name}-{process.pid}")


async def _last_line(process: Process, function: str) -> bytes:
    """The last line that a process prints, once it has ended."""
    out, err = await process.communicate()
    if process.returncode != 0:
        said = err.decode().strip().splitlines() or [f"exit code {process.returncode}"]
        kind = ValueError if said[-1].startswith("ValueError") else RuntimeError
        raise kind(f"{function} failed: {'; '.join(said)}")
    return out.strip().rpartition(b"\n")[2]
