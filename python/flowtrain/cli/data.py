"""`flowtrain data digits | show`: make a data set, or see what a sample becomes."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("data", help=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    digits = kinds.add_parser("digits", help="write strips of handwritten digits and a tiny model")
    digits.add_argument("folder", type=Path)
    digits.add_argument("--train", type=int, default=12_000, help="training samples")
    digits.add_argument("--heldout", type=int, default=400, help="held-out strips")
    digits.add_argument("--seed", type=int, default=0)
    digits.add_argument("--text-only", type=float, default=0.0, help="share without an image")
    digits.add_argument("--multi-image", type=float, default=0.0, help="share with several")
    digits.set_defaults(run=run_digits)
    show = kinds.add_parser("show", help="print what a sample becomes")
    show.add_argument("config", type=Path, help="YAML file")
    show.add_argument("overrides", nargs="*", metavar="a.b=value", help="dotted overrides")
    show.add_argument("--index", type=int, required=True, help="line of the data file, from 0")
    show.add_argument("--json", action="store_true", help="one JSON object")
    show.set_defaults(run=run_show)


def run_digits(given: argparse.Namespace) -> int:
    from flowtrain.data.digits import write_digits

    summary = write_digits(
        given.folder,
        train=given.train,
        heldout=given.heldout,
        seed=given.seed,
        text_only=given.text_only,
        multi_image=given.multi_image,
    )
    print(json.dumps(dataclasses.asdict(summary)))
    return 0


def run_show(given: argparse.Namespace) -> int:
    from flowtrain.config import load
    from flowtrain.data.show import show_sample

    sample = show_sample(load(given.config, given.overrides), given.index)
    if given.json:
        print(json.dumps(sample))
    else:
        for key, value in sample.items():
            print(f"{key:>16}  {value}")
    return 0
