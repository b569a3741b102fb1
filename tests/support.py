"""A tiny model, a little data, and runs of them in processes that a test may kill."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import yaml
from forked import ForkedProcess, opened, start_command
from numpy.typing import NDArray
from terminals import Terminal

from flowtrain.cost.flops import Grid
from flowtrain.data.digits import write_digits
from flowtrain.data.pixel_maker import PixelMaker, SamplePixels
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST

TESTS = Path(__file__).parent


def imported(program: Path) -> ModuleType:
    """A program that tests start, imported as a module, so that tests can use its data."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: more only slow small models down, above all on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def float_pixels(model: Path, *visuals: tuple[SamplePixels, Grid]) -> NDArray[np.float32]:
    """Pixels of images and videos, each with its planned grid."""
    import torch

    make = PixelMaker(family_for(model))
    values, grids = zip(*visuals, strict=True)
    made: NDArray[np.float32] = make(
        values, grids, dtype=torch.float32, device=torch.device("cpu")
    ).numpy()
    return made


def write_tiny_data(folder: Path, *, samples: int = 96, **shares: float) -> None:
    write_digits(folder, train=samples, heldout=4, seed=3, sizes=SMALLEST, **shares)


def run_tree(folder: Path, source: Path, /, **sections: dict[str, Any]) -> dict[str, Any]:
    """Configuration of a short run, decoupled unless `flow` has another layout.

    Given sections are merged into the default ones.
    """
    tree: dict[str, Any] = {
        "run": str(folder),
        "model": {"config": str(source / "model")},
        # A worker process takes seconds to start.
        "data": {"path": str(source / "train.jsonl"), "workers": 0},
        "train": {"steps": 4, "global_batch": 8, "microbatch_tokens": 160, "threads": 1},
        "optim": {"lr": 1e-3, "schedule": "cosine"},
        "flow": {"item_tokens": 24, "timeout_s": 60.0},
        "pool": {"slab_bytes": 4096},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    if tree["flow"].keys().isdisjoint({"layout", "ranks"}):
        tree["flow"] = {"encoder_ranks": 1, "backbone_ranks": 1, **tree["flow"]}
    return tree


class Run:
    """`flowtrain train` in its own process; `end_runs` kills it if the test fails."""

    started: ClassVar[list[Run]] = []

    def __init__(
        self,
        tree: dict[str, Any],
        *,
        resume: bool = False,
        on_terminal: bool = False,
        executed: bool = False,
    ) -> None:
        """Start it.

        Args:
            tree: Configuration of the run.
            resume: Resume from the latest checkpoint.
            on_terminal: Standard output and standard error are one terminal.
            executed: Execute the command and its ranks, which takes seconds, instead of forking.
        """
        self.folder = Path(tree["run"])
        config = self.folder.with_suffix(".yaml")
        config.write_text(yaml.safe_dump(tree))
        words = ["train", str(config), *(["--resume"] if resume else [])]
        # `debug.fault` names functions of `faults.py`.
        paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._terminal = Terminal() if on_terminal else None
        self._streams = (
            (os.ttyname(self._terminal.theirs),) * 2
            if self._terminal is not None
            else (str(self.folder.with_suffix(".out")), str(self.folder.with_suffix(".err")))
        )
        start = _executed if executed else start_command
        self.process: ForkedProcess | subprocess.Popen[bytes] = start(words, env, self._streams)
        self.started.append(self)

    def wait(self, timeout_s: float = 180.0) -> tuple[int, str]:
        """Exit code and standard error; `output` is the standard output from then on."""
        code = self.process.wait(timeout_s)
        if self._terminal is not None:
            self.output = errors = self._terminal.shown()
            self._terminal = None
        else:
            self.output, errors = (Path(stream).read_text() for stream in self._streams)
        return code, errors

    def succeed(self) -> list[dict[str, Any]]:
        """Wait until the run succeeds; return the metrics of every step."""
        code, errors = self.wait()
        assert code == 0, errors
        return self.metrics()

    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        # The last line may be incomplete, since it is being written.
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def wait_for_steps(self, steps: int, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while len(self.metrics()) < steps:
            assert self.process.poll() is None, self.wait()
            assert time.monotonic() < end, f"{steps} steps were not reached"
            time.sleep(0.05)

    def ranks(self) -> dict[str, int]:
        """Pid of every rank, by its name."""
        found = {}
        for pid in descendants(self.process.pid):
            # Processes that a rank has started write to its log too, and are in its session. They
            # may have ended by now.
            with suppress(ProcessLookupError):
                if (log := self.log_of(pid)) is not None and os.getsid(pid) == pid:
                    found[self._rank_of(log)] = pid
        return found

    def errors(self) -> dict[str, str]:
        """Standard error of every rank, by its name."""
        logs = self.folder.glob("logs/*/*/*/*/*/stderr.log")
        return {self._rank_of(log): log.read_text() for log in logs}

    def log_of(self, pid: int) -> Path | None:
        """The log of a rank, if this process writes to it."""
        with suppress(OSError):
            log = Path(f"/proc/{pid}/fd/2").readlink()
            if log.is_relative_to(self.folder / "logs"):
                return log
        return None

    @staticmethod
    def _rank_of(log: Path) -> str:
        """Name of the rank with this log."""
        # The folder of a world, or of an encoder rank that comes and goes.
        name = log.parts[-5]
        return name if "." in name else f"{name}.{log.parts[-2]}"

    def kill_all(self) -> None:
        """Kill the launcher and all its descendants, and wait until all have ended."""
        ends = []
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                ends.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGKILL)
        self.wait()
        # A rank holds its pool until its memory is freed.
        for end in ends:
            select.select([end], [], [])
            os.close(end)


def _executed(
    words: Sequence[str], env: dict[str, str], streams: tuple[str, str]
) -> subprocess.Popen[bytes]:
    out, err = map(opened, streams)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "flowtrain", *words],
            stdout=out,
            stderr=err,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(out)
        os.close(err)


@contextmanager
def end_runs() -> Iterator[None]:
    """Kill the processes that are left of the runs and programs that the block starts."""
    try:
        yield
    finally:
        while Run.started:
            run = Run.started.pop()
            # Ranks outlive a killed launcher.
            for pid in processes():
                if run.log_of(pid) is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if run.process.poll() is None:
                run.kill_all()
        ForkedProcess.kill_all()


@contextmanager
def torch_world(ranks: int) -> Iterator[dict[str, str]]:
    """Environment of ranks that meet in a store of this process, whose port nobody else can take.

    The ranks connect to it as those of torchrun do.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for process in processes():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(process)
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def listening(pids: Iterable[int]) -> set[str]:
    """Addresses at which sockets of these processes listen for TCP connections."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(os.readlink(file))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                # In words of four bytes, each in the order of the machine.
                digits = bytes.fromhex(fields[1].partition(":")[0])
                words = [digits[at : at + 4][::-1] for at in range(0, len(digits), 4)]
                found.add(str(ipaddress.ip_address(b"".join(words))))
    return found


def left_by(*launchers: int) -> set[str]:
    """Names of pools in shared memory that these processes created and no process has open."""
    import flowtrain_core

    pools = flowtrain_core.list_pools()
    return {pool.name for pool in pools if pool.creator_pid in launchers and not pool.alive}


@contextmanager
def nothing_left() -> Iterator[set[int]]:
    """Check that no pool of the block's runs is left in shared memory.

    Yields:
        Pids of launchers. A block adds those that are neither a `Run` nor this process.
    """
    launchers = {os.getpid()}
    before = left_by(*launchers)
    yield launchers
    left = left_by(*launchers, *(run.process.pid for run in Run.started)) - before
    assert not left, f"pools left in shared memory: {', '.join(sorted(left))}"
