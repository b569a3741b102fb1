"""Readers in processes: results, errors, and what remains after a kill."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import descendants

from flowtrain.data import worker, worker_process
from flowtrain.data.worker_process import WorkerDied
from flowtrain.data.workers import WorkerPool

# A reader whose methods are functions of a module that every process can import.
OS = partial(importlib.import_module, "os")


@pytest.mark.parametrize("workers", [0, 2])
def test_calls_return_results_and_errors(workers: int) -> None:
    with WorkerPool(partial(dict, seven=7), workers) as pool:
        futures = [pool.submit("get", "seven") for _ in range(5)]
        assert [future.result(60) for future in futures] == [7] * 5
        with pytest.raises(KeyError, match="eight"):
            pool.submit("pop", "eight").result(60)


@pytest.mark.parametrize("workers", [0, 1])
def test_each_call_raises_the_error_of_a_reader_that_cannot_be_made(workers: int) -> None:
    with WorkerPool(partial(int, "seven"), workers) as pool:
        for _ in range(2):
            with pytest.raises(ValueError, match="invalid literal .* 'seven'"):
                pool.submit("bit_length").result(60)


def test_a_process_can_be_forked_until_its_reader_processes_are_called() -> None:
    before = threading.active_count()
    with WorkerPool(OS, 2, fork=True) as pool:
        assert threading.active_count() == before
        assert pool.submit("getppid").result(60) == os.getpid()
        assert threading.active_count() == before + 2


def test_an_exception_that_cannot_be_rebuilt_arrives_as_text() -> None:
    member = tarfile.TarInfo("../outside")
    with WorkerPool(partial(importlib.import_module, "tarfile"), 1) as pool:
        with pytest.raises(RuntimeError, match="OutsideDestinationError: .*outside"):
            pool.submit("data_filter", member, "/tmp").result(60)
        assert pool.submit("is_tarfile", os.devnull).result(60) is False


class Mixed:
    """Its methods return, fail, and return what cannot be sent."""

    def number(self, n: int) -> int:
        time.sleep(n % 3 * worker._ANSWER_S)
        return n

    def lock(self, _: int) -> Any:
        return threading.Lock()

    def fail(self, n: int) -> None:
        raise ValueError(n)


def test_each_call_gets_its_own_answer_however_answers_are_sent_together() -> None:
    with WorkerPool(Mixed, 2) as pool:
        methods = [("number", "fail", "number", "lock")[n % 4] for n in range(150)]
        futures = [pool.submit(method, n) for n, method in enumerate(methods)]
        for n, (method, future) in enumerate(zip(methods, futures, strict=True)):
            if method == "number":
                assert future.result(60) == n
            elif method == "fail":
                with pytest.raises(ValueError, match=rf"^{n}\n"):
                    future.result(60)
            else:
                with pytest.raises(RuntimeError, match="TypeError: cannot pickle"):
                    future.result(60)


class Together:
    """Makes calls together, up to one that fails."""

    def half(self, n: int) -> str:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return f"alone: {n // 2}"

    def half_together(self, calls: list[tuple[int]]) -> Iterator[str]:
        for (n,) in calls:
            if n % 2:
                raise ValueError("a number is odd")
            yield f"{n // 2} of {len(calls)}"


def test_calls_made_together_have_the_results_and_errors_of_each() -> None:
    with WorkerPool(Together, 1) as pool:
        futures = pool.submit_all([("half", (n,)) for n in (2, 4, 5, 6)])
        assert futures[0].result(60) == "1 of 4"
        assert futures[1].result(60) == "2 of 4"
        with pytest.raises(ValueError, match="^5 is odd\n"):
            futures[2].result(60)
        assert futures[3].result(60) == "alone: 3"


def test_a_killed_process_is_named_and_blocks_no_call(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with WorkerPool(OS, 1) as pool:
        pid = pool.submit("getpid").result(60)
        # The pipe has no writer, so that opening it does not return.
        calls = [pool.submit("open", tmp_path / "pipe", os.O_RDONLY), pool.submit("getpid")]
        os.kill(pid, signal.SIGKILL)
        for call in calls:
            with pytest.raises(WorkerDied, match=rf"process 0 \(pid {pid}\): killed by signal 9"):
                call.result(60)


class Broken:
    """Sends what the rank cannot rebuild."""

    def answer(self) -> Broken:
        return self

    def __reduce__(self) -> Any:
        return int, ("seven",)


def test_an_answer_that_cannot_be_rebuilt_is_an_error_of_its_calls() -> None:
    why = r"cannot be read \(ValueError: invalid literal .*seven"
    with WorkerPool(Broken, 1) as pool, pytest.raises(WorkerDied, match=why):
        pool.submit("answer").result(60)


def test_a_process_that_exits_is_named_with_its_exit_code() -> None:
    with WorkerPool(OS, 1) as pool, pytest.raises(WorkerDied, match="exit code 3; its standard"):
        pool.submit("_exit", 3).result(60)


def test_a_process_that_cannot_be_killed_does_not_block_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "_END_S", 0.1)
    pool = WorkerPool(OS, 1)
    pid = pool.submit("getpid").result(60)
    with monkeypatch.context() as patch:  # As if it waited for a disk.
        patch.setattr("subprocess.Popen.kill", lambda _: None)
        pool.close()
    assert Path(f"/proc/{pid}").exists()
    pool.close()


def test_killed_ranks_leave_nothing_in_shared_memory() -> None:
    program = (
        "import importlib, time\n"
        "from functools import partial\n"
        "from flowtrain.data.workers import WorkerPool\n"
        "make = partial(importlib.import_module, 'os')\n"
        "pools = [WorkerPool(make, 1, fork=fork) for fork in (True, False)]\n"
        "print(*[pool.submit('getpid').result() for pool in pools], flush=True)\n"
        "time.sleep(600)\n"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert rank.stdout is not None
    with rank, rank.stdout:
        workers = set(map(int, rank.stdout.readline().split()))
        below = descendants(rank.pid)
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in [rank.pid, *below])
        os.killpg(rank.pid, signal.SIGKILL)
    assert workers <= set(below)
    named = set(re.findall(r"/dev/shm/\S+", maps))
    assert not [name for name in named if Path(name).exists()]


def test_a_main_program_without_a_guard_is_not_run_again_and_workers_have_one_thread(
    tmp_path: Path,
) -> None:
    tmp_path.joinpath("reader.py").write_text(
        "import torch\nclass Reader:\n    def threads(self): return torch.get_num_threads()\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "from flowtrain.data.workers import WorkerPool\n"
        "from reader import Reader\n"  # Which only the folder of the program has.
        "print('begins', flush=True)\n"
        "with WorkerPool(Reader, 1) as pool:\n"
        "    print(pool.submit('threads').result(60))\n"
    )
    done = subprocess.run(
        [sys.executable, program],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert (done.stdout, done.stderr) == ("begins\n1\n", "")
