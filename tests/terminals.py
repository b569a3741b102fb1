"""A pseudo-terminal whose output is read all the time, so that nothing that writes to it waits."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
from contextlib import suppress


class Terminal:
    """What is written to `theirs` can be read with `shown`.

    Attributes:
        theirs: Descriptor of the side of a program; closed by `shown`.
    """

    def __init__(self, columns: int = 100) -> None:
        self._ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._keep_reading, daemon=True)
        self._reader.start()

    def _keep_reading(self) -> None:
        # It fails when no process has the other side open any more.
        with suppress(OSError):
            while data := os.read(self._ours, 1 << 16):
                self._read.append(data)

    def so_far(self) -> str:
        """What has been written until now."""
        return b"".join(self._read).decode(errors="replace")

    def shown(self) -> str:
        """What has been written until no process has `theirs` open any more."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1
        self._reader.join(30.0)
        os.close(self._ours)
        return self.so_far()


def rows(shown: str) -> list[str]:
    """Rows of a terminal as they were written, those that were written over included."""
    ends = re.sub(r"\r?\n|\r?\x1b\[\d*[AK]", "\n", shown)
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", ends).split("\n")


def has_cursor(shown: str) -> bool:
    """Whether a cursor that was hidden is shown at the end; false if none was hidden."""
    return shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0
