"""Rates, percentiles, and their output as tables and metrics."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from flowtrain.cli import top
from flowtrain.cli.main import main
from flowtrain.events import KINDS, TRACKS, Attempt, EventFile, path_of
from flowtrain.observe.prometheus import PoolCollector
from flowtrain.observe.top import render
from flowtrain.observe.traffic import percentile_ns, traffic
from flowtrain_core import Consumer, Pool, Producer, inspect


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool.create(
        f"observe-{os.getpid()}", classes=[(4096, 4)], rings=("vision",), label="encoder.0"
    ) as pool:
        yield pool


def test_a_percentile_is_the_upper_bound_of_its_bucket() -> None:
    counts = [0] * 39
    assert percentile_ns({"counts": counts, "sum_ns": 0}, 0.5) is None
    counts[3], counts[10] = 98, 2
    assert percentile_ns({"counts": counts, "sum_ns": 0}, 0.5) == 16
    assert percentile_ns({"counts": counts, "sum_ns": 0}, 0.99) == 2048


def test_rates_are_over_the_time_between_two_snapshots(pool: Pool) -> None:
    producer = Producer(pool, "vision")
    producer.lease((1000,), "uint8").publish(0)
    before = inspect(pool.name)
    producer.lease((3000,), "uint8").publish(1)
    now = inspect(pool.name)
    now["time_ns"] = before["time_ns"] + 500_000_000
    [lane] = [lane for lane in traffic(before, now) if lane.role == "producer"]
    assert (lane.items_per_s, lane.bytes_per_s) == (2.0, 6000.0)
    assert lane.p50_ns["alloc_wait"] == 2.0
    assert "use" not in lane.p50_ns


def test_a_recreated_pool_starts_from_zero() -> None:
    name = f"observe-anew-{os.getpid()}"
    snapshots = []
    for items in (3, 1):
        with Pool.create(name, classes=[(4096, 4)]) as pool:
            producer = Producer(pool)
            for key in range(items):
                producer.lease((1000,), "uint8").publish(key)
            snapshots.append(inspect(name))
    snapshots[1]["time_ns"] = snapshots[0]["time_ns"] + 1_000_000_000
    [lane] = [lane for lane in traffic(*snapshots) if lane.role == "producer"]
    assert (lane.items_per_s, lane.bytes_per_s, lane.p50_ns["alloc_wait"]) == (1.0, 1000.0, 2.0)


def test_labels_are_not_parsed_as_markup() -> None:
    name = f"observe-label-{os.getpid()}"
    with Pool.create(name, classes=[(4096, 4)], label="back[/0]") as pool:
        consumer = Consumer(pool)
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(render(inspect(name), inspect(name)))
        assert console.export_text().count("back[/0]") == 3  # Its segment, handle and consumer.
        consumer.close()


def test_the_screen_shows_occupancy_and_lanes(pool: Pool) -> None:
    producer = Producer(pool, "vision")
    producer.lease((1000,), "uint8").publish(0)
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render(inspect(pool.name), inspect(pool.name)))
    console.file.close()
    text = console.export_text()
    assert "1 of 4" in text
    assert "vision" in text
    assert "encoder.0" in text


def test_at_80_columns_pids_are_whole_and_classes_of_one_slab_are_one_row() -> None:
    name = f"observe-narrow-{os.getpid()}"
    classes = [(4096, 1), (8192, 1), (16384, 3), (32768, 1)]
    with Pool.create(
        name, classes=classes, rings=("activations.backbone.0",), label="backbone.0"
    ) as pool:
        producer = Producer(pool, "activations.backbone.0")
        lease = producer.lease((8000,), "uint8")
        now = inspect(name)
        for lane in now["lanes"]:
            lane["pid"] = 4_194_304  # The largest of Linux.
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(render(now, now))
        text = console.export_text()
        lease.abort()
    assert text.count("4194304") == len(now["lanes"])
    rows = [line.split("host")[1].split("  ") for line in text.splitlines() if " host " in line]
    cells = [[cell.strip() for cell in row if cell.strip()][:2] for row in rows]
    assert cells == [["4 KiB to 8 KiB", "1 of 2"], ["16 KiB", "0 of 3"], ["32 KiB", "0 of 1"]]


def test_prometheus_series_have_the_values_of_the_pool(pool: Pool) -> None:
    producer, consumer = Producer(pool, "vision"), Consumer(pool, "vision")
    producer.lease((1000,), "uint8").publish(0)
    producer.lease((1000,), "uint8").publish(1)
    consumer.get().release()
    registry = CollectorRegistry()
    registry.register(PoolCollector(pool.name))
    labels = {"pool": pool.name}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, {**labels, **more})

    [lane] = [str(x["index"]) for x in inspect(pool.name)["lanes"] if x["role"] == "producer"]
    assert value("flowtrain_bytes_published_total", lane=lane) == 2000
    assert value("flowtrain_ring_items", ring="vision") == 1
    assert value("flowtrain_alloc_wait_seconds_count", lane=lane) == 2
    assert value("flowtrain_alloc_wait_seconds_bucket", lane=lane, le="+Inf") == 2


def test_prometheus_counts_redelivered_items(pool: Pool) -> None:
    Producer(pool, "vision").lease((1000,), "uint8").publish(0)
    code = (
        "import os, sys; from flowtrain_core import *\n"
        "item = Consumer(Pool.open(sys.argv[1]), 'vision').get(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, pool.name], check=False)
    with Consumer(pool, "vision").get() as item:
        assert item.attempt == 1
    families = {each.name: each for each in PoolCollector(pool.name).collect()}
    assert sum(sample.value for sample in families["flowtrain_items_redelivered"].samples) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--interval", "0"], "--interval 0: must be above 0 and at most 86400 seconds"),
        (["--interval", "nan"], "--interval nan: must be above 0"),
        (["--interval", "1e300"], "--interval 1e+300: must be above 0"),
        (["--port", "70000"], "--port 70000: must be 0 to 65535"),
    ],
)
def test_a_number_out_of_range_is_named(
    pool: Pool, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["top", pool.name, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_pool_or_run_that_does_not_exist_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "list_pools", lambda: [SimpleNamespace(name=n) for n in ("a", "b")])
    give = "give the folder of a run, or a pool: a, b"
    assert main(["top", "no-such-pool", "--once"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("flowtrain: pool 'no-such-pool': there is none in ") and give in error
    assert main(["top", "no/such/run", "--once"]) == 2
    assert f"no/such/run: there is no such folder; {give}" in capsys.readouterr().err


def test_a_missing_prometheus_client_is_an_error_with_the_extra_to_install(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["top", pool.name, "--prometheus"]) == 2
    assert "pip install -e '.[observe]' in a checkout" in capsys.readouterr().err


def test_the_shares_of_a_run_are_over_its_last_complete_steps(
    tmp_path: Path, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = Attempt(number=0, pid=1, clock_offset_ns=0)
    file = EventFile(path_of(tmp_path, "colocated.0"), "colocated.0", attempt, keep_steps=50)
    forward, exchange, forget = (KINDS.index(k) for k in ("forward", "exchange", "forget"))
    waits = TRACKS.index("waits")
    for step in range(22):
        # The first step has another time, and the last one has not ended.
        for ns, track, kind, wait in (
            (3_000 if step else 90_000, 0, forward, 0),
            (1_000, waits, exchange, 1),
            *([(0, 0, forget, 0)] if step < 21 else []),
        ):
            file.append(0, ns, ns, 0, 0, step, -1, -1, 0, track, kind, 0, wait, 0)
        for kind, size in (("resident", step << 20), ("shared", 4096)):
            codes = TRACKS.index("memory"), KINDS.index(kind)
            file.append(0, 0, 0, 0, size, step, -1, -1, 0, *codes, 0, 0, 0)
    assert main(["top", str(tmp_path), "--once"]) == 2
    assert "no run has started there" in capsys.readouterr().err
    tmp_path.joinpath("pool").write_text(f"{pool.name}\n")
    lines = ['{"cache_hits": 9, "cache_misses": 1}'] * 20
    lines = ['{"cache_hits": 0, "cache_misses": 99}', *lines, '{"cache_hits": 5, ']
    tmp_path.joinpath("timing.jsonl").write_text("\n".join(lines))
    assert main(["top", str(tmp_path), "--once", "--interval", "0.01"]) == 0
    shown = capsys.readouterr().out
    assert "90.0% of 200 images" in shown
    assert "colocated  backbone 75%  wait_exchange 25%  21 MiB resident " in shown
    assert f"pool {pool.name}: 1 lanes alive" in shown
    assert main(["top", str(tmp_path), "--prometheus"]) == 0
    shown = capsys.readouterr().out
    said = 'flowtrain_rank_memory_bytes{kind="resident",rank="colocated.0"} 2.2020096e+07'
    assert said in shown
