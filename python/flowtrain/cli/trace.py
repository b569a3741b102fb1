"""`flowtrain trace RUN`: a timeline of a run, for ui.perfetto.dev."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.cli.steps import steps

_HELP = """
Each rank is a process, with a track for its actions, its waits, its planner and each of its
workers, arrows along its records, and what torch's profiler has traced (track.profile_start). Two
runs begin at the same time: that of their first step.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("trace", help=__doc__, description=f"{__doc__}\n{_HELP}")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("other", type=Path, nargs="?", metavar="RUN2", help="run to compare with")
    parser.add_argument(
        "--steps",
        type=steps,
        metavar="FIRST:END",
        help="steps to show, from 0; END is not shown (default: all that track.event_steps keeps)",
    )
    parser.add_argument(
        "--out", type=Path, help="file, compressed if it ends in .gz (default: RUN/trace.json.gz)"
    )
    parser.set_defaults(run=run, extra="train")


@progress.bar("reading the run")
def run(given: argparse.Namespace) -> int:
    from flowtrain.observe.trace import write_trace

    runs = [given.folder] if given.other is None else [given.folder, given.other]
    print(write_trace(runs, given.out or given.folder / "trace.json.gz", steps=given.steps))
    return 0
