"""Standard output that may be closed by its reader, or be a file on a full disk."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


class OutputError(OSError):
    """Standard output cannot be written."""

    def __str__(self) -> str:
        return f"standard output: {self.strerror}"


def show(text: str, *, otherwise: str) -> bool:
    """Print on standard output, and continue if that fails.

    Args:
        text: Printed and flushed.
        otherwise: Printed on standard error if standard output fails.

    Returns:
        False if standard output failed for another reason than a closed reader.
    """
    try:
        print(text, end="", flush=True)
    except OSError as error:
        print(f"standard output: {error.strerror}; {otherwise}", file=sys.stderr, flush=True)
        _discard()
        return error.errno == errno.EPIPE
    return True


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Flush standard output after the block; end the block silently if its reader has closed it.

    Raises:
        OutputError: Standard output failed for another reason.
    """
    with redirect_stdout(_checked(sys.stdout)):
        try:
            yield
            _flush()
        except OutputError as error:
            _discard()
            if error.errno != errno.EPIPE:
                raise
        except BaseException:
            try:
                _flush()
            except OutputError:
                _discard()  # The error that ended the block is the one to report.
            raise


class _Descriptor(io.FileIO):
    """Raises OutputError, so that errors of standard output differ from those of other files."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


def _checked(output: TextIO) -> TextIO:
    """A stream to the same file that raises OutputError; the same stream if it has no file."""
    if not isinstance(output, io.TextIOWrapper):  # None where the shell closed it (`>&-`).
        return output
    try:
        file = _Descriptor(output.fileno(), "wb", closefd=False)
    except io.UnsupportedOperation:  # A stream in memory.
        return output
    output.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=output.encoding,
        errors=output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard() -> None:
    """Discard all further output: a buffer would otherwise fail to be flushed at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
