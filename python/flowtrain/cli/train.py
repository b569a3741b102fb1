"""`flowtrain train CONFIG`: train on this host."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flowtrain.cli.steps import steps


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("train", help=__doc__)
    parser.add_argument("config", type=Path, help="YAML file")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="a.b=value",
        help="dotted overrides; relative paths in them start at the working directory",
    )
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="take the layout from a plan of `flowtrain plan`"
    )
    parser.add_argument("--print-config", action="store_true", help="print every field and exit")
    parser.add_argument(
        "--print-schedule",
        action="store_true",
        help="print what each rank does in the first step, in its order, and exit",
    )
    parser.add_argument(
        "--steps",
        type=steps,
        metavar="FIRST:END",
        help="steps of --print-schedule, from 0; END is not printed",
    )
    parser.add_argument("--resume", action="store_true", help="continue from the latest checkpoint")
    parser.add_argument(
        "--external-ranks",
        action="store_true",
        help="host the run, print a torchrun command for each world, and wait for the ranks",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.config import ConfigError, dump, given_fields, load

    config = load(given.config, given.overrides)
    if given.plan is not None:
        from flowtrain.train.launch.planned import planned

        config = planned(config, given.plan, given=given_fields(given.config, given.overrides))
    if given.print_config:
        print(dump(config), end="")
        return 0
    if given.print_schedule:
        from flowtrain.train.printed import printed_schedule

        print(printed_schedule(config, given.steps or range(1)), end="")
        return 0
    if given.steps is not None:
        raise ConfigError(
            "--steps: it is for --print-schedule; give both, or train.steps=N to train"
        )
    from flowtrain.output import show
    from flowtrain.train.launch.external import run_external_ranks
    from flowtrain.train.launch.local import run_local_ranks
    from flowtrain.train.launch.run import SUMMARY, train
    from flowtrain.train.state.run_folder import check_place

    if not any(word.startswith("run=") for word in given.overrides):
        check_place(given.config, config)
    run_ranks = run_external_ranks if given.external_ranks else run_local_ranks
    summary = train(config, resume=given.resume, plan=given.plan, run_ranks=run_ranks)
    otherwise = f"the summary is in {config.run / SUMMARY}"
    return 0 if show(json.dumps(summary) + "\n", otherwise=otherwise) else 1
