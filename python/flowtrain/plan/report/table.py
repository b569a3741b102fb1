"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "") -> list[str]:
    """Lines in which every column has one width.

    Args:
        rows: Cells; the rows have the same number of them.
        left: Number of columns, from the first one on, whose cells begin at the left edge; those
            of the others end at the right edge.
        indent: In front of every line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (
            indent
            + "  ".join(
                cell.ljust(width) if number < left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        ).rstrip()
        for row in rows
    ]
