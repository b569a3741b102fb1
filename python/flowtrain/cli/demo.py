"""`flowtrain demo`: train a small Qwen3-VL from scratch, then test it on held-out images."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.cli.overrides import add_overrides
from flowtrain.output import shows_text


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("demo", help=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        help="folder (default: demo); an earlier demo in it is replaced",
    )
    parser.add_argument("--keep-data", action="store_true", help="use the data of an earlier demo")
    add_overrides(parser)
    parser.add_argument(
        "--json", action="store_true", help="end with a line of JSON, as without a terminal"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    with progress.bar("loading PyTorch"):
        from rich.console import Console

        from flowtrain.observe.report import write_report
        from flowtrain.observe.strips import show_strips
        from flowtrain.pages import PageError
        from flowtrain.train.demo import demo
        from flowtrain.train.launch.run import SUMMARY
        from flowtrain.train.state.strips import read_strips

        summary = demo(given.out, given.overrides, keep_data=given.keep_data)
    folder = Path(summary["run"])
    show_strips(read_strips(folder), Console())
    print(packing_line(summary))
    print(decoupled_line(summary))
    print(heldout_line(summary))
    given.out.joinpath(SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    try:
        print(write_report([folder], folder / "report.html"))
    except (PageError, OSError) as error:  # The model is trained, and the lines above say how.
        print(f"no report: {error}")
    if not shows_text(json_wanted=given.json):
        print(json.dumps(summary))
    return 0


def heldout_line(summary: dict[str, Any]) -> str:
    """How well the model reads strips that it was not trained on, in one line."""
    return (
        f"held-out strips, read with plain Hugging Face: {summary['heldout_digit_accuracy']:.1%} "
        f"of {summary['heldout_digits']:,} digits are right"
    )


def decoupled_line(summary: dict[str, Any]) -> str:
    """Comparison of the first steps with those of decoupled ranks, in one line."""
    return (
        f"first {summary['decoupled_steps']} steps again, 1 encoder rank + 1 backbone rank: "
        f"{summary['bytes_through_pool'] / 1e6:.1f} MB crossed the pool; losses differ by at most "
        f"{summary['decoupled_loss_difference']:.1e}, relative"
    )


def packing_line(summary: dict[str, Any]) -> str:
    """Effect of packing, in one line."""
    ranks = summary["backbone_ranks"]
    names = {"pad_ratio": "pad ratio"}
    if summary["layout"] == "colocated":
        names["dist_ratio"] = f"dist ratio of {ranks} rank(s)"
    else:
        names["dist_ratio"] = f"dist ratio of {ranks} backbone rank(s)"
        names["encoder_dist_ratio"] = f"of {summary['encoder_ranks']} encoder rank(s)"
    parts = [
        f"{name} {summary[f'{key}_before']:.1%} -> {summary[f'{key}_after']:.1%}"
        for key, name in names.items()
    ]
    return f"packing, arrival order -> packed: {', '.join(parts)}"
