"""The process that measures: `python -m flowtrain.train.profile.main`.

It has the environment of a rank, on which the speed of a CPU depends.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from flowtrain.config.load import load
from flowtrain.config.schema import RunConfig
from flowtrain.cores import cpu_name
from flowtrain.cost.profiled import Profile, ProfileKey, digest
from flowtrain.cost.tables import Tables
from flowtrain.output import show
from flowtrain.signals import end_silently, exits
from flowtrain.train.profile.passes import Passes
from flowtrain.train.profile.report import as_json, as_text
from flowtrain.train.profile.search import Grid, Limits
from flowtrain.train.profile.session import Outcome, Session
from flowtrain.train.profile.shallow import write_shallow
from flowtrain.train.profile.shapes import image_sizes
from flowtrain.train.ranks.device import choose_device


def measure(
    config: RunConfig, out: Path, *, seconds: float, threads: int, image_tokens: int, depth: int
) -> tuple[Profile, Tables, Outcome]:
    """Measure the layers of a run's model, or continue with that.

    Args:
        config: The run.
        out: File to write, and to continue from.
        seconds: Time for measuring.
        threads: Threads of a rank.
        image_tokens: Maximum tokens of an image.
        depth: Maximum layers of a module that are built; 0 for all of them.

    Raises:
        ProfileError: The file is no profile, or one of other conditions.
    """
    torch.set_num_threads(threads)
    device = choose_device(config.model.device, 0, first=0)
    if depth:
        with tempfile.TemporaryDirectory(prefix="flowtrain-profile-") as folder:
            write_shallow(config.model.folder, Path(folder), depth=depth)
            passes = Passes(config, device, shallow=Path(folder))
    else:
        passes = Passes(config, device)
    key = ProfileKey(
        model=digest(passes.layers),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=config.model.pass_dtype,
        threads=threads,
        torch=torch.__version__,
        depth=depth,
    )
    profile = Profile(key=key, repeats=passes.repeats, joins=passes.joins)
    if out.exists():
        profile = Profile.load(out)
        profile.check(key, str(out))
    limits = Limits(
        row_tokens=config.train.microbatch_tokens,
        call_rows=min(config.flow.item_tokens, config.train.microbatch_tokens),
    )
    images = image_sizes(
        passes.family, passes.processor, max_tokens=min(limits.call_rows, image_tokens)
    )
    grid = Grid(images, limits, joins=passes.joins)
    outcome = Session(profile, passes, grid, out, seconds=seconds, say=_say).run()
    return profile, Tables(profile, passes.layers), outcome


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:79.79}", end="", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure as the arguments say, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m flowtrain.train.profile.main")
    parser.add_argument("config", type=Path, help="configuration of a run, all fields given")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--image-tokens", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    try:
        profile, tables, outcome = measure(
            load(given.config),
            given.out,
            seconds=given.seconds,
            threads=given.threads,
            image_tokens=given.image_tokens,
            depth=given.depth,
        )
    except (ValueError, OSError) as error:
        print(f"flowtrain: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"flowtrain: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if sys.stderr.isatty():
        print(f"\r{'':79}\r", end="", file=sys.stderr)
    text = (
        json.dumps(as_json(given.out, profile, tables, outcome)) + "\n"
        if given.json
        else as_text(given.out, profile, tables, outcome)
    )
    return 0 if show(text, otherwise=f"the times are in {given.out}") else 1


if __name__ == "__main__":
    end_silently()
    with exits():
        code = main()
    sys.exit(code)
