"""`flowtrain plan --export`: a plan as flags of another program."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowtrain.plan.export import Exported
    from flowtrain.plan.plan_file import PlanFile

# Options of a search, for which --from has no use.
_SEARCHES = (
    *("overrides", "model", "cluster", "workload", "profile", "lora", "offload", "fix"),
    *("only_run", "check", "gpus", "sensitivity", "explain", "out", "plot"),
    *("seed", "cache_hits", "gpu_hour"),
)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export",
        choices=("megatron", "torchtitan"),
        help="search only layouts that this program runs, and print its flags for the best",
    )
    parser.add_argument(
        "--export-out", type=Path, metavar="FLAGS.sh", help="write these flags to a file for bash"
    )
    parser.add_argument(
        "--from",
        dest="plan",
        type=Path,
        metavar="plan.json",
        help="export a plan that was written by --out, without a search",
    )


def check_export(given: argparse.Namespace) -> None:
    """Check the options beside each other.

    Raises:
        ConfigError: One of them has no use.
    """
    from flowtrain.config.checks import require

    require(
        given.export is not None or not (given.plan or given.export_out),
        "--from and --export-out: give --export with the program that the plan is for",
    )
    unused = [name.replace("_", "-") for name in _SEARCHES if given.plan and getattr(given, name)]
    require(
        not unused,
        f"--from {given.plan}: a plan is there, and nothing is searched; leave out "
        f"{', '.join(unused)}",
    )


def export_file(given: argparse.Namespace) -> int:
    """Export a plan that was made before."""
    from flowtrain.plan.export import exported_text, exported_tree
    from flowtrain.plan.plan_file import read_plan

    exported = export(given, read_plan(given.plan))
    tree = exported_tree(exported)
    print(json.dumps(tree) + "\n" if given.json else exported_text(exported), end="")
    return 0


def export(given: argparse.Namespace, plan: PlanFile) -> Exported:
    """The plan for the program that is asked for, also in the file that is asked for."""
    from flowtrain.plan.export import TARGETS, exported_script

    exported = TARGETS[given.export].of_plan(plan)
    if given.export_out is not None:
        given.export_out.write_text(exported_script(exported))
    return exported
