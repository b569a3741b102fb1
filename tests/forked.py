"""Starts commands and programs as forks of the fork server, since imports take longer than runs.

A forked `flowtrain` runs the code of the product, except `SubprocessHandler._popen`, in which torch
executes a rank, also one of torchrun: the rank is forked, too. It still is a child of the launcher,
with a session, an environment, streams and an exit code of its own. What forks do not have is
tested with executed processes (`Run(executed=True)`, `test_local.py`, `test_external.py`,
`test_readme.py`):

- the command line and environment that /proc shows, and `python -m` itself;
- imports of their own, what these print, and variables that they read, as GLIBC_TUNABLES;
- the end of the interpreter: `atexit`, and destructors of modules.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, ClassVar

import torch
from fork_server import SERVER
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from flowtrain import parent
from flowtrain.cost import peak
from flowtrain.signals import STOPS

_PR_SET_CHILD_SUBREAPER = 36
_RANK = ("-m", "flowtrain.train.assembly.main")

Streams = tuple[str | None, str | None]
"""Files or terminals of standard output and standard error; None is that of the fork server."""


class ForkedProcess:
    """A child of the fork server, with what tests use of `subprocess.Popen`."""

    started: ClassVar[list[ForkedProcess]] = []

    def __init__(
        self, run: Callable[..., None], *given: object, env: dict[str, str], streams: Streams
    ) -> None:
        self._process = SERVER.Process(target=_run, args=(run, given, env, streams))
        self._process.start()
        self.started.append(self)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def kill(self) -> None:
        self._process.kill()

    @classmethod
    def kill_all(cls) -> None:
        """Kill those that a failed test has left; the interpreter would wait for them at exit."""
        while cls.started:
            process = cls.started.pop()
            if process.poll() is None:
                process.kill()


class ForkedPopen(ForkedProcess):
    """`subprocess.Popen` as `connect_parity` calls it: a program, `flowtrain` or torchrun."""

    def __init__(
        self, words: Sequence[str], *, env: dict[str, str], stderr: IO[str], **_: object
    ) -> None:
        out = f"{stderr.name}.out"
        os.mkfifo(out)
        # Open for writing, too: it must not end before the process has opened it.
        self.stdout = open(os.open(out, os.O_RDWR))  # noqa: SIM115
        run = _launch if words[1] == "-m" else _program
        super().__init__(run, *words[1:], env=env, streams=(out, stderr.name))

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def communicate(self) -> None:
        self.wait(None)
        self.stdout.close()


def start_command(words: Sequence[str], env: dict[str, str], streams: Streams) -> ForkedProcess:
    """Start `flowtrain` with these arguments."""
    return ForkedProcess(_launch, "-m", "flowtrain", *words, env=env, streams=streams)


def start_program(program: Path, *arguments: object, **env: str) -> ForkedProcess:
    """Start a Python file with these arguments."""
    return ForkedProcess(
        _program, program, *arguments, env={**os.environ, **env}, streams=(None, None)
    )


def opened(stream: str) -> int:
    """Descriptor of an emptied file, or of a terminal, which does not become that of a session."""
    return os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY)


def redirect(streams: Streams) -> None:
    """Redirect what this process prints to these files, line by line."""
    descriptors = {stream: opened(stream) for stream in set(streams) if stream is not None}
    for number, stream in enumerate(streams, start=1):
        if stream is not None:
            os.dup2(descriptors[stream], number)
    for descriptor in descriptors.values():
        os.close(descriptor)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))  # noqa: SIM115


def skip_slow_parts() -> None:
    """Skip what would take a large share of a short run."""
    # Garbage collections would copy the pages of everything that was imported.
    gc.freeze()
    # The peak FLOP/s of the machine, which MFU needs, are measured for 0.2 s otherwise.
    peak._SECONDS = 0.01


def _run(
    run: Callable[..., None], given: tuple[object, ...], env: dict[str, str], streams: Streams
) -> None:
    # A child of a fork server would start its own children with one.
    multiprocessing.set_start_method(None, force=True)
    skip_slow_parts()
    _become(env, streams)
    run(*given)


def _become(env: dict[str, str], streams: Streams) -> None:
    """Give a forked process what an executed one would have."""
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    redirect(streams)
    # torch has read the variable in the fork server.
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS", "1")))


def _program(*words: object) -> None:
    parent.end_with(os.getppid())
    sys.argv = list(map(str, words))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _launch(_: str, module: str, *words: str) -> None:
    """`python -m` of a module that starts ranks."""
    from flowtrain.cli.main import command  # Forked with it.

    launcher = os.getpid()
    ours, theirs = multiprocessing.Pipe()
    if os.fork() == 0:
        ours.close()
        _fork_ranks(theirs, launcher)  # Returns at the end of each rank.
        return
    theirs.close()
    # Another version of torch may start ranks otherwise.
    assert callable(SubprocessHandler._popen)

    def popen(self: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> _Adopted:
        streams = [file and file.name for file in (self._stdout, self._stderr)]
        with _adopting():
            ours.send((args, env, streams))
            return _Adopted(ours.recv())

    setattr(SubprocessHandler, "_popen", popen)  # noqa: B010
    sys.argv = [module, *words]
    if module == "flowtrain":
        sys.exit(command())
    runpy.run_module(module, run_name="__main__")


def _fork_ranks(connection: Connection, launcher: int) -> None:
    """Fork this process for each rank that the launcher asks for; it ends with the launcher.

    It is forked before the launcher has threads, a pool and sockets, which ranks must not inherit.
    """
    from flowtrain.train.assembly.main import main  # Forked with it.

    parent.end_with(launcher)
    os.setsid()
    # As `withheld` does where ranks are executed.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    while True:
        try:
            args, env, streams = connection.recv()
        except EOFError:
            os._exit(0)
        if (between := os.fork()) == 0:
            between = os.getpid()
            # The launcher adopts the child of a process that ends.
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            connection.send(os.getpid())
            connection.close()
            _become(env, streams)
            if tuple(args[1:3]) != _RANK:  # torchrun executes python -u and a program.
                _program(*args[2:])
                return
            sys.argv = ["-m", *args[3:]]
            main()
            return
        os.waitpid(between, 0)


class _Adopted(subprocess.Popen[bytes]):
    """A child of this process that another one has started."""

    def __init__(self, pid: int) -> None:
        self._adopted = pid
        super().__init__([])

    def _execute_child(self, *_: object) -> None:
        self.pid = self._adopted
        self._child_created = True


@contextmanager
def _adopting() -> Iterator[None]:
    """Within the block, this process becomes the parent of descendants whose parent ends."""
    prctl = partial(ctypes.CDLL(None).prctl, _PR_SET_CHILD_SUBREAPER)
    prctl(1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(0, 0, 0, 0)
