"""The microbenchmarks run on a small machine, and report plausible figures."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

import pytest
from core.conftest import spawn
from core.processes import Spawn

from flowtrain.bench import placements
from flowtrain.bench.isolated import call, call_async
from flowtrain.bench.placements import median_interval
from flowtrain.bench.pool import cold_start
from flowtrain.bench.ring import RUN, Slice, comparable, hand_off
from flowtrain.cli.main import main
from flowtrain_core import _bench, list_pools

__all__ = ["spawn"]


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, float]]:
    assert main(["bench", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_hand_off_shares_physical_pages(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = rows(capsys, "handoff", "--bytes", "100000", "--rounds", "50")
    assert row["same_physical_pages"] is True
    assert 0 < row["spin_p50_us"] <= row["spin_p99_us"]


def test_bandwidth_is_measured_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--bytes", "4096", "65536", "--seconds", "0.02", "--prefault-bytes", "1048576")
    *found, last = rows(capsys, "pool", *words)
    assert [row["item_bytes"] for row in found] == [4096, 65536]
    for row in found:
        for key in ("write_cold", "write", "read", "flow", "memcpy"):
            assert row[key] >= row[f"{key}_p99"] > 0
    assert (last["vs_memcpy_64MiB"], last["prefault_bytes"]) == (None, 1 << 20)
    assert last["prefault_gib_per_s"] > 0


def test_payloads_over_tcp_are_compared_with_a_bare_pair(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--path", "tcp", "--bytes", "8", "1048576", "--seconds", "0.02", "--rounds", "2")
    *found, last = rows(capsys, "pool", *words)
    assert [row["item_bytes"] for row in found] == [8, 1 << 20]
    for row in found:
        assert min(row[key] for key in ("place", "pair", "latency_us", "pair_latency_us")) > 0
    assert last["vs_pair_1MiB"] == found[1]["vs_pair"] > 0
    assert last["extra_latency_us_8B"] == pytest.approx(
        found[0]["latency_us"] - found[0]["pair_latency_us"], abs=0.01
    )
    assert last["registrations"] == 0


def test_a_measure_that_is_left_early_closes_quietly(caplog: pytest.LogCaptureFixture) -> None:
    measuring = placements.run("tcp", (8, 64), seconds=0.01, rounds=1)
    next(measuring)
    measuring.close()  # type: ignore[attr-defined]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rounds 3", "--rounds has no effect with --path shm"),
        ("--path tcp --rounds 10000001", "--rounds 10000001: it must be at most 10000000"),
        ("--path vmm --ucx /lib", "--ucx has no effect with --path vmm"),
        ("--path tcp --device 0", "--device has no effect with --path tcp"),
        ("--path ucx --prefault-bytes 1", "--prefault-bytes has no effect with --path ucx"),
        ("--path tcp --token file", "--token has no effect with --path tcp"),
        ("--listen localhost --bytes 8", "--bytes has no effect with --listen"),
        ("--bytes 8 99999999999999999999", "--bytes 99999999999999999999: 6 buffers"),
        ("--path tcp --bytes 1000000000000000", "--bytes 1000000000000000: 3 buffers"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "pool", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error


def test_a_receiver_without_descriptors_ends(spawn: Spawn) -> None:
    receiver = spawn(
        "import os, resource, socket\n"
        "from flowtrain_core import _bench\n"
        "client = socket.socket()\n"
        "def tell(facts):\n"
        "    host, port = facts['address'].split(':')\n"
        "    client.connect((host, int(port)))\n"
        "    os.close(free := os.dup(0))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))\n"
        "flow = dict(path='pair', host='127.0.0.1', ticket='x' * 32, bytes=8, window=2)\n"
        "try: _bench.receive_placements(**flow, library='', others=[], tell=tell)\n"
        "except OSError as error: print(error)"
    )
    assert "accept its sender: Too many open files" in receiver.line()


def test_payloads_over_ucx_are_compared_with_its_own_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel = pytest.importorskip("libucx", reason="make bench-setup installs libucx-cu12")
    library = str(Path(wheel.__file__).parent / "lib" / "libucp.so.0")
    words = ("--path", "ucx", "--ucx", library, "--seconds", "0.02", "--rounds", "1")
    row, last = rows(capsys, "pool", *words, "--bytes", "1048576")
    assert row["perftest"] > 0
    assert last["vs_ucx_perftest_1MiB"] == pytest.approx(row["place"] / row["perftest"], rel=0.02)
    assert last["registrations"] == 1


def test_without_ucx_the_reason_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pool", "--path", "ucx", "--ucx", "/nowhere/libucp.so.0"]) == 1
    assert "UCX /nowhere/libucp.so.0 cannot be used" in capsys.readouterr().err


def test_the_interval_of_a_median_holds_19_of_20() -> None:
    # Of 15 values, 4 or more lie below the median with a probability of 98.2 %.
    assert median_interval(range(1, 16)) == (4, 12)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_cold_start_uses_at_most_half_of_the_available_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_bench, "available_bytes", lambda: 1 << 20)
    assert cold_start(4 << 20)["prefault_bytes"] == 1 << 19


def test_descriptors_are_counted_one_by_one_and_in_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = rows(capsys, "ring", "--seconds", "0.01")
    assert [row["producers"] for row in found] == [1, 2, 4]
    assert all(row["ping_ns"] > 0 for row in found)
    # Other programs may have kept a process from its core for a whole slice.
    assert any(row["slices"] and row["single"] > 0 and row["runs"] > 0 for row in found)


@pytest.mark.parametrize("batch", [1, RUN])
def test_items_are_counted_through_a_pool(batch: int) -> None:
    # Other programs may have kept a process from its core for a whole slice.
    assert any(hand_off(batch, 0.2, records=True).value > 0 for _ in range(5))


def test_a_measure_whose_process_fails_says_why() -> None:
    # 900 does not divide the number of cells.
    with pytest.raises(ValueError, match="batch=900 must divide the 1024 cells"):
        hand_off(900, 0.01, records=True)


def test_pools_are_made_in_the_chosen_folder_and_errors_keep_their_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder, f"flowtrain-{os.geteuid()}").touch()
        monkeypatch.setenv("FLOWTRAIN_POOL_DIR", folder)
        with pytest.raises(RuntimeError, match="a file or link; remove it; PoolCorrupt: idle pool"):
            call("idle_cpu_percent", seconds=0.0)


def test_a_measure_that_is_cancelled_leaves_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel_one() -> None:
        measuring = asyncio.create_task(call_async("idle_cpu_percent", seconds=60.0))
        while not list_pools():
            await asyncio.sleep(0.01)
        measuring.cancel()
        await asyncio.wait({measuring})

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setenv("FLOWTRAIN_POOL_DIR", folder)
        asyncio.run(cancel_one())
        assert list_pools() == []


def test_only_slices_with_equal_ping_pongs_are_compared() -> None:
    pings = {
        "ours": [(100, 110), (105, 400), (98, 102)],
        "theirs": [(410, 100), (400, 410), (99, 101)],
    }
    found = comparable(
        {
            name: iter(
                [
                    Slice(value=i, ping_before_ns=before, ping_after_ns=after)
                    for i, (before, after) in enumerate(of)
                ]
            ).__next__
            for name, of in pings.items()
        },
        rounds=3,
    )
    assert found.kept == {"ours": 2, "theirs": 1}
    assert found.medians == {"ours": 1, "theirs": 2}


def test_slabs_are_measured_up_to_a_nearly_full_pool(capsys: pytest.CaptureFixture[str]) -> None:
    *found, last = rows(capsys, "slab", "--rounds", "20")
    pairs = {(row["classes"], row["fill"], row["processes"]): row for row in found if "fill" in row}
    assert len(pairs) == 12
    assert last["pair_ns_90"] == pairs[1, 0.9, 1]["here_p50_ns"] > 0
    assert last["pair_ns_97_two_processes"] == pairs[8, 0.97, 2]["here_p50_ns"] > 0
    # Eight sizes per doubling leave less than a ninth of a slab unused.
    assert 0 < last["internal_fragmentation"] < 1 / 9
