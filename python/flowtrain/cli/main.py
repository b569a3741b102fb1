"""`flowtrain`: plans, trains and inspects runs of vision-language models."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from flowtrain import __version__
from flowtrain.cli.completion import SHELLS, Parser, PrintCompletion
from flowtrain.error_texts import text_of
from flowtrain.extras import install_command
from flowtrain.output import OutputError, checked_stdout, lasting_stderr
from flowtrain.signals import end_silently, exits
from flowtrain_core import FlowTrainError

_COMMANDS = (
    *("demo", "train", "encoder", "host", "rank", "export", "data", "cache", "pack"),
    *("profile", "plan", "top", "trace", "report", "bench", "clean", "doctor"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Returns:
        0 on success, 1 if it or its output failed, 2 if misused, 130 after Ctrl-C.

    Raises:
        SystemExit: The process got SIGTERM or SIGHUP; the code is 128 plus the number.
    """
    with exits(), lasting_stderr():
        return _main(argv)


def command() -> int:
    """The program `flowtrain`: `main`, in a process that ends with it."""
    end_silently()
    try:
        return main()
    finally:
        # With torch imported, the garbage collections at the end of the interpreter take a second.
        gc.freeze()


def _main(argv: Sequence[str] | None) -> int:
    parser = Parser(prog="flowtrain", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        help="print a script that completes this command in a shell",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    # Progress bars of libraries would break the status line of a run.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    given = argparse.Namespace(debug=False)
    code = 0
    try:
        for command in _COMMANDS:
            importlib.import_module(f"flowtrain.cli.{command}").add_parser(commands)
        with checked_stdout():
            try:
                _, others = parser.parse_known_args(argv, given)
                _take_overrides(parser, given, others)
            except SystemExit as end:  # For example --help, whose output is flushed below.
                return int(end.code or 0)
            run: Callable[[argparse.Namespace], int] = given.run
            code = run(given)
        return code
    except KeyboardInterrupt as error:
        return _say(str(error) or "interrupted", 130)
    except ModuleNotFoundError as error:
        if given.debug or (error.name or "").startswith("flowtrain"):
            raise
        extra = getattr(given, "extra", "demo")
        return _say(f"{error.name} is not installed; run: {install_command(extra)}", 2)
    except OutputError as error:
        return _say(str(error), 1)
    except (ValueError, OSError) as error:
        if given.debug:
            raise
        return _say(text_of(error) if isinstance(error, OSError) else str(error), 2)
    except (RuntimeError, FlowTrainError) as error:
        if given.debug:
            raise
        return _say(str(error), 1)


def _take_overrides(
    parser: argparse.ArgumentParser, given: argparse.Namespace, others: list[str]
) -> None:
    """Add overrides behind an option, as in `train run.yaml --resume train.steps=9`.

    argparse takes positional arguments from one place alone.
    """
    unknown = [text for text in others if text.startswith("-") or "=" not in text]
    if unknown or (others and not hasattr(given, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(unknown or others)}")
    if others:
        given.overrides += others


def _say(message: str, code: int) -> int:
    print(f"flowtrain: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(command())
