"""`flowtrain top [POOL | RUN]`: watch a pool, and what the ranks of its run do.

It shows occupancy, rates, waits, and live and dead lanes; for the folder of a run also shares of
the ranks' time, what its hosts exchange, and once it has ended, how.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from flowtrain.train.state.files import LOCK, RunFileError, read_text
from flowtrain.train.state.logs import POOL
from flowtrain_core import PoolNotFound, inspect, list_pools
from flowtrain_core.snapshots import PoolSnapshot

_HELP = "watch a pool, and what the ranks of its run do"
_MAX_INTERVAL_S = 86400
_NAME = re.compile(r"[\w.-]+")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("top", help=_HELP, description=__doc__)
    parser.add_argument(
        "pool",
        nargs="?",
        files=True,
        help="name, or folder of a run; optional if there is only one pool",
    )
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
    run = Path(given.pool) if given.pool and Path(given.pool).is_dir() else None
    if given.pool and run is None and not _NAME.fullmatch(given.pool):
        raise ValueError(f"{given.pool}: there is no such folder; {_give()}")
    try:
        name = _pool_of(run) if run else given.pool or _only_pool()
        if given.json:
            print(json.dumps(inspect(name)))
        elif given.prometheus or given.port is not None:
            _prometheus(name, given.port, run)
        else:
            _watch(name, given.interval, once=given.once, run=run)
    except (PoolNotFound, RunFileError) as error:
        if run is None:
            what = str(error).partition(";")[0]  # The rest is advice for Python.
            raise ValueError(f"{what}; {_give()}") from error
        ended = _ended(run)
        if ended is None and isinstance(error, RunFileError):
            raise
        # On standard error: scripts expect JSON or Prometheus text on the other.
        print(ended or f"{run}: the run starts, or is ending", file=sys.stderr)
    except KeyboardInterrupt:  # The way to leave it.
        return 130
    return 0


def _give() -> str:
    """Way out of an error: the folder of a run, or one of the pools that there are."""
    names = ", ".join(pool.name for pool in list_pools())
    return f"give the folder of a run, or a pool: {names or 'there is none now'}"


def _only_pool() -> str:
    names = [pool.name for pool in list_pools()]
    if len(names) != 1:
        found = f"there are {', '.join(names)}" if names else "there is none"
        raise ValueError(f"pool: {found}; name the pool to watch")
    return names[0]


def _pool_of(run: Path) -> str:
    """The pool of a run.

    Raises:
        ValueError: The folder has no run.
        RunFileError: Its file with the name is damaged.
    """
    path, way_out = run / POOL, "name the pool itself"
    if not path.exists() and not (run / LOCK).exists():
        raise ValueError(f"{run}: no run has started there; name a pool, or the folder of a run")
    name = read_text(path, way_out=way_out).strip()
    if not _NAME.fullmatch(name):
        raise RunFileError(f"{path}: it holds no name of a pool; {way_out}")
    return name


def _ended(run: Path | None) -> str | None:
    """How a run has ended; None if it has not, or there is none."""
    from flowtrain.train.state.ending import how_it_ended

    return None if run is None else how_it_ended(run)


def _watch(name: str, interval_s: float, *, once: bool, run: Path | None) -> None:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live

    from flowtrain.observe.activity import activity_table
    from flowtrain.observe.hosts import hosts_table
    from flowtrain.observe.top import render

    def screen(before: PoolSnapshot, now: PoolSnapshot) -> RenderableType:
        pool = render(before, now)
        if run is None:
            return pool
        hosts = hosts_table(run)
        return Group(activity_table(run), *([] if hosts is None else [hosts]), pool)

    before = inspect(name)
    console = Console()
    if once or not console.is_terminal:
        time.sleep(interval_s)
        console.print(screen(before, inspect(name)))
        return
    with Live(screen(before, before), console=console, screen=True) as live:
        while True:
            time.sleep(interval_s)
            now = inspect(name)
            live.update(screen(before, now), refresh=True)
            before = now


def _prometheus(name: str, port: int | None, run: Path | None) -> None:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server

    from flowtrain.observe.prometheus import PoolCollector, RanksCollector

    registry = CollectorRegistry()
    registry.register(PoolCollector(name))
    if run is not None:
        registry.register(RanksCollector(run))
    if port is None:
        print(generate_latest(registry).decode(), end="")
        return
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    print(f"serving http://127.0.0.1:{server.server_port}/metrics", flush=True)
    thread.join()
