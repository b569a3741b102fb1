"""Steps of a run, as an option."""

from __future__ import annotations

import argparse


def steps(text: str) -> range:
    """The steps of FIRST:END, without END.

    Raises:
        argparse.ArgumentTypeError: The text is none.
    """
    first, _, end = text.partition(":")
    if first.isdecimal() and end.isdecimal() and int(first) < int(end):
        return range(int(first), int(end))
    raise argparse.ArgumentTypeError(f"{text}: write FIRST:END, such as 0:2")
