"""Names of pools, and the files behind them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from core.processes import Spawn

from flowtrain_core import (
    Consumer,
    Gateway,
    Pool,
    PoolCorrupt,
    PoolExists,
    PoolNotFound,
    Producer,
    SystemCallError,
    inspect,
    list_pools,
)

RUNTIME = Path(f"/dev/shm/flowtrain-{os.geteuid()}")


def test_names_are_checked_before_any_effect(name: str) -> None:
    for bad in ("", "a/b", "..", ".x", "a b", "x" * 48):
        for call in (Pool.create, Pool.open, Pool.exists, Pool.unlink):
            with pytest.raises(ValueError, match="letters, digits"):
                call(bad)
    with pytest.raises(ValueError, match="48 bytes, at most 47"):
        Pool.create(name, label="x" * 48)
    with pytest.raises(ValueError, match="different names"):
        Pool.create(name, rings=("a", "a"))
    with Pool.create(name) as pool:
        with pytest.raises(ValueError, match="no ring 'inbox'; it has default"):
            Consumer(pool, "inbox")
        with pytest.raises(ValueError, match=r"no ring 'in\\x00box'; it has default"):
            Consumer(pool, "in\0box")
        with pytest.raises(ValueError, match="at least 0"):
            pool.wait_dead(timeout_s=-1)
        with pytest.raises(ValueError, match="must be at least 1"):
            Producer(pool, max_items=0)
        gateway = Gateway(pool, interface="127.0.0.1")
        for seconds in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="timeout_s=.* at least 0"):
                gateway.wait(seconds)
        gateway.close()


def test_control_characters_are_refused_and_messages_show_them(name: str) -> None:
    for call in (Pool.create, Pool.open, Pool.exists, Pool.unlink):
        with pytest.raises(ValueError, match=r"pool 'abc\\x00def': give 1 to 47 letters"):
            call("abc\0def")
    with Pool.create(name, label="Bär") as pool:
        assert pool.label == "Bär"
        for bad, shown in (
            ("enc\0oder", r"enc\\x00oder"),
            ("a\nb", r"a\\x0ab"),
            ("\x1b[31m", r"\\x1b\[31m"),
            ("\x7f", r"\\x7f"),
        ):
            with pytest.raises(ValueError, match=f"label '{shown}': has control characters; leave"):
                Pool.open(name, label=bad)
        assert [lane.label for lane in pool.lanes()] == ["Bär"]


def test_a_pool_is_created_once_found_by_name_and_removed_by_its_creator(name: str) -> None:
    with pytest.raises(PoolNotFound, match="there is none") as caught:
        Pool.open(name, timeout_s=0.01)
    assert isinstance(caught.value, FileNotFoundError)
    with Pool.create(name):
        with pytest.raises(PoolExists, match=f"made by pid {os.getpid()}"):
            Pool.create(name)
        assert Pool.exists(name)
        (entry,) = [entry for entry in list_pools() if entry.name == name]
        assert (entry.creator_pid, entry.alive) == (os.getpid(), True)
        with Pool.open(name) as second:
            assert second.lane != Pool.open(name).lane
        assert Pool.exists(name)  # An opener never unlinks.
    assert not Pool.exists(name)
    assert not (RUNTIME / name).exists()


def test_a_handle_removes_only_its_own_pool(name: str) -> None:
    first = Pool.create(name, bytes=1 << 16)
    late = Pool.open(name)
    Pool.unlink(name)
    with Pool.create(name, bytes=1 << 16) as second:
        Producer(second).lease((1,), "uint8").publish(7)
        # The folder and the sockets of this name are now the second pool's.
        with pytest.raises(PoolNotFound, match="was removed, though .* is open: by Pool.unlink"):
            late.add_segment(bytes=1 << 16)
        first.close()
        with pytest.raises(PoolNotFound, match="was removed, because .* was closed"):
            late.add_segment(bytes=1 << 16)
        with Pool.open(name) as other, Consumer(other).get(timeout_s=30) as item:
            assert item.key == 7
    late.close()
    assert not (RUNTIME / name).exists()


def test_open_waits_until_the_pool_is_created(name: str, spawn: Spawn) -> None:
    opener = spawn("print('up'); Pool.open(sys.argv[1], timeout_s=30); print('open')", name)
    assert opener.line() == "up"
    with Pool.create(name):
        assert opener.line() == "open"


def test_a_pool_left_by_a_crash_cannot_be_opened_and_does_not_block_its_name(
    name: str, spawn: Spawn
) -> None:
    maker = spawn("pool = Pool.create(sys.argv[1]); print('made'); sys.stdin.readline()", name)
    assert maker.line() == "made"
    maker.kill()
    assert not Pool.exists(name)
    with pytest.raises(PoolNotFound, match="all dead"):
        Pool.open(name)
    Pool.create(name).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_pool_goes_with_a_creator_that_a_signal_ends(
    name: str, spawn: Spawn, number: signal.Signals
) -> None:
    maker = spawn(
        # Under nohup, or in a background job, it would be ignored.
        f"import signal; signal.signal({int(number)}, signal.SIG_DFL)\n"
        "pool = Pool.create(sys.argv[1]); pool.add_segment(bytes=1 << 16)\n"
        "print('made'); time.sleep(60)",
        name,
    )
    assert maker.line() == "made"
    assert {path.name for path in (RUNTIME / name).iterdir()} == {"control", "0.sock"}
    maker.popen.send_signal(number)
    assert maker.wait() == -number
    assert not (RUNTIME / name).exists()


def test_signals_that_the_program_handles_are_left_to_it(name: str, spawn: Spawn) -> None:
    exits = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    create = "pool = Pool.create(sys.argv[1])"
    for first, second in ((exits, create), (create, exits)):
        # A signal just before one long sleep would be handled behind it.
        sleep = "print('up')\nwhile True: time.sleep(0.01)"
        maker = spawn(f"import signal\n{first}\n{second}\n{sleep}", name)
        assert maker.line() == "up"
        maker.popen.terminate()
        assert maker.wait() == 3
        assert not (RUNTIME / name).exists()
    maker = spawn(
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"{create}; print('up'); print(sys.stdin.readline()); pool.close()",
        name,
    )
    assert maker.line() == "up"
    maker.popen.send_signal(signal.SIGHUP)
    assert Pool.exists(name)
    maker.tell("lives")
    assert maker.line() == "lives"


SLOW_SIGACTION = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

int sigaction(int signal, const struct sigaction *set, struct sigaction *before) {
  int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
  int result = real(signal, set, before);
  if (set == NULL && signal == SIGTERM) usleep(300000);
  return result;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_handler_that_the_program_sets_at_the_same_time_is_left_to_it(
    name: str, spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_SIGACTION)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    maker = spawn(
        "import os, signal, threading\n"
        "pools = []\n"
        "make = lambda: pools.append(Pool.create(sys.argv[1]))\n"
        "thread = threading.Thread(target=make); thread.start(); time.sleep(0.1)\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "thread.join(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.01)",
        name,
    )
    assert maker.line() == "handled"
    assert maker.wait() == 0


def test_a_program_may_wait_for_signals_that_it_blocks(name: str, spawn: Spawn) -> None:
    waiter = spawn(
        "import signal\n"
        "pool = Pool.create(sys.argv[1], bytes=4096)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('up')\n"
        "print(signal.sigwait([signal.SIGTERM]).name)",
        name,
    )
    assert waiter.line() == "up"
    waiter.popen.terminate()
    assert waiter.line() == "SIGTERM"  # Not a thread of the pool's has taken it.


def test_a_signal_that_ends_a_forked_child_removes_nothing_of_its_parent(
    name: str, spawn: Spawn
) -> None:
    maker = spawn(
        "import os, signal\n"
        "pool = Pool.create(sys.argv[1]); child = os.fork()\n"
        "if child == 0: signal.pause()\n"
        "os.kill(child, signal.SIGTERM); print(os.WTERMSIG(os.waitpid(child, 0)[1]))\n"
        "sys.stdin.readline()",
        name,
    )
    assert maker.line() == str(int(signal.SIGTERM))
    assert Pool.exists(name)


def test_the_folder_of_pools_is_chosen_by_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    parent = Path(f"/dev/shm/{name}")
    mine = parent / name / "file"
    mine.parent.mkdir(parents=True)
    mine.touch()
    chosen = parent / RUNTIME.name
    monkeypatch.setenv("FLOWTRAIN_POOL_DIR", f"{parent}/")
    try:
        pool = Pool.create(name, bytes=1 << 16)
        assert (chosen / name / "control").exists()
        assert not (RUNTIME / name).exists()
        other = spawn("print(Pool.open(sys.argv[1]).name, [p.name for p in list_pools()])", name)
        assert other.line() == f"{name} ['{name}']"
        monkeypatch.delenv("FLOWTRAIN_POOL_DIR")
        assert not Pool.exists(name)
        pool.add_segment(bytes=1 << 16)
        pool.close()  # Removes its own folder, wherever new pools go by now.
        assert list(chosen.iterdir()) == []
        chosen.chmod(0o755)
        monkeypatch.setenv("FLOWTRAIN_POOL_DIR", str(parent))
        with pytest.raises(SystemCallError, match="other users may enter it; chmod 700 it"):
            Pool.create(name)
        chosen.chmod(0o700)
        assert not Pool.unlink("none")
        assert mine.exists()  # What else is in the chosen folder is nobody's pool.
    finally:
        shutil.rmtree(parent)


def test_a_pool_that_cannot_be_looked_at_is_not_taken_for_none(name: str) -> None:
    with Pool.create(name, bytes=1 << 16):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open(os.devnull) as first_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (first_free.fileno() + 1, hard))
            try:
                with pytest.raises(SystemCallError, match="control: cannot open.*errno 24"):
                    Pool.exists(name)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert Pool.exists(name)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("pools", "must be an absolute path"),
        ("/proc/self/fd", "is not on a tmpfs"),
        ("/dev/shm/no/such", r"cannot be used \(No such file or directory\); choose a folder that"),
    ],
)
def test_a_folder_that_cannot_hold_pools_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, folder: str, message: str
) -> None:
    monkeypatch.setenv("FLOWTRAIN_POOL_DIR", folder)
    for call in (Pool.create, Pool.open, Pool.exists, Pool.unlink, inspect):
        with pytest.raises(ValueError, match=message):
            call(name)
    monkeypatch.delenv("FLOWTRAIN_POOL_DIR")


def test_a_signal_leaves_a_pool_to_others_that_live(name: str, spawn: Spawn) -> None:
    maker = spawn("pool = Pool.create(sys.argv[1]); print('up'); sys.stdin.readline()", name)
    assert maker.line() == "up"
    with Pool.open(name) as other:
        segment = other.add_segment(bytes=1 << 16)
        maker.popen.terminate()
        assert maker.wait() == -signal.SIGTERM
        Producer(other, segment=segment).lease((64,), "uint8").publish(5)
        # Another process still maps it by the sockets in the folder.
        reader = spawn(
            "i = Consumer(Pool.open(sys.argv[1])).get(); print(i.key); i.release()", name
        )
        assert reader.line() == "5"
        assert reader.wait() == 0
        assert (RUNTIME / name).exists()
    assert not (RUNTIME / name).exists()  # The last one has removed it.


def test_a_signal_to_all_processes_of_a_pool_leaves_no_files(name: str, spawn: Spawn) -> None:
    # The first one has two handles, so its own locks are also those of another open file.
    makes = "pool = Pool.create(sys.argv[1]); own = Pool.open(sys.argv[1])"
    processes = []
    for code in (makes, "pool = Pool.open(sys.argv[1])", "pool = Pool.open(sys.argv[1])"):
        processes.append(spawn(f"{code}; print('up'); time.sleep(60)", name))
        assert processes[-1].line() == "up"
    for process in processes:
        process.popen.terminate()
    assert [process.wait() for process in processes] == [-signal.SIGTERM] * 3
    assert not (RUNTIME / name).exists()


def test_processes_that_end_without_exit_handlers_leave_no_files(name: str, spawn: Spawn) -> None:
    ends = "import os; print('up'); sys.stdin.readline(); leave_pools(); os._exit(3)"
    maker = spawn(f"pool = Pool.create(sys.argv[1]); {ends}", name)
    assert maker.line() == "up"
    last = spawn(f"pool = Pool.open(sys.argv[1]); {ends}", name)
    assert last.line() == "up"
    for process, leaves in ((maker, True), (last, False)):
        process.popen.communicate("\n")
        assert process.popen.returncode == 3
        assert (RUNTIME / name).exists() == leaves


def test_files_are_private_and_others_are_refused(name: str) -> None:
    with Pool.create(name):
        assert RUNTIME.stat().st_mode & 0o777 == 0o700
        assert (RUNTIME / name).stat().st_mode & 0o777 == 0o700
        assert (RUNTIME / name / "control").stat().st_mode & 0o777 == 0o600
    (RUNTIME / name).symlink_to("/tmp")
    try:
        with pytest.raises(SystemCallError, match="not a folder of this user alone"):
            Pool.create(name)
    finally:
        (RUNTIME / name).unlink()


def test_a_file_of_another_version_is_not_opened(name: str) -> None:
    with Pool.create(name):
        control = RUNTIME / name / "control"
        with control.open("r+b") as file:
            file.seek(8)
            file.write((99).to_bytes(4, "little"))
        with pytest.raises(PoolCorrupt, match="layout version 99"):
            Pool.open(name)
