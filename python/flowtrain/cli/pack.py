"""`flowtrain pack`: compare packing policies on the samples of a run, or on lengths."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowtrain import progress
from flowtrain.cli.overrides import add_overrides

if TYPE_CHECKING:
    from flowtrain.workloads import Workload

_PRESET_SAMPLES = 1024
_COLUMNS_HELP = """
columns, means over the steps:
  waiting   share of the ranks' lock-step time spent waiting for the slowest rank
  gap       lock-step time over a proven lower bound
  dist      1 - mean / max over the ranks of a slot, of backbone cost; encoder: of encoder cost
  pad       padding, if slots were padded to their longest rank
  max/mean  cost of the costliest rank over the mean rank, over whole steps
  fill      used share of the microbatches' tokens; slots: microbatches per rank
  ms        to schedule a step
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "pack",
        help=__doc__,
        description=__doc__,
        epilog=_COLUMNS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace",
        files=True,
        help="a file with, per line, a number of tokens or a JSON object with 'tokens' and "
        "optionally 'visual_tokens', 'images', 'cost', 'encoder_cost'; a run.yaml whose data were "
        "checked; or a preset such as 'video'",
    )
    add_overrides(parser, help="dotted overrides of a run.yaml")
    parser.add_argument("--ranks", type=int, required=True, help="data-parallel ranks")
    parser.add_argument(
        "--max-tokens", type=int, required=True, help="maximum tokens per microbatch"
    )
    parser.add_argument(
        "--microbatches", type=int, help="slots per rank (default: as many as needed)"
    )
    parser.add_argument("--step", type=int, help="samples per step (default: all in one step)")
    parser.add_argument("--policy", default="all", help="'all', or comma-separated names")
    parser.add_argument(
        "--samples", type=int, help=f"samples of a preset (default: {_PRESET_SAMPLES})"
    )
    parser.add_argument("--seed", type=int, help="seed of a preset (default: 0)")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.html", help="write a page with charts to this file"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per policy")
    parser.set_defaults(run=run_pack, extra="train")


def run_pack(given: argparse.Namespace) -> int:
    from flowtrain.config.checks import check_outputs
    from flowtrain.packing.compare import compare, steps_of
    from flowtrain.packing.table import COLUMNS, cells

    check_outputs({"--plot": given.plot}, [given.trace])
    work = _samples(given)
    if work.bad:
        print(
            f"flowtrain: {work.name}: left out {work.bad} bad samples, which `flowtrain data "
            "check` lists",
            file=sys.stderr,
        )
    with progress.bar("dividing the samples", ticks=False):
        steps, slots = steps_of(
            work,
            ranks=given.ranks,
            max_tokens=given.max_tokens,
            microbatches=given.microbatches,
            step_samples=given.step,
        )
        rows = compare(
            work,
            steps,
            ranks=given.ranks,
            microbatches=slots,
            max_tokens=given.max_tokens,
            policies=None if given.policy == "all" else given.policy.split(","),
        )
    title = (
        f"{work.name}: {len(steps)} x {len(steps[0])} samples on {given.ranks} ranks x {slots} "
        f"microbatches of {given.max_tokens} tokens"
    )
    dropped = _dropped(work, steps, given.max_tokens)
    if given.json:
        for row in rows:
            print(json.dumps({name: getattr(row, name) for name in COLUMNS}))
    else:
        print(title + dropped)
        table = [[head for head, _ in COLUMNS.values()], *map(cells, rows)]
        widths = [max(map(len, column)) + 2 for column in zip(*table, strict=True)]
        for line in table:
            print("".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))
    if given.plot:
        from flowtrain.packing.page import comparison_page
        from flowtrain.pages import write_page

        page = comparison_page(work, steps, rows, title + dropped)
        print(write_page(page, given.plot, option="--plot"), file=sys.stderr)
    return 0


def _samples(given: argparse.Namespace) -> Workload:
    from flowtrain.workloads import PRESETS, preset, read_lengths

    path = Path(given.trace)
    if path.suffix in (".yaml", ".yml"):
        from flowtrain.config import load
        from flowtrain.data.sizes import read_sizes

        return read_sizes(load(path, given.overrides))
    if given.overrides:
        raise ValueError(
            f"{' '.join(given.overrides)}: overrides change a run.yaml, and {path} is none"
        )
    if not path.exists() and given.trace in PRESETS:
        samples = _PRESET_SAMPLES if given.samples is None else given.samples
        if samples < 1:
            raise ValueError(f"--samples={samples}: it must be 1 or more")
        return preset(given.trace, samples, seed=given.seed or 0)
    if given.samples is not None or given.seed is not None:
        raise ValueError(f"{path}: --samples and --seed draw a preset, and it is none; omit them")
    if path.exists():
        return read_lengths(path)
    raise ValueError(f"{path}: neither a file nor a preset; presets are {', '.join(PRESETS)}")


def _dropped(work: Workload, steps: list[Any], cap: int) -> str:
    """Samples that are in no step, for the title."""
    above = int((work.tokens > cap).sum())
    rest = len(work) - above - len(steps) * len(steps[0])
    parts = [f"{rest} after the last full step"] if rest else []
    if above:
        parts.append(f"{above} above --max-tokens, up to {work.tokens.max()} tokens")
    return f"; dropped samples: {', '.join(parts)}" if parts else ""
