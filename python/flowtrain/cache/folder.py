"""The folder of a cache: its contexts, what they take, and room for more.

PATH/cache.json              what the folder is
PATH/lock                    held while files are created, reserved, removed
PATH/CONTEXT/context.json    what its payloads were computed with
PATH/CONTEXT/in_use          locked by all who use the context; its time is that of the last use
PATH/CONTEXT/N.dat, N.idx    payloads and entries of one writer
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowtrain.cache.context import DESCRIPTION, Context
from flowtrain.cache.entries import ENTRY_BYTES
from flowtrain.cache.errors import CacheError
from flowtrain.cache.index import DATA, INDEX

_MARK, _LOCK, _IN_USE = "cache.json", "lock", "in_use"
_REMOVED = ".removed"
_USES = "uses.json"
_VERSION = 1
_CONTEXT = re.compile(r"[0-9a-f]{32}")
# Others hold the lock while they create, reserve or remove a few files.
_LOCK_S, _POLL_S = 30.0, 0.01
_KEPT_FREE = 0.1
"""Share of the file system that a cache without a bound leaves free."""

# Writers reserve blocks, and blocks count for the bound: each is an entry, and its share of
# payloads. Payloads that are larger on average use less for entries.
_BLOCK_BYTES = 4096
BLOCK_DATA_BYTES = _BLOCK_BYTES - ENTRY_BYTES


def blocks_for(data_bytes: int, index_bytes: int) -> int:
    """Blocks that a writer needs for so many bytes of payloads and entries."""
    return max(-(-data_bytes // BLOCK_DATA_BYTES), -(-index_bytes // ENTRY_BYTES))


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextUse:
    """A context as `flowtrain cache show` lists it."""

    name: str
    description: dict[str, Any]
    bytes: int
    """Bytes that count for the bound."""
    entries: int
    hits: int
    """Images of ended runs whose features were stored."""
    misses: int
    used_at: float
    """Unix time of the last use."""
    in_use: bool


class CacheFolder:
    """A folder that processes share, without a lock between those who read and write payloads.

    Args:
        path: The folder; it is created. One that holds anything else is refused.
        max_bytes: Bound of the bytes of all contexts; None leaves a tenth of the file system free.

    Raises:
        CacheError: The folder cannot be used.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._check_mark()
        except OSError as error:
            raise CacheError(
                f"cache {path}: {error.strerror or error}; give a folder that can be written"
            ) from error

    @staticmethod
    def existing(path: Path) -> CacheFolder:
        """A cache that is there already.

        Raises:
            CacheError: There is none.
        """
        if not CacheFolder.is_in(path):
            raise CacheError(f"cache {path}: it has no {_MARK}: give the folder of flow.cache.path")
        return CacheFolder(path)

    @staticmethod
    def is_in(path: Path) -> bool:
        """Whether a folder is a cache."""
        return (path / _MARK).exists()

    def _check_mark(self) -> None:
        mark = self.path / _MARK
        text = json.dumps({"flowtrain_cache": _VERSION}) + "\n"
        others = [name for name in os.listdir(self.path) if not name.startswith(_LOCK)]
        if not mark.exists():
            if others:
                raise CacheError(
                    f"cache {self.path}: it has no {_MARK}, and holds {min(others)}: only an empty "
                    "folder, or a cache, can be used; give another one"
                )
            part = mark.with_name(f"{_LOCK}.{os.getpid()}")
            part.write_text(text)
            part.replace(mark)
        elif (found := mark.read_text()) != text:
            raise CacheError(
                f"cache {self.path}: {_MARK} has {found.strip()[:80]!r}, and this version of "
                f"FlowTrain writes {text.strip()!r}; give another folder, or remove this one"
            )

    @property
    def full(self) -> str:
        """Why there is no room, for messages."""
        disk = os.statvfs(self.path)
        bound = f"flow.cache.max_bytes={self._max_bytes}"
        if self._max_bytes is None:
            bound = f"{1 - _KEPT_FREE:.0%} of its file system"
        return (
            f"no room is left within {bound}, with {disk.f_frsize * disk.f_bavail} bytes free, and "
            "all of its contexts are in use; raise it, or make room"
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within the block, no other process creates, reserves or removes files.

        Raises:
            OSError: The lock cannot be opened, or another process holds it for too long.
        """
        with open(self.path / _LOCK, "ab") as lock:
            deadline = time.monotonic() + _LOCK_S
            while not _try_lock(lock.fileno(), fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{self.path / _LOCK}: another process has held it for {_LOCK_S:g} s"
                    )
                time.sleep(_POLL_S)
            yield

    def news(self, context: Context) -> str | None:
        """A line about a context of which nothing is stored, where other contexts have features.

        It says how the context differs from the one that was used last.
        """
        if (self.path / context.name).exists():
            return None
        for last in self.contexts():
            names = ", ".join(context.differences(last.description))
            return (
                f"{self.path}: nothing is stored for this run, which differs from context "
                f"{last.name[:8]}, used last, in {names}"
            )
        return None

    @contextmanager
    def use(self, context: Context) -> Iterator[Path]:
        """Within the block, the folder of a context exists, and nobody removes it.

        Raises:
            CacheError: It cannot be created.
        """
        folder = self.path / context.name
        try:
            with self.locked():
                folder.mkdir(exist_ok=True)
                lock = open(folder / _IN_USE, "ab")  # noqa: SIM115
                fcntl.flock(lock, fcntl.LOCK_SH)
                os.utime(lock.fileno())
                if not (folder / DESCRIPTION).exists():
                    part = folder / f"{DESCRIPTION}.part"
                    part.write_text(context.text)
                    part.replace(folder / DESCRIPTION)
        except OSError as error:
            raise CacheError(
                f"cache {self.path}: {error.strerror or error}; give a folder that can be written"
            ) from error
        with lock:
            yield folder

    def count(self, folder: Path, *, hits: int, misses: int) -> None:
        """Add to the hits and misses of a context in use; a disk that is full loses them."""
        with suppress(OSError), self.locked():
            before = _uses_of(folder)
            after = {"hits": before["hits"] + hits, "misses": before["misses"] + misses}
            part = folder / f"{_USES}.part"
            part.write_text(json.dumps(after) + "\n")
            part.replace(folder / _USES)

    def room(self, needed: int, wanted: int) -> int:
        """Blocks that a writer may reserve now; the caller holds the lock.

        If there is no room, contexts that nobody uses are removed, the one used last the longest
        ago first.

        Args:
            needed: Blocks below which a reservation is of no use.
            wanted: Blocks above which none is needed.

        Returns:
            0, or at least `needed` and at most `wanted`.
        """
        self._sweep()
        while (free := self._free_bytes() // _BLOCK_BYTES) < needed:
            if not self._remove_oldest():
                return 0
        return min(free, wanted)

    def contexts(self) -> list[ContextUse]:
        """The contexts, the one used last first."""
        found = []
        for folder in self._folders():
            try:
                description = json.loads((folder / DESCRIPTION).read_text())
                used_at = (folder / _IN_USE).stat().st_mtime
                entries = sum(f.stat().st_size // ENTRY_BYTES for f in folder.glob(f"*{INDEX}"))
            except (OSError, ValueError):
                continue  # Being created or removed.
            found.append(
                ContextUse(
                    name=folder.name,
                    description=description,
                    bytes=_bytes_of(folder),
                    entries=entries,
                    **_uses_of(folder),
                    used_at=used_at,
                    in_use=not _unless_used(folder, lambda _: None),
                )
            )
        return sorted(found, key=lambda context: -context.used_at)

    def clear(self) -> int:
        """Remove the contexts that nobody uses; return the bytes that they had."""
        freed = 0
        with self.locked():
            self._sweep()
            for folder in self._folders():
                size = _bytes_of(folder)
                freed += size if _unless_used(folder, _remove) else 0
        return freed

    def _folders(self) -> list[Path]:
        found = [path for path in self.path.iterdir() if _CONTEXT.fullmatch(path.name)]
        return [path for path in found if path.is_dir()]

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.path)
        free = disk.f_frsize * disk.f_bavail
        if self._max_bytes is None:
            return max(0, free - int(_KEPT_FREE * disk.f_frsize * disk.f_blocks))
        return max(0, min(free, self._max_bytes - sum(map(_bytes_of, self._folders()))))

    def _remove_oldest(self) -> bool:
        """Remove the unused context whose last use is the longest ago; return whether one was."""
        by_age = sorted(self._folders(), key=_used_at)
        return any(_unless_used(folder, _remove) for folder in by_age)

    def _sweep(self) -> None:
        """Remove what a killed process was removing."""
        for left in self.path.glob(f"*{_REMOVED}"):
            shutil.rmtree(left)


def _remove(folder: Path) -> None:
    """Remove a context: as a whole at first, so that a kill leaves no part that could be used."""
    removed = folder.with_suffix(_REMOVED)
    folder.rename(removed)
    shutil.rmtree(removed)


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bytes_of(folder: Path) -> int:
    """Bytes of a context that count: what its writers have reserved."""
    blocks = 0
    for path in folder.glob(f"*{DATA}"):
        with suppress(FileNotFoundError):
            blocks += blocks_for(path.stat().st_size, 0)
    return blocks * _BLOCK_BYTES


def _uses_of(folder: Path) -> dict[str, int]:
    try:
        found = json.loads((folder / _USES).read_text())
        return {name: int(found[name]) for name in ("hits", "misses")}
    except (OSError, ValueError, KeyError, TypeError):  # None yet, or the file is damaged.
        return {"hits": 0, "misses": 0}


def _used_at(folder: Path) -> float:
    try:
        return (folder / _IN_USE).stat().st_mtime
    except FileNotFoundError:  # A kill came between; nobody uses it.
        return 0.0


def _unless_used(folder: Path, action: Callable[[Path], Any]) -> bool:
    """Do something with a context that nobody uses; return whether it was done."""
    try:
        lock = open(folder / _IN_USE, "ab")  # noqa: SIM115
    except FileNotFoundError:
        return False
    with lock:
        if not _try_lock(lock.fileno(), fcntl.LOCK_EX):
            return False
        action(folder)
        return True
