"""`flowtrain bench pool --listen` and `--connect`, with strangers and deaths."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import descendants

from flowtrain.bench import peer, placements, ucx_copy
from flowtrain.bench.ucx_copy import UcxCopy
from flowtrain.cli.main import main

PROGRAM = (sys.executable, "-m", "flowtrain", "bench", "pool")
SHORT = ("--bytes", "8", "--seconds", "0.01", "--rounds", "1")
LONG = ("--bytes", "8", "--seconds", "60")
UNTIL_S = 30.0


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a token of a test")
    path.chmod(0o600)
    return path


class Command:
    """One of the two commands, in a process of its own."""

    def __init__(self, log: Path, *words: object) -> None:
        self.log = log
        with log.open("w") as out:
            command = [*PROGRAM, *map(str, words)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def said(self, pattern: str) -> str:
        """The first group of a pattern, once the command has printed it."""
        end = time.monotonic() + UNTIL_S
        while not (found := re.search(pattern, self.log.read_text())):
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)
        return found[1]

    def working(self) -> list[int]:
        """Descriptors of its processes, once there is one that measures."""
        end, found = time.monotonic() + UNTIL_S, list[int]()
        while not found:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)
            for pid in descendants(self.process.pid):
                with suppress(ProcessLookupError):  # One that has measured may have ended.
                    found.append(os.pidfd_open(pid))
        return found


@pytest.fixture
def listener(tmp_path: Path, token: Path) -> Iterator[Command]:
    made = Command(tmp_path / "listener", "--listen", "127.0.0.1", "--token", token)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def connect(listener: Command, token: Path, *words: str) -> list[str]:
    at = listener.said(r"--connect (\S+)")
    return ["--path", "tcp", "--connect", at, "--token", str(token), *words]


def wait_for_end(processes: list[int]) -> None:
    for process in processes:
        assert select.select([process], [], [], UNTIL_S)[0]
        os.close(process)


def test_one_host_after_the_other_measures_while_a_stranger_is_silent(
    listener: Command, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = connect(listener, token, *SHORT, "--json")
    host, _, port = words[3].rpartition(":")
    with socket.create_connection((host, int(port))):
        for _ in range(2):
            assert main(["bench", "pool", *words]) == 0
            row, last = map(json.loads, capsys.readouterr().out.splitlines())
            assert row["peer"] == last["peer"] == f"{socket.gethostname()} 127.0.0.1"
            assert row["place"] > 0 and last["registrations"] == 0
    listener.process.send_signal(signal.SIGTERM)
    assert listener.process.wait(UNTIL_S) == 128 + signal.SIGTERM


def test_a_host_without_the_token_or_with_another_version_starts_nothing(
    listener: Command,
    token: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other"
    other.write_text("another token of a test")
    other.chmod(0o600)
    assert main(["bench", "pool", *connect(listener, other, *SHORT)]) == 2
    assert "it closed the connection; is the token the same?" in capsys.readouterr().err
    newer = replace(peer.identity(), version="99.9")
    monkeypatch.setattr(peer, "identity", lambda: newer)
    assert main(["bench", "pool", *connect(listener, token, *SHORT)]) == 2
    assert "its version is '99.9', and here it is '0." in capsys.readouterr().err
    assert " measures" not in listener.log.read_text()


def test_the_end_of_either_command_ends_all_that_measures(
    listener: Command, token: Path, tmp_path: Path
) -> None:
    first = Command(tmp_path / "first", *connect(listener, token, *LONG))
    processes = [*first.working(), *listener.working()]
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(UNTIL_S) == 130
    wait_for_end(processes)

    second = Command(tmp_path / "second", *connect(listener, token, *LONG))
    processes = [*second.working(), *listener.working()]
    listener.process.kill()
    assert second.process.wait(UNTIL_S) == 2
    wait_for_end(processes)
    name = re.escape(socket.gethostname())
    second.said(rf"(host {name} \(.*\) is lost: its process has ended)")


def test_copies_of_ucx_that_differ_are_refused_with_both_values() -> None:
    here = UcxCopy(
        address="10.0.0.1",
        library="/a",
        version="1.22.0",
        settings={"NET_DEVICES": "eth0", "TLS": "^sm"},
        perftest="",
    )
    there = replace(here, address="10.0.0.2", settings=here.settings | {"NET_DEVICES": "eth1"})
    assert here.unlike(there) == ""
    older = replace(there, version="1.18.0", library="/b")
    assert here.unlike(older).startswith(
        "UCX is 1.22.0 at 10.0.0.1 (/a) and 1.18.0 at 10.0.0.2 (/b)"
    )
    more = replace(there, settings=there.settings | {"RNDV_THRESH": "8k"})
    assert here.unlike(more).startswith("UCX_RNDV_THRESH is not set at 10.0.0.1 and 8k at 10.0.0.2")


def test_the_first_count_of_messages_is_by_the_rate_of_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []

    class Slow:
        address = "10.0.0.2"

        async def ask(self, does: str, **given: Any) -> dict[str, Any]:
            counts.append(given.get("count"))
            return {"port": 1}

    async def rate(*_: object) -> float:
        return 1e6

    monkeypatch.setattr(ucx_copy, "perftest_bytes_per_s", rate)
    slow: Any = Slow()
    copy = UcxCopy(address="", library="", version="", settings={}, perftest="/ucx_perftest")
    rounds = placements._Rounds(slow, "ucx", 1 << 10, 0.5, "", (copy, copy))
    rounds._rates["pair"] = [1.024e6]
    asyncio.run(rounds._theirs())
    assert counts == [500, None]


def test_a_host_that_does_not_listen_is_told_in_the_words_of_the_system(
    token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = "{}:{}".format(*server.getsockname())
    words = ("--connect", at, "--token", str(token), *SHORT)
    assert main(["bench", "pool", "--path", "tcp", *words]) == 2
    assert f"{at} cannot be reached (Connection refused); start" in capsys.readouterr().err


def test_an_error_of_ucx_is_told_without_names_of_functions() -> None:
    error = RuntimeError("find_ucx failed: UcxError: no UCX that can be used (...)")
    assert peer.plain(error) == "no UCX that can be used (...)"
    assert peer.plain(ValueError("perftest: find_ucx comes first")).startswith("perftest: ")
