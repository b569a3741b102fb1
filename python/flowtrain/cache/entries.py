"""Entries of an index: where the payload of a key is, with a checksum of it and one of the entry.

Fixed size and little endian, appended one after the other, so that an index is read at once into an
array, and what a kill or a flipped byte has damaged costs one entry.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import numpy
from numpy.typing import NDArray

KEY_BYTES = 32
ENTRY_BYTES = 64
ALIGNMENT = 64
"""Payloads start at multiples of this."""

_MAGIC = b"FTCACHE1"
_PACK = struct.Struct("<8s32sQQII")
_CHECKED = ENTRY_BYTES - 4

ENTRY = numpy.dtype(
    [
        ("magic", "S8"),
        ("head", "<u8"),
        ("tail", "V24"),
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("payload_crc", "<u4"),
        ("crc", "<u4"),
    ]
)
"""`head` and `tail` are the key."""

assert ENTRY.itemsize == _PACK.size == ENTRY_BYTES

Entries = NDArray[Any]


def pack(key: bytes, *, offset: int, size: int, payload_crc: int) -> bytes:
    """An entry.

    Args:
        key: `KEY_BYTES` bytes.
        offset: First byte of the payload in its file.
        size: Bytes of the payload.
        payload_crc: CRC-32 of the payload.
    """
    entry = _PACK.pack(_MAGIC, key, offset, size, payload_crc, 0)[:_CHECKED]
    return entry + crc32(entry).to_bytes(4, "little")


def unpack(data: bytes) -> tuple[Entries, int]:
    """The valid entries of bytes whose length is a multiple of an entry.

    Returns:
        The entries, of dtype `ENTRY`, and the number of others.
    """
    entries = numpy.frombuffer(data, ENTRY)
    view = memoryview(data)
    starts = range(0, len(data), ENTRY_BYTES)
    crcs = numpy.fromiter(
        (crc32(view[start : start + _CHECKED]) for start in starts), "<u4", len(entries)
    )
    valid = (entries["crc"] == crcs) & (entries["magic"] == _MAGIC)
    damaged = len(entries) - int(valid.sum())
    return entries[valid] if damaged else entries, damaged


def aligned(size: int) -> int:
    """Bytes that a payload takes in its file."""
    return -(-size // ALIGNMENT) * ALIGNMENT
