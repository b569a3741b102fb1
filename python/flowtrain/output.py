"""Standard output and standard error, whose reader may be gone, or which may be on a full disk."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO


class OutputError(OSError):
    """Standard output cannot be written."""

    def __str__(self) -> str:
        return f"standard output: {self.strerror}"


def shows_text(*, json_wanted: bool) -> bool:
    """Whether the result of a run is shown as text: on a terminal, unless JSON is wanted."""
    return not json_wanted and sys.stdout is not None and sys.stdout.isatty()


def show(text: str, *, otherwise: str) -> bool:
    """Print on standard output, and continue if that fails.

    Args:
        text: Printed and flushed.
        otherwise: Printed on standard error if standard output fails.

    Returns:
        False if standard output failed for another reason than that its reader is gone.
    """
    try:
        print(text, end="", flush=True)
    except OSError as error:
        print(f"standard output: {error.strerror}; {otherwise}", file=sys.stderr, flush=True)
        gone = _reader_is_gone(error)
        _discard()
        return gone
    return True


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Flush standard output after the block; end the block silently if its reader is gone.

    Raises:
        OutputError: Standard output failed for another reason.
    """
    with redirect_stdout(_wrapped(sys.stdout, _Checked)):
        try:
            yield
            _flush()
        except OutputError as error:
            gone = _reader_is_gone(error)
            _discard()
            if not gone:
                raise
        except BaseException:
            try:
                _flush()
            except OutputError:
                _discard()  # The error that ended the block is the one to report.
            raise


@contextmanager
def lasting_stderr() -> Iterator[None]:
    """Within the block, what standard error cannot take is lost, and no error.

    A terminal may be closed while the program that was started there goes on: there is nobody who
    could read why a message failed.
    """
    with ExitStack() as stack:
        # A shell may have closed it (`2>&-`); messages would then go to standard output.
        lasting = (
            stack.enter_context(open(os.devnull, "w"))
            if sys.stderr is None
            else _wrapped(sys.stderr, _Lasting)
        )
        stack.enter_context(redirect_stderr(lasting))
        yield


class _Lasting(io.FileIO):
    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return memoryview(data).nbytes  # type: ignore[arg-type]


class _Checked(io.FileIO):
    """Raises OutputError, so that errors of standard output differ from those of other files."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


def _wrapped(output: TextIO, kind: type[io.FileIO]) -> TextIO:
    """A stream to the same file that writes with this class; the same stream if it has no file."""
    if not isinstance(output, io.TextIOWrapper):  # None where the shell closed it (`>&-`).
        return output
    try:
        file = kind(output.fileno(), "wb", closefd=False)
    except io.UnsupportedOperation:  # A stream in memory.
        return output
    output.flush()
    return io.TextIOWrapper(
        # With PYTHONUNBUFFERED, streams have no buffer; what is in one may be lost at the exit.
        file if output.write_through else io.BufferedWriter(file),
        encoding=output.encoding,
        errors=output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


def _reader_is_gone(error: OSError) -> bool:
    """Whether the reader of a pipe has closed it, or the terminal has been closed."""
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)
    return error.errno == errno.EPIPE


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard() -> None:
    """Discard all further output: a buffer would otherwise fail to be flushed at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
