"""The process that measures: `python -m flowtrain.train.profile.main`.

It has the environment of a rank, on which the speed of a CPU depends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flowtrain import progress
from flowtrain.config.load import load
from flowtrain.output import show
from flowtrain.signals import end_silently, exits


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
        with progress.bar("loading PyTorch"):
            from flowtrain.train.profile.measure import measure
            from flowtrain.train.profile.report import as_json, as_text

        with progress.bar("building the model", ticks=False):
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
