"""`flowtrain top [POOL]`: watch a pool: occupancy, rates, waits, live and dead lanes."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from flowtrain_core import inspect, list_pools

_MAX_INTERVAL_S = 86400


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("top", help=__doc__, description=__doc__)
    parser.add_argument("pool", nargs="?", help="name; optional if there is only one pool")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="(default: 1)")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--once", action="store_true", help="one screen, over one interval")
    once.add_argument("--json", action="store_true", help="one snapshot as JSON")
    once.add_argument("--prometheus", action="store_true", help="one scrape as Prometheus text")
    once.add_argument(
        "--port", type=int, help="serve Prometheus text on this port until interrupted"
    )
    parser.set_defaults(run=run, extra="observe")


def run(given: argparse.Namespace) -> int:
    if not 0 < given.interval <= _MAX_INTERVAL_S:
        raise ValueError(
            f"--interval {given.interval:g}: must be above 0 and at most {_MAX_INTERVAL_S} seconds"
        )
    if given.port is not None and not 0 <= given.port <= 65535:
        raise ValueError(f"--port {given.port}: must be 0 to 65535")
    name = given.pool or _only_pool()
    if given.json:
        print(json.dumps(inspect(name)))
    elif given.prometheus or given.port is not None:
        _prometheus(name, given.port)
    else:
        _watch(name, given.interval, once=given.once)
    return 0


def _only_pool() -> str:
    names = [pool.name for pool in list_pools()]
    if len(names) != 1:
        found = f"there are {', '.join(names)}" if names else "there is none"
        raise ValueError(f"pool: {found}; name the pool to watch")
    return names[0]


def _watch(name: str, interval_s: float, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from flowtrain.observe.top import render

    before = inspect(name)
    console = Console()
    if once or not console.is_terminal:
        time.sleep(interval_s)
        console.print(render(before, inspect(name)))
        return
    with Live(render(before, before), console=console, screen=True) as live:
        while True:
            time.sleep(interval_s)
            now = inspect(name)
            live.update(render(before, now), refresh=True)
            before = now


def _prometheus(name: str, port: int | None) -> None:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server

    from flowtrain.observe.prometheus import PoolCollector

    registry = CollectorRegistry()
    registry.register(PoolCollector(name))
    if port is None:
        print(generate_latest(registry).decode(), end="")
        return
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    print(f"serving http://127.0.0.1:{server.server_port}/metrics", flush=True)
    thread.join()
