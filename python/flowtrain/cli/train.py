"""`flowtrain train CONFIG`: train on this host."""

from __future__ import annotations

import argparse
import json
import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowtrain import progress
from flowtrain.cli.overrides import add_overrides
from flowtrain.cli.steps import steps
from flowtrain.output import show, shows_text

if TYPE_CHECKING:
    from flowtrain.config import RunConfig

# Figures of a summary, where it has them.
_FIGURES = {
    "loss": "loss {:.4f}",
    "eval_loss": "loss on held-out samples {:.4f}",
    "tokens_per_s": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("train", help=__doc__)
    parser.add_argument("config", type=Path, help="YAML file")
    add_config_options(parser)
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
    parser.set_defaults(run=run)


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add what changes the configuration of a run, and how the run begins and ends."""
    add_overrides(parser)
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="take the layout from a plan of `flowtrain plan`"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the latest checkpoint")
    parser.add_argument(
        "--json",
        action="store_true",
        help="end with RUN/summary.json in one line, as without a terminal",
    )


def run(given: argparse.Namespace) -> int:
    from flowtrain.config import ConfigError, dump

    config = _configured(given)
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
    return _train(given, config)


def run_config(given: argparse.Namespace, **how: Any) -> int:
    """Run a configuration.

    Args:
        given: The arguments of `add_config_options`, and `config`.
        how: Further arguments of `flowtrain.train.launch.run.train`.

    Returns:
        Exit code.
    """
    return _train(given, _configured(given), **how)


def _configured(given: argparse.Namespace) -> RunConfig:
    from flowtrain.config import given_fields, load

    config = load(given.config, given.overrides)
    if given.plan is not None:
        from flowtrain.train.launch.planned import planned

        fields = given_fields(given.config, given.overrides)
        hosts = getattr(given, "listen", None) is not None
        config = planned(config, given.plan, given=fields, hosts=hosts)
    return config


def _train(given: argparse.Namespace, config: RunConfig, **how: Any) -> int:
    with progress.bar("loading PyTorch"):
        from flowtrain.train.launch.run import SUMMARY, train
        from flowtrain.train.state.run_folder import check_place

        if not any(word.startswith("run=") for word in given.overrides):
            check_place(given.config, config)
        summary = train(config, resume=given.resume, plan=given.plan, **how)
    as_text = shows_text(json_wanted=given.json)
    text = end_of_run(config.run, summary) if as_text else json.dumps(summary) + "\n"
    return 0 if show(text, otherwise=f"the summary is in {config.run / SUMMARY}") else 1


def end_of_run(run: Path, summary: dict[str, Any]) -> str:
    """Lines for people at the end of a run: its result, where the model is, and what to run next.

    Args:
        run: Folder of the run.
        summary: Contents of its `summary.json`.
    """
    from flowtrain.train.state.final import FINAL

    figures = [
        text.format(summary[name])
        for name, text in _FIGURES.items()
        if summary.get(name) is not None
    ]
    took = timedelta(seconds=round(summary["seconds"]))
    lines = [f"{summary['steps']:,} steps in {took}: {', '.join(figures)}"]
    folder = shlex.quote(str(run))
    if (steps := summary.get("best_steps")) is not None:
        loss = summary["best_eval_loss"]
        lines.append(
            f"lowest loss on held-out samples: {loss:.4f} after {steps:,} steps; to write that "
            f"model: flowtrain export {folder} --best"
        )
    lines.append(f"the model is in {run / FINAL}; to look at the run: flowtrain report {folder}")
    return "".join(f"{line}\n" for line in lines)
