"""`flowtrain --print-completion bash | zsh`: a script with which a shell completes the command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh")


class Parser(argparse.ArgumentParser):
    """A parser whose arguments of type `Path` are completed with names of files.

    Parsers of its commands are of this class, too.
    """

    def add_argument(self, *names: Any, files: bool = False, **options: Any) -> argparse.Action:
        """Add an argument, as `argparse.ArgumentParser` does.

        Args:
            names: Its names.
            files: Complete it with names of files, although it is no `Path`.
            options: Other arguments of argparse.
        """
        action = super().add_argument(*names, **options)
        if files or options.get("type") is Path:
            action.complete = "file"  # type: ignore[attr-defined]
        return action


class PrintCompletion(argparse.Action):
    """Prints the script, and ends the command."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.extra = "shell"  # Named if shtab is missing.
        import shtab

        print(shtab.complete(parser, values))
        parser.exit()
