"""`flowtrain bench pool | slab | handoff | ring | torture | train`: measure on this machine."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.bench.train.options import add_options

# Paths of `bench pool` that use an option. The transport of tcp needs no library, but one set of
# options serves both paths to a host.
_PATHS_OF = {
    "prefault_bytes": ("shm",),
    "device": ("pinned", "vmm", "ipc"),
    "rounds": ("tcp", "ucx"),
    "ucx": ("tcp", "ucx"),
}
_MAX_ROUNDS = 10_000_000


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("bench", help=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_pool = _kind(kinds, "pool", "GB/s of writes, reads, and a flow of both", run_pool)
    of_pool.add_argument("--bytes", type=int, nargs="+", metavar="N", help="item sizes")
    of_pool.add_argument("--seconds", type=float, help="time per figure (default: 0.5)")
    of_pool.add_argument(
        "--prefault-bytes",
        type=int,
        metavar="N",
        help="bytes of the cold start of shm (default: 4 GiB)",
    )
    of_pool.add_argument(
        "--path",
        choices=("shm", "pinned", "vmm", "ipc", "tcp", "ucx"),
        help="shared memory (the default); slabs that a CUDA device copies to and from, "
        "page-locked in the host or its own by either way to share it; or a path between hosts, "
        "over loopback or to the host of --connect",
    )
    of_pool.add_argument("--device", type=int, help="for pinned, vmm and ipc (default: 0)")
    of_pool.add_argument("--rounds", type=int, help="rounds of tcp and ucx (default: 15)")
    of_pool.add_argument("--ucx", metavar="PATH", help="libucp.so.0 to use for ucx")
    sides = of_pool.add_mutually_exclusive_group()
    sides.add_argument(
        "--listen",
        metavar="ADDRESS[:PORT]",
        help="receive for commands with --connect on other hosts, one after the other",
    )
    sides.add_argument(
        "--connect",
        metavar="ADDRESS:PORT",
        help="measure tcp or ucx to the host that listens there",
    )
    of_pool.add_argument(
        "--token",
        type=Path,
        metavar="FILE",
        help="secret of --listen and --connect, the same on both hosts, in a file that only you "
        "can read",
    )
    of_slab = _kind(kinds, "slab", "time to free a slab and take another", run_slab)
    of_slab.add_argument("--rounds", type=int, default=20_000, help="slabs (default: 20000)")
    of_handoff = _kind(
        kinds, "handoff", "one-way latency of an item between two processes", run_handoff
    )
    of_handoff.add_argument(
        "--bytes",
        type=int,
        nargs="+",
        default=[64, 4 << 20],
        metavar="N",
        help="item sizes (default: 64 and 4 MiB)",
    )
    of_handoff.add_argument(
        "--rounds", type=int, default=20_000, help="items of each size (default: 20000)"
    )
    of_ring = _kind(kinds, "ring", "descriptors per second, one by one and in runs", run_ring)
    of_ring.add_argument("--seconds", type=float, default=0.2, help="time per slice")
    of_torture = _kind(kinds, "torture", "kill and stop participants of a ring", run_torture)
    of_torture.add_argument(
        "--kills", type=int, default=1000, help="SIGKILLs of participants (default: 1000)"
    )
    of_torture.add_argument(
        "--stops", type=int, default=20, help="stops of one for a second (default: 20)"
    )
    of_torture.add_argument("--seconds", type=float, default=600.0, help="time limit")
    of_torture.add_argument("--seed", type=int, default=1)
    of_torture.add_argument("--tight", action="store_true", help="one producer and one cell")
    of_torture.add_argument(
        "--without",
        default="",
        metavar="PART",
        help="run without publishing, taking, re-check or generation, to see its faults",
    )
    of_train = _kind(kinds, "train", "training by flowtrain and by plain loops", run_train)
    add_options(of_train, steps=12, rounds=3, batch_size=4)
    of_train.add_argument("--preset", default="video", help="one of flowtrain.workloads.PRESETS")
    of_train.add_argument(
        "--scale", type=float, default=1 / 16, help="factor of the preset's token counts"
    )
    of_train.add_argument("--global-batch", type=int, default=16, help="samples per step")
    of_train.add_argument(
        "--microbatch-tokens", type=int, default=2048, help="maximum tokens of a packed row"
    )


def _kind(kinds: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="one JSON object per line, no table")
    parser.set_defaults(run=partial(_measured, run))
    return parser


def _measured(run: Callable[[argparse.Namespace], int], given: argparse.Namespace) -> int:
    for name in ("bytes", "seconds", "rounds", "prefault_bytes"):
        found = getattr(given, name, None)
        for value in found if isinstance(found, list) else [found]:
            if value is not None and not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} {value}: it must be greater than 0, and finite")
    if (getattr(given, "rounds", None) or 0) > _MAX_ROUNDS:
        raise ValueError(f"--rounds {given.rounds}: it must be at most {_MAX_ROUNDS}")
    with progress.bar("measuring", ticks=False):
        return run(given)


def run_pool(given: argparse.Namespace) -> int:
    from flowtrain.bench import device_pool, placements, pool

    path: Any = given.path or "shm"
    seconds, ucx = given.seconds or 0.5, given.ucx or ""
    if given.connect and path not in ("tcp", "ucx"):
        raise ValueError("--connect measures a path between hosts; give --path tcp or ucx")
    _refuse_unused(given, path)
    if given.listen:
        command = f"flowtrain bench pool --path tcp --token {given.token} --connect"
        placements.listen(_endpoint("--listen", given.listen, given.token, 0), ucx, command)
        return 0
    if path == "shm":
        prefault_bytes = given.prefault_bytes or pool.PREFAULT_BYTES
        rows = pool.run(tuple(given.bytes or pool.SIZES), seconds, prefault_bytes)
    elif path in ("tcp", "ucx"):
        sizes, rounds = given.bytes or placements.SIZES, given.rounds or placements.ROUNDS
        to = _endpoint("--connect", given.connect, given.token) if given.connect else None
        rows = placements.run(path, sizes, seconds, rounds, ucx, to)
    else:
        rows = device_pool.run(path, given.bytes or device_pool.SIZES, seconds, given.device or 0)
    return _show(rows, given.json)


def _refuse_unused(given: argparse.Namespace, path: str) -> None:
    """Refuse an option of `bench pool` that has no effect with the others.

    Raises:
        ValueError: There is one.
    """
    unused: dict[str, str] = {}
    if given.listen:
        use = "--listen"
        for name in ("path", "bytes", "seconds", "prefault_bytes", "device", "rounds"):
            unused[name] = "the other host, with --connect, chooses what is measured; leave it out"
    else:
        use = f"--path {path}"
        for name, paths in _PATHS_OF.items():
            if path not in paths:
                unused[name] = f"leave it out, or give --path {' or '.join(paths)}"
        if not given.connect:
            unused["token"] = "leave it out, or give --listen or --connect"
    for name, way_out in unused.items():
        if getattr(given, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} has no effect with {use}; {way_out}")


def _endpoint(option: str, text: str, token: Path | None, port: int | None = None) -> Any:
    from flowtrain.bench.peer import Endpoint
    from flowtrain.cli.addresses import host_and_port
    from flowtrain.hosts.token import read_token

    host, number = host_and_port(option, text, port=port)
    return Endpoint(host=host, port=number, token=read_token(token))


def run_slab(given: argparse.Namespace) -> int:
    from flowtrain.bench import slab

    return _show(slab.run(given.rounds), given.json)


def run_handoff(given: argparse.Namespace) -> int:
    from flowtrain.bench import handoff

    sizes = progress.over("items between two processes", given.bytes)
    return _show((handoff.run(size, given.rounds) for size in sizes), given.json)


def run_ring(given: argparse.Namespace) -> int:
    from flowtrain.bench import ring

    return _show(ring.run(given.seconds), given.json)


def run_torture(given: argparse.Namespace) -> int:
    from flowtrain.bench import torture

    found = torture.run(
        kills=given.kills,
        stops=given.stops,
        seconds=given.seconds,
        seed=given.seed,
        tight=given.tight,
        without=given.without,
    )
    _show_one(found, given.json)
    return 1 if torture.faults(found) else 0


def run_train(given: argparse.Namespace) -> int:
    from flowtrain.bench.train import on_workload
    from flowtrain.bench.train.compare import same_losses

    found = on_workload.run(given)
    _show_one(found, given.json)
    return 0 if same_losses(found) else 1


def _show_one(found: dict[str, Any], as_json: bool) -> None:
    """Print a result, one value per line."""
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for key, value in found.items():
        print(
            f"{key:>{width}}  {value:.4g}"
            if isinstance(value, float)
            else f"{key:>{width}}  {value}"
        )


def _show(rows: Iterator[dict[str, Any]], as_json: bool) -> int:
    """Print each row when it is measured, then the conditions."""
    from flowtrain.bench.conditions import conditions

    common = conditions().keys()
    shown: list[str] = []
    row: dict[str, Any] = {}
    for row in rows:
        if as_json:
            print(json.dumps(row), flush=True)
            continue
        figures = {key: value for key, value in row.items() if key not in common}
        if list(figures) != shown:
            shown = list(figures)
            print("  ".join(f"{key:>{_width(key)}}" for key in shown))
        print("  ".join(f"{figures[key]!s:>{_width(key)}}" for key in shown), flush=True)
    if not as_json:
        print(", ".join(f"{key} {row[key]}" for key in common))
    return 0


def _width(key: str) -> int:
    return max(8, len(key))
