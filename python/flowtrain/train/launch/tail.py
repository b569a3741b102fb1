"""Lines that another process appends to a file."""

from __future__ import annotations

from pathlib import Path


class Tail:
    """The complete lines of a file, as they come.

    Args:
        path: The file, which need not exist yet.
        from_end: Leave out the lines that it has now.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._read = path.stat().st_size if from_end and path.exists() else 0

    def lines(self) -> list[str]:
        """The lines since the last call, without their ends."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return []
        complete = new[: new.rfind(b"\n") + 1]
        self._read += len(complete)
        return complete.decode(errors="replace").splitlines()
