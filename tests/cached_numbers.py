"""Payloads that follow from their keys, and a process that stores them until it is killed."""

from __future__ import annotations

import random
import signal
import sys
from hashlib import sha256
from pathlib import Path

from flowtrain.cache import CacheFolder, Context, Reader, Writer

CONTEXT = Context({"model": "a"})


def key_of(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def payload_of(number: int, size: int | None = None) -> memoryview:
    return memoryview(random.Random(number).randbytes(size or 1 + number * 37 % 5000))


def stored(folder: Path, count: int, *, damaged: bool = False) -> list[int]:
    """Numbers below `count` whose payload is stored; each payload must be right.

    Raises:
        AssertionError: One is not, or, unless `damaged`, the reader tells of damage.
    """
    told: list[str] = []
    reader, found = Reader(folder, told.append), []
    for number in range(count):
        payload = reader.get(key_of(number))
        if payload is not None:
            assert payload.tobytes() == payload_of(number).tobytes(), number
            found.append(number)
    reader.close()
    assert damaged or not told, told
    return found


def main() -> None:
    """Store a range of numbers in a random order, and wait to be killed."""
    path, max_bytes, first, end, seed = Path(sys.argv[1]), *map(int, sys.argv[2:])
    cache = CacheFolder(path, max_bytes)
    with cache.use(CONTEXT) as folder:
        writer = Writer(cache, folder)
        numbers = list(range(first, end))
        random.Random(seed).shuffle(numbers)
        print("started", flush=True)
        for number in numbers:
            writer.put(key_of(number), payload_of(number))
        signal.pause()


if __name__ == "__main__":
    main()
