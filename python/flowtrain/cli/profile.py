"""`flowtrain profile`: measure how long the layers of a model take on this machine."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from flowtrain.cli.overrides import add_overrides

_HELP = """
Measures forward and backward passes of each kind of layer as a rank computes them, and the
optimizer, at sizes up to train.microbatch_tokens. A profile that was ended early continues from its
file. It holds for one model, dtype, device, number of threads, version of torch and depth, and for
blocks that are compiled, or are not (model.compile).
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("profile", help=__doc__, description=f"{__doc__}\n{_HELP}")
    parser.add_argument(
        "config", nargs="?", files=True, help="YAML file of a run; none with --model"
    )
    add_overrides(parser)
    parser.add_argument("--model", type=Path, help="Hugging Face folder, in place of a run")
    parser.add_argument(
        "--out", type=Path, default=Path("profile.json"), help="file (default: profile.json)"
    )
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="time for measuring (default: 240)"
    )
    parser.add_argument(
        "--image-tokens", type=int, default=256, help="maximum tokens of an image (default: 256)"
    )
    parser.add_argument(
        "--depth",
        type=int,
        default=0,
        help="maximum blocks of the tower and layers of the decoder that are built, for a device "
        "that does not hold the whole model (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.set_defaults(run=run, extra="train")


def run(given: argparse.Namespace) -> int:
    from flowtrain.config import load
    from flowtrain.config.checks import check_outputs, require
    from flowtrain.train.profile.launch import model_config, run_profile

    require(
        0 < given.seconds < math.inf,
        f"--seconds {given.seconds}: it must be greater than 0, and finite",
    )
    require(given.image_tokens >= 1, f"--image-tokens {given.image_tokens}: it must be at least 1")
    require(given.depth >= 0, f"--depth {given.depth}: it must be 0 or more")
    check_outputs({"--out": given.out}, [given.config])
    overrides = given.overrides
    if given.model is not None and given.config is not None and "=" in given.config:
        given.config, overrides = None, [given.config, *overrides]
    if (given.config is None) == (given.model is None):
        raise ValueError(
            f"profile: config={given.config}, --model={given.model}: give exactly one of the two"
        )
    if given.model is None:
        config = load(Path(given.config), overrides)
    else:
        config = model_config(given.model, overrides)
    return run_profile(
        config,
        given.out,
        seconds=given.seconds,
        image_tokens=given.image_tokens,
        depth=given.depth,
        as_json=given.json,
    )
