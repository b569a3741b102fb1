"""`flowtrain cache fill | show | clear`: store features ahead of a run, list and remove them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowtrain.cli.overrides import add_overrides

if TYPE_CHECKING:
    from flowtrain.cache import CacheFolder


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("cache", help=__doc__, description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    fill = kinds.add_parser(
        "fill",
        help="encode all images of a run, and store their features",
        description="Images that are stored already are not encoded again, so that the command may "
        "be stopped and started.",
    )
    fill.add_argument("config", type=Path, help="YAML file of a run with flow.cache.path")
    add_overrides(fill)
    fill.add_argument("--workers", type=int, help="processes that read (default: one per core)")
    fill.set_defaults(run=run_fill)
    show = kinds.add_parser("show", help="list contexts: size, hits, and when they were last used")
    _add_path(show)
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    show.set_defaults(run=run_show)
    clear = kinds.add_parser("clear", help="remove the contexts that no run uses")
    _add_path(clear)
    clear.set_defaults(run=run_clear)


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="the folder, or the YAML file of a run that has it")


def _folder(path: Path) -> CacheFolder:
    from flowtrain.cache import CacheError, CacheFolder

    if path.is_file():
        from flowtrain.config import load

        found = load(path).flow.cache.path
        if found is None:
            raise CacheError(f"{path}: flow.cache.path is not set; give the folder of the cache")
        path = found
    return CacheFolder.existing(path)


def run_fill(given: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from flowtrain.config import load
    from flowtrain.cores import available_cores
    from flowtrain.train.fill import fill

    if given.workers is not None and given.workers < 0:
        raise ValueError(f"--workers {given.workers}: must be 0 or more")
    workers = available_cores() if given.workers is None else given.workers
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with bar as progress:
        task = progress.add_task("samples", total=None)
        filled = fill(
            load(given.config, given.overrides),
            workers=workers,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print(json.dumps(dataclasses.asdict(filled)))
    if filled.stopped is not None:
        print(f"flowtrain: not all are stored: {filled.stopped}", file=sys.stderr)
        return 1
    return 0


def run_show(given: argparse.Namespace) -> int:
    contexts = _folder(given.path).contexts()
    if given.json:
        for context in contexts:
            print(json.dumps(dataclasses.asdict(context)))
        return 0
    from rich.console import Console
    from rich.table import Table

    from flowtrain.observe.top import bytes_text

    table = Table("context", "model", "device", "images", "bytes", "hits", "last use", box=None)
    for context in contexts:
        read = context.hits + context.misses
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(context.used_at))
        table.add_row(
            context.name[:8],
            str(context.description.get("model", "")),
            str(context.description.get("device", "")),
            f"{context.entries:,}",
            bytes_text(context.bytes),
            f"{context.hits / read:.1%} of {read:,}" if read else "-",
            "in use" if context.in_use else used,
        )
    Console().print(table)
    return 0


def run_clear(given: argparse.Namespace) -> int:
    folder = _folder(given.path)
    freed = folder.clear()
    for context in folder.contexts():
        print(f"kept {context.name}: in use")
    print(f"freed {freed:,} bytes")
    return 0
