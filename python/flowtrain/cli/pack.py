"""`flowtrain pack`: what balance would win on a file of lengths, policy by policy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("pack", help=__doc__)
    parser.add_argument("trace", help="JSON-lines file of lengths, or a preset such as 'video'")
    parser.add_argument("--ranks", type=int, required=True, help="data-parallel ranks")
    parser.add_argument("--cap", type=int, required=True, help="most tokens of a microbatch")
    parser.add_argument("--microbatches", type=int, help="slots of a rank (default: those needed)")
    parser.add_argument("--step", type=int, help="samples of a step (default: all in one)")
    parser.add_argument("--policy", default="all", help="'all', or names with commas between")
    parser.add_argument("--samples", type=int, default=1024, help="samples drawn of a preset")
    parser.add_argument("--seed", type=int, default=0, help="seed of a preset")
    parser.add_argument("--plot", type=Path, help="write a picture; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="one JSON object a policy")
    parser.set_defaults(run=run_pack)


def run_pack(given: argparse.Namespace) -> int:
    from flowtrain.packing.compare import compare, steps_of
    from flowtrain.workloads import PRESETS, preset, read_lengths

    if given.trace in PRESETS and not Path(given.trace).exists():
        work = preset(given.trace, given.samples, seed=given.seed)
    else:
        work = read_lengths(Path(given.trace))
    steps, slots = steps_of(
        work,
        ranks=given.ranks,
        token_cap=given.cap,
        microbatches=given.microbatches,
        step_samples=given.step,
    )
    rows = compare(
        work,
        steps,
        ranks=given.ranks,
        microbatches=slots,
        token_cap=given.cap,
        policies=None if given.policy == "all" else given.policy.split(","),
    )
    if given.plot:
        from flowtrain.packing.plot import plot_comparison

        plot_comparison(rows, given.plot)
    if given.json:
        for row in rows:
            print(json.dumps({name: getattr(row, name) for name in _COLUMNS}))
        return 0
    left_out = int((work.tokens > given.cap).sum())
    print(
        f"{work.name}: {len(steps)} steps of {len(steps[0])} samples on {given.ranks} ranks x "
        f"{slots} microbatches of {given.cap} tokens; {left_out} samples above it left out"
    )
    print("".join(f"{title:>{width}}" for title, width, _ in _COLUMNS.values()))
    for row in rows:
        print(
            "".join(
                f"{format(getattr(row, name), style):>{width}}"
                for name, (_, width, style) in _COLUMNS.items()
            )
        )
    return 0


# Field: title, width, format.
_COLUMNS = {
    "policy": ("policy", 26, "s"),
    "lost": ("waiting", 10, ".2%"),
    "gap": ("gap", 10, ".3%"),
    "dist_ratio": ("dist", 8, ".4f"),
    "encoder_dist_ratio": ("encoder", 9, ".4f"),
    "pad_ratio": ("pad", 8, ".4f"),
    "max_over_mean": ("max/mean", 10, ".4f"),
    "fill": ("fill", 8, ".3f"),
    "microbatches": ("slots", 7, "d"),
    "milliseconds": ("ms", 10, ".2f"),
}
