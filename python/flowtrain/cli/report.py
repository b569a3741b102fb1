"""`flowtrain report RUN [RUN2 ...]`: a page with charts of a run, or of several side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.cli.steps import steps

_HELP = """
The page is one HTML file, which needs no network: loss and speed, where each rank's time went and
for whom it waited, a timeline, what packing made of the samples, the pool, and what happened to the
run. The run may have ended, have been killed, or be running.
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("report", help=__doc__, description=f"{__doc__}\n{_HELP}")
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--steps",
        type=steps,
        metavar="FIRST:END",
        help="steps of the timeline, from 0; END is not shown (default: 3 of typical length)",
    )
    parser.add_argument(
        "--out", type=Path, help="file (default: report.html in the folder of the first run)"
    )
    parser.set_defaults(run=run, extra="train")


@progress.bar("reading the run")
def run(given: argparse.Namespace) -> int:
    from flowtrain.observe.report import write_report

    out = given.out or given.folders[0] / "report.html"
    print(write_report(given.folders, out, steps=given.steps))
    return 0
