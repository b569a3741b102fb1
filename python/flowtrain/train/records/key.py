"""Identity of a slab of a record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Identity of one slab of a record, independent of the rank that produced it.

    It is packed into the 128-bit key of a descriptor; numbers of bits are in brackets.

    Attributes:
        step: Step of the record (32).
        item: Number of the item within the step (24).
        part: Number of the slab within the record (24).
        version: Step whose weights computed the rows (32).
        skipped: Whether an image of the item was replaced by zeros (1).
    """

    step: int
    item: int
    part: int
    version: int
    skipped: bool = False

    def pack(self) -> int:
        key = self.step << 24 | self.item
        key = key << 24 | self.part
        key = key << 32 | self.version
        return key << 1 | self.skipped

    @staticmethod
    def unpack(key: int) -> RecordKey:
        return RecordKey(
            step=key >> 81,
            item=key >> 57 & 0xFFFFFF,
            part=key >> 33 & 0xFFFFFF,
            version=key >> 1 & 0xFFFFFFFF,
            skipped=bool(key & 1),
        )
