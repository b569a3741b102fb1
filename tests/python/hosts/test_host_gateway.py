"""Gateways of two hosts, each in a process of its own."""

from __future__ import annotations

import random
import signal
import socket
import time
from pathlib import Path

import pytest
from core.conftest import eventually, name, pool, spawn
from core.fake_driver import needs_fake_driver
from core.processes import Spawn, in_use
from two_gateways import (
    ARRAY_OF,
    CONSUME,
    PRODUCE,
    PRODUCE_ON_DEVICE,
    Eventually,
    Host,
    devices,
    hosts,
    joined,
    read_ledger,
    told,
    ucx,
)

from flowtrain_core import Consumer, PoolTimeout, Producer

__all__ = ["devices", "eventually", "hosts", "name", "pool", "spawn", "ucx"]


def test_hosts_that_have_joined_meet_each_other(
    hosts: tuple[Host, Host],
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    a, b = hosts
    c = Host("c", spawn, monkeypatch)
    try:
        *_, port = joined(hosts)
        joining = c.gateway("join", port)
        told(joining, "host a is connected")
        a.pool.add_segment(classes=[(4096, 1)])
        producer, consumer = Producer(a.pool, ring="there"), Consumer(c.pool, ring="there")
        for key in range(4):
            producer.lease((1024,), "float32", timeout_s=60).publish(key)
            item = consumer.get(timeout_s=60)
            assert item.key == key
            item.release()
            # An item whose release was not told comes twice.
            eventually(lambda: in_use(a.pool) == 0)
            if key == 1:  # It comes again at another address.
                joining.kill()
                told(c.gateway("join", port), "host a is connected")
        assert in_use(b.pool) == 0
    finally:
        c.close()


def test_a_host_that_is_lost_within_the_handshake_is_joined_again(
    hosts: tuple[Host, Host],
) -> None:
    joining, listening, port = joined(hosts)
    listening.kill()
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(60)
        server.accept()[0].close()
    hosts[1].gateway("listen", port)
    told(joining, "host b is connected")


def test_a_host_has_its_name_until_it_is_gone_and_its_ranks_are_dead(
    hosts: tuple[Host, Host],
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    joining, _, port = joined(hosts)
    b = hosts[1].pool

    def guests() -> list[str]:
        lanes = [lane for lane in b.lanes() if lane.label == "owner" and lane.index != b.lane]
        return [lane.state for lane in lanes if lane.state == "alive"]

    eventually(guests)
    other = Host("a", spawn, monkeypatch)
    try:
        told(other.gateway("join", port), "there is a host a already; give each host its own name")
        assert guests() and b.wait_dead(timeout_s=0) is None
        joining.kill()
        told(other.gateway("join", port), "host b is connected")
        dead = b.wait_dead(timeout_s=30)
        assert dead is not None and dead.label == "owner"
    finally:
        other.close()


def test_a_reader_that_stops_bounds_both_hosts(
    hosts: tuple[Host, Host], eventually: Eventually
) -> None:
    a, b = hosts
    joined(hosts)
    a.pool.add_segment(classes=[(1 << 16, 6)])
    producer, consumer = Producer(a.pool, ring="there"), Consumer(b.pool, ring="there")
    for key in range(6):
        producer.lease((1 << 14,), "float32", timeout_s=60).publish(key)
    eventually(lambda: in_use(b.pool) == 6)
    with pytest.raises(PoolTimeout):
        producer.lease((1 << 14,), "float32", timeout_s=1.0)
    assert (in_use(a.pool), in_use(b.pool)) == (6, 6)
    keys = []
    for _ in range(6):
        item = consumer.get(timeout_s=60)
        keys.append(item.key)
        item.release()
    assert sorted(keys) == list(range(6))
    producer.drain(timeout_s=60)
    eventually(lambda: in_use(b.pool) == 0)


def test_a_stopped_gateway_is_a_stall_that_is_told_and_ends(
    hosts: tuple[Host, Host], tmp_path: Path, eventually: Eventually
) -> None:
    a, b = hosts
    joining, listening, _ = joined(hosts)
    b.start(ARRAY_OF + CONSUME, "b", "there", tmp_path / "read")
    a.start(ARRAY_OF + PRODUCE, "a", "there", tmp_path / "sent", 0, 400)
    eventually(lambda: len(read_ledger(tmp_path / "read")) > 20)
    listening.stop()
    told(joining, "host b does not answer; waiting for it")
    time.sleep(1)
    listening.popen.send_signal(signal.SIGCONT)
    told(joining, "host b answers again")
    eventually(lambda: sorted(read_ledger(tmp_path / "read")) == list(range(400)))


def random_kills(
    hosts: tuple[Host, Host],
    folder: Path,
    *,
    seed: int,
    kills: int,
    kinds: tuple[str, ...] = ("joining", "listening", "producer", "reader"),
    producer: str = PRODUCE,
) -> None:
    """Kill every kind of process at random, and replace it, while items cross."""
    a, b = hosts
    rng = random.Random(seed)
    joining, listening, port = joined(hosts)
    sent, read, end = folder / "sent", folder / "read", 1 << 40
    produce, consume = ARRAY_OF + producer, ARRAY_OF + CONSUME
    processes = {
        "joining": joining,
        "listening": listening,
        "producer": a.start(produce, "a", "there", sent, 0, end),
        "reader": b.start(consume, "b", "there", read),
    }
    for _ in range(kills):
        goal = len(read_ledger(read)) + rng.randrange(60)
        deadline = time.monotonic() + 60
        while len(read_ledger(read)) < goal:
            assert time.monotonic() < deadline, "no item comes"
            time.sleep(0.002)
        kind = rng.choice(kinds)
        processes[kind].kill()
        if kind == "listening":
            processes["listening"] = b.gateway("listen", port)
        elif kind == "joining":
            processes["joining"] = a.gateway("join", port)
        elif kind == "producer":
            first = max(read_ledger(sent), default=-1) + 1
            processes["producer"] = a.start(produce, "a", "there", sent, first, end)
        elif kind == "reader":
            processes["reader"] = b.start(consume, "b", "there", read)
    processes["producer"].popen.terminate()
    processes["producer"].wait()
    deadline = time.monotonic() + 60
    while in_use(a.pool) or in_use(b.pool) or set(read_ledger(sent)) - set(read_ledger(read)):
        assert time.monotonic() < deadline, (in_use(a.pool), in_use(b.pool))
        time.sleep(0.01)
    assert max(read_ledger(read)) <= max(read_ledger(sent)) + 1  # None was damaged.


def test_random_kills_lose_nothing(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    random_kills(hosts, tmp_path, seed=1, kills=12)


@pytest.mark.deep
def test_random_kills_lose_nothing_over_ucx(
    hosts: tuple[Host, Host], tmp_path: Path, ucx: str
) -> None:
    for host in hosts:
        host.ucx = ucx
    random_kills(hosts, tmp_path, seed=1, kills=12)


@needs_fake_driver
@pytest.mark.parametrize(
    "kills", [6, pytest.param(60, marks=[pytest.mark.deep, pytest.mark.limit(900)])]
)
def test_items_of_a_device_go_by_memory_of_the_host(
    devices: tuple[Host, Host], tmp_path: Path, kills: int
) -> None:
    """A killed producer loses what its stream has not written: it lives on here."""
    kinds = ("joining", "listening", "reader")
    random_kills(devices, tmp_path, seed=6, kills=kills, kinds=kinds, producer=PRODUCE_ON_DEVICE)


@needs_fake_driver
def test_an_item_that_a_dead_producer_has_not_written_does_not_cross(
    devices: tuple[Host, Host], tmp_path: Path, eventually: Eventually
) -> None:
    a, b = devices
    joining, *_ = joined(devices)
    b.start(ARRAY_OF + CONSUME, "b", "there", tmp_path / "read")
    for first in range(0, 4000, 1000):
        sent = tmp_path / f"sent {first}"
        producer = a.start(ARRAY_OF + PRODUCE_ON_DEVICE, "a", "there", sent, first, first + 1000)
        eventually(lambda sent=sent: len(read_ledger(sent)) > 8)
        producer.kill()
    eventually(lambda: in_use(a.pool) == in_use(b.pool) == 0)
    assert max(read_ledger(tmp_path / "read")) < 1 << 60  # None was damaged.
    joining.tell()
    told(joining, r"b: sent \d+ items .*, [1-9]\d* of a device .*, [1-9]\d* lost with a producer")


@pytest.mark.deep
def test_hosts_with_other_paths_are_told_so(hosts: tuple[Host, Host], ucx: str) -> None:
    a, b = hosts
    a.ucx = ucx
    listening = b.gateway("listen", 0)
    port = int(told(listening, r"port (\d+)")[1])
    joining = a.gateway("join", port)
    told(joining, "payloads go by tcp, and those of this host by ucx; give .* the same --path")


@pytest.mark.deep
@pytest.mark.limit(900)
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_many_random_kills_lose_nothing(
    hosts: tuple[Host, Host], tmp_path: Path, seed: int
) -> None:
    random_kills(hosts, tmp_path, seed=seed, kills=60)
